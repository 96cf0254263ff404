"""Two versions of dubito side by side: what steps and predictions cost, as multiples of the plain twin's.

    python -m benchmarks.before_after ../before/src src [--networks lenet5,alexnet,vgg16] [--threads 1] [--clock cpu]

Each tree has a process of its own. The processes take turns, and a turn times the plain twin (the same network of
torch's own layers) and dubito one after the other, so every ratio compares times of one turn. A cell is the median over
the rounds with quartiles; *after / before* is the median of the quotients of both trees' ratios in one round. With
`--clock cpu` (processor time of the process) and one thread, other work on the machine disturbs little.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
WORKS = {
    "step, local": "a training step by `local`, against the twin's",
    "step, weight": "a training step by `weight`, against the twin's",
    "predictor": "10 draws of the batch by a Predictor that was made before, against 10 passes",
    "predict": "10 draws of the batch by one call of `predict`, against 10 passes",
    "one image": "one image by 100 draws of a Predictor, against one pass of 100 images",
}
BATCH, DRAWS, MANY_DRAWS = 128, 10, 100
ENOUGH = 0.1
"""Seconds that each half of a turn should take at least: shorter work is repeated."""

Pair = tuple[Callable[[], Any], Callable[[], Any]]


class Bench:
    """What a process does: times the twin and dubito, as its source tree has it."""

    def __init__(self, clock: str) -> None:
        self.clock = CLOCKS[clock]
        self.pair: Pair
        self.repeats: tuple[int, int]

    def prepare(self, network: str, work: str) -> None:
        """Build both, work once to warm up and once to see how long each takes."""
        self.pair = make_pair(network, work)
        self.repeats = (1, 1)
        self.turn()
        self.repeats = tuple(max(1, math.ceil(ENOUGH / max(taken, 1e-6))) for taken in self.turn())  # type: ignore[assignment]

    def turn(self) -> list[float]:
        """Seconds of the twin's work and of dubito's."""
        taken = []
        for action, repeat in zip(self.pair, self.repeats, strict=True):
            start = self.clock()
            for _ in range(repeat):
                action()
            taken.append((self.clock() - start) / repeat)
        return taken


def make_pair(name: str, work: str) -> Pair:
    """The twin's work and dubito's, by names that every version has."""
    import torch
    import torch.nn.functional as F

    import dubito
    from dubito.benchmark.work import Task, Work

    asked = Work(name, Task.STEP, BATCH)
    images, labels = asked.data()
    twin = asked.build()
    estimator = "weight" if work == "step, weight" else "local"
    network = dubito.attach_head(dubito.to_bayesian(asked.build(), estimator=estimator), "softplus").train()

    if work.startswith("step"):
        objective = dubito.ELBO(50_000)

        def plain_loss() -> torch.Tensor:
            return F.nll_loss(dubito.log_softplus_normalize(twin(images)), labels)

        return step(twin, plain_loss), step(network, lambda: objective(network, images, labels).loss)

    @torch.no_grad()
    def passes(given: torch.Tensor, count: int) -> None:
        for _ in range(count):
            dubito.softplus_normalize(twin(given))

    if work == "predict":
        call = predicting(dubito.predict)
        return lambda: passes(images, DRAWS), lambda: call(network, images, DRAWS)
    draws, given = (DRAWS, images) if work == "predictor" else (MANY_DRAWS, images[:1])
    reference = (lambda: passes(images, DRAWS)) if work == "predictor" else (lambda: passes(images[:100], 1))
    if hasattr(dubito, "Predictor"):
        predictor = dubito.Predictor(network, draws)
        return reference, lambda: predictor(given)
    call = predicting(dubito.predict)  # an older tree has no predictor to keep
    return reference, lambda: call(network, given, draws)


def predicting(predict: Callable[..., Any]) -> Callable[..., Any]:
    """`predict` by draws of the weights, which an older tree has to be asked for."""
    options = {"route": "weights"} if "route" in inspect.signature(predict).parameters else {}
    return lambda *arguments: predict(*arguments, **options)


def step(network: Any, loss: Callable[[], Any]) -> Callable[[], None]:
    """A training step with fused Adam."""
    import torch

    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)

    def one() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return one


def serve(clock: str, threads: int) -> None:
    """Answer orders, one line of JSON each, until there are no more."""
    import torch

    from dubito.memory import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    bench = Bench(clock)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        torch.manual_seed(0)
        print(json.dumps(getattr(bench, verb)(*arguments)), flush=True)


class Tree:
    """A source tree, and the process that works with it."""

    def __init__(self, source: Path, clock: str, threads: int) -> None:
        if not (source / "dubito").is_dir():
            raise SystemExit(f"{source} holds no folder dubito, but must be a source tree such as src.")
        path = os.pathsep.join([str(source.resolve()), str(ROOT)])
        command = [sys.executable, "-m", "benchmarks.before_after", "--serve", clock, str(threads)]
        surroundings = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=surroundings, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)

    def ask(self, *order: str) -> Any:
        """The answer to an order."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit("A process ended early; its own message is above.")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def quartiles(values: list[float]) -> dict[str, float]:
    """Median and quartiles.

    >>> quartiles([3.0, 1.0, 2.0])
    {'median': 2.0, 'low': 1.5, 'high': 2.5}
    """
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "low": low, "high": high}


def compare(trees: list[Tree], network: str, work: str, rounds: int) -> dict[str, Any]:
    """Ratios of both trees, and of the second to the first."""
    for tree in trees:
        tree.ask("prepare", network, work)
    found: list[list[float]] = [[], []]
    for _ in range(rounds):
        for ratios, tree in zip(found, trees, strict=True):
            plain, ours = tree.ask("turn")
            ratios.append(ours / plain)
    quotients = [after / before for before, after in zip(*found, strict=True)]
    before, after = (quartiles(ratios) for ratios in found)
    return {"network": network, "work": work, "before": before, "after": after, "quotient": quartiles(quotients)}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.before_after",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trees", type=Path, nargs=2, help="folders that hold the package dubito: before and after")
    parser.add_argument("--networks", default="lenet5,alexnet,vgg16")
    parser.add_argument("--works", default=";".join(WORKS), help="separated by semicolons: " + "; ".join(WORKS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=list(CLOCKS), default="cpu")
    parser.add_argument("--out", type=Path, help="a JSON file")
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error(f"--rounds is {given.rounds}, but quartiles need at least 2.")
    trees = [Tree(source, given.clock, given.threads) for source in given.trees]
    print(f"{given.threads} threads, {given.clock} time, {given.rounds} rounds\n")
    print("| network | work | before | after | after / before |\n| --- | --- | --- | --- | --- |")
    rows = []
    for network in given.networks.split(","):
        for work in (name.strip() for name in given.works.split(";")):
            rows.append(compare(trees, network, work, given.rounds))
            cells = [
                f"{cell['median']:.2f} [{cell['low']:.2f}, {cell['high']:.2f}]"
                for cell in (rows[-1][column] for column in ("before", "after", "quotient"))
            ]
            print(f"| {' | '.join([network, work, *cells])} |", flush=True)
    for tree in trees:
        tree.close()
    if given.out:
        content = {"threads": given.threads, "clock": given.clock, "rounds": given.rounds, "rows": rows}
        given.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        main()
