"""Where the time goes when few images are predicted by many exact draws.

    python -m benchmarks.one_image [--networks lenet5,alexnet,resnet20] [--draws 100] [--out results/one_image.json]

Every figure is a ratio to one plain pass of as many images as there are draws, which has as many multiplications. All
kinds of work take turns; the figures are medians, with quartiles, of ratios of the same round.

- ``weights once``: reading every drawn weight once, by adding them up: the least that exact draws have to move.
- ``one image at a time``: that many passes of a single image, all with the same weights: what small work costs.
- ``draws in turn``: the draws one after the other.
- ``draws at once``: all draws as one batched product.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch

import dubito
from dubito.files import write_atomically
from dubito.memory import keep_freed_memory
from dubito.prediction import draws as drawing


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--networks", default="lenet5,alexnet,resnet20")
    options.add_argument("--draws", type=int, default=100)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    rows = []
    print("| network | work | plain passes | quartiles |\n| --- | --- | --- | --- |")
    for network in given.networks.split(","):
        for work, ratios in compared(works(network, given.draws), given.rounds).items():
            low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
            rows.append({"network": network, "work": work, "median": middle, "low": low, "high": high})
            print(f"| {network} | {work} | {middle:.2f} | {low:.2f}, {high:.2f} |", flush=True)
    if given.out:
        content = {"threads": given.threads, "draws": given.draws, "torch": torch.__version__, "rows": rows}
        write_atomically(given.out, json.dumps(content, indent=2) + "\n")


def works(name: str, samples: int) -> dict[str, Callable[[], object]]:
    """The kinds of work, the plain pass first."""
    torch.manual_seed(0)
    activation = "relu" if "resnet" in name else "softplus"
    plain = dubito.models.build(name, inference="frequentist", activation=activation).eval()
    predictor = dubito.Predictor(dubito.models.build(name, activation=activation), samples)
    image, images = torch.randn(1, 3, 32, 32), torch.randn(samples, 3, 32, 32)
    weights = torch.randn(samples, sum(parameter.numel() for parameter in plain.parameters()))

    def limited(largest: int) -> Callable[[], object]:
        def predict() -> object:
            with patch.object(drawing, "SMALL_DRAW", largest):
                return predictor(image)

        return predict

    return {
        "plain pass": torch.no_grad()(lambda: plain(images)),
        "weights once": weights.sum,
        "one image at a time": torch.no_grad()(lambda: [plain(image) for _ in range(samples)]),
        "draws in turn": limited(0),
        "draws at once": limited(1 << 62),
    }


def compared(kinds: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """The times of each kind of work as multiples of the first, round by round."""
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds + 1):
        for name, work in kinds.items():
            start = time.perf_counter()
            work()
            if number:  # the first round warms up
                times[name].append(time.perf_counter() - start)
    first, *others = kinds
    return {name: [a / b for a, b in zip(times[name], times[first], strict=True)] for name in others}


if __name__ == "__main__":
    main()
