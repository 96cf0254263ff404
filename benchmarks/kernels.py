"""What each kernel is worth: a whole training step and ten draws with it, and without it.

    python -m benchmarks.kernels [--networks lenet5,alexnet,vgg16] [--rounds 9] [--out results/kernels.json]

Every figure is a ratio of times of the same round, median with quartiles: the work without the kernel against the work
with it. 1.10 means that the kernel saves a tenth. A kernel that reaches that on no network should go.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch

import dubito
from dubito import kernels
from dubito.files import write_atomically
from dubito.memory import keep_freed_memory

BATCH = {"vgg16": 64}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--networks", default="lenet5,alexnet,vgg16")
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    rows = []
    print("| network | work | kernel | without / with | quartiles |\n| --- | --- | --- | --- | --- |")
    for network in given.networks.split(","):
        for work, function in works(network).items():
            for row in compare(function, given.rounds):
                rows.append({"network": network, "work": work, **row})
                quartiles = f"{row['low']:.2f}, {row['high']:.2f}"
                print(f"| {network} | {work} | {row['kernel']} | {row['median']:.2f} | {quartiles} |", flush=True)
    if given.out:
        content = {"threads": given.threads, "torch": torch.__version__, "rounds": given.rounds, "rows": rows}
        write_atomically(given.out, json.dumps(content, indent=2) + "\n")


def works(name: str) -> dict[str, Callable[[], object]]:
    """A step by `local`, one by `weight`, and a prediction by ten draws."""
    torch.manual_seed(0)
    batch = BATCH.get(name, 128)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    objective = dubito.ELBO(50_000)

    def step(estimator: str) -> Callable[[], object]:
        model = dubito.models.build(name, estimator=estimator).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)

        def one() -> None:
            optimizer.zero_grad()
            objective(model, images, labels).loss.backward()
            optimizer.step()

        return one

    network = dubito.models.build(name)
    return {
        "step, local": step("local"),
        "step, weight": step("weight"),
        "predict, 10 draws": lambda: dubito.predict(network, images),
    }


def compare(work: Callable[[], object], rounds: int) -> list[dict[str, float | str]]:
    """The work with all kernels, and without each in turn, round by round."""
    variants = ["", *kernels.TABLE]
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name in variants:
            with kernels.without(name) if name else nullcontext():
                start = time.perf_counter()
                work()
                if number:  # the first round warms up
                    times[name].append(time.perf_counter() - start)
    rows: list[dict[str, float | str]] = []
    for name in variants[1:]:
        ratios = [a / b for a, b in zip(times[name], times[""], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        rows.append({"kernel": name, "median": middle, "low": low, "high": high})
    return rows


if __name__ == "__main__":
    main()
