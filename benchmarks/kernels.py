"""What each kernel is worth: a whole training step and ten draws with it, and without it.

    python -m benchmarks.kernels [--networks lenet5,alexnet,vgg16] [--rounds 9] [--out results/kernels.json]
    python -m benchmarks.kernels --memory [--out results/kernels-memory.json]

Every figure is a ratio: the work without the kernel against the work with it. Times are compared within a round, median
with quartiles; the peak memory of three steps is taken in a new process for each figure. 1.10 means that the kernel
saves a tenth. A kernel that reaches that on no network, in time or in memory, should go.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch

import dubito
from dubito import kernels
from dubito.benchmark.memory import forget_peak, peak
from dubito.files import write_atomically
from dubito.memory import keep_freed_memory

BATCH = {"vgg16": 64}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--networks", default="lenet5,alexnet,vgg16")
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--memory", action="store_true", help="peak memory instead of time")
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    rows = memories(given.networks.split(",")) if given.memory else times(given.networks.split(","), given.rounds)
    if given.out:
        content = {"threads": given.threads, "torch": torch.__version__, "rounds": given.rounds, "rows": rows}
        write_atomically(given.out, json.dumps(content, indent=2) + "\n")


Row = dict[str, float | str]


def times(networks: list[str], rounds: int) -> list[Row]:
    """The rows of all works, printed as they are found."""
    rows: list[Row] = []
    print("| network | work | kernel | without / with | quartiles |\n| --- | --- | --- | --- | --- |")
    for network in networks:
        for work, make in works(network).items():
            for row in compare(make(), rounds):
                rows.append({"network": network, "work": work, **row})
                quartiles = f"{row['low']:.2f}, {row['high']:.2f}"
                print(f"| {network} | {work} | {row['kernel']} | {row['median']:.2f} | {quartiles} |", flush=True)
    return rows


def memories(networks: list[str]) -> list[Row]:
    """The peak memory of three training steps, without each kernel and with all of them."""
    rows: list[Row] = []
    print("| network | work | kernel | without / with | megabytes with |\n| --- | --- | --- | --- | --- |")
    for network in networks:
        for work in ("step, local", "step, weight"):
            used = {}
            for kernel in ("", *kernels.TABLE):
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    used[kernel] = pool.apply(megabytes, (network, work, kernel))
            for kernel in kernels.TABLE:
                ratio = used[kernel] / used[""]
                rows.append({"network": network, "work": work, "kernel": kernel, "ratio": ratio, "megabytes": used[""]})
                print(f"| {network} | {work} | {kernel} | {ratio:.2f} | {used['']:.0f} |", flush=True)
    return rows


def megabytes(network: str, work: str, kernel: str) -> float:
    """What building a network and three steps need beyond what there was, without one kernel or with all."""
    keep_freed_memory()
    torch.set_num_threads(1)
    dubito.ELBO(1, "softplus")(dubito.BayesLinear(2, 2), torch.ones(2, 2), torch.tensor([0, 1])).loss.backward()
    forget_peak()
    before = peak()
    step = works(network)[work]()
    with kernels.without(kernel) if kernel else nullcontext():
        for _ in range(3):
            step()
    return peak() - before


def works(name: str) -> dict[str, Callable[[], Callable[[], object]]]:
    """What makes a step by `local`, one by `weight`, and a prediction by ten draws."""
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

    def prediction() -> Callable[[], object]:
        network = dubito.models.build(name)
        return lambda: dubito.predict(network, images)

    return {
        "step, local": lambda: step("local"),
        "step, weight": lambda: step("weight"),
        "predict, 10 draws": prediction,
    }


def compare(work: Callable[[], object], rounds: int) -> list[Row]:
    """The work with all kernels, and without each in turn, round by round."""
    variants = ["", *kernels.TABLE]
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name in variants:
            with kernels.without(name) if name else nullcontext():
                start = time.perf_counter()
                work()
                if number:  # the first round warms up
                    seconds[name].append(time.perf_counter() - start)
    rows: list[Row] = []
    for name in variants[1:]:
        ratios = [a / b for a, b in zip(seconds[name], seconds[""], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        rows.append({"kernel": name, "median": middle, "low": low, "high": high})
    return rows


if __name__ == "__main__":
    main()
