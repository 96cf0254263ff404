"""What novelty adds to a prediction: time, as a share of 10 draws, and bytes.

    python -m benchmarks.novelty [--networks lenet5,alexnet,resnet20] [--images 64] [--out results/novelty.json]

Networks with random weights, since cost does not depend on what they know; novelty is fitted to random images, by the
dearest of its scores: neighbours in every layer and the energy, with as many references as such a network may keep.
Predictions with and without novelty take turns in one process, by CPU time of one thread; the figures are medians, with
quartiles, of ratios of the same round. The features come from two of the draws that a prediction makes anyway.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import dubito
from dubito.files import write_atomically
from dubito.prediction.novelty import Novelty, Observed, find_layers, multiplications, reference_numbers
from dubito.prediction.novelty.scores import NeighboursAndEnergy

DRAWS = 10


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--networks", default="lenet5,alexnet,resnet20")
    options.add_argument("--images", type=int, default=64, help="images of a prediction")
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    print(
        "| network | novelty adds, % of a prediction by 10 draws | quartiles | stored, MB |\n| --- | --- | --- | --- |"
    )
    rows = []
    for name in given.networks.split(","):
        rows.append(row := measured(name, given.images, given.rounds))
        cells = [f"{100 * row[key]:.1f}" for key in ("median", "low", "high")]
        print(f"| {name} | {cells[0]} | {cells[1]}, {cells[2]} | {row['bytes'] / 1e6:.1f} |", flush=True)
    if given.out:
        content = {"draws": DRAWS, "images": given.images, "torch": torch.__version__, "rows": rows}
        write_atomically(given.out, json.dumps(content, indent=2) + "\n")


def measured(name: str, count: int, rounds: int) -> dict[str, Any]:
    """The share of time that novelty adds to a prediction of `count` images, and its bytes."""
    torch.manual_seed(0)
    activation = "relu" if "resnet" in name else "softplus"
    network = dubito.models.build(name, activation=activation).eval()
    images = torch.randn(count, 3, 32, 32)
    plain, with_novelty = dubito.Predictor(network, DRAWS), dubito.Predictor(network, DRAWS)
    novelty = dearest(with_novelty, images)
    with_novelty.use(novelty)
    ratios = []
    for _ in range(rounds + 1):
        seconds = [_cpu_seconds(predictor, images) for predictor in (plain, with_novelty, plain)]
        ratios.append(2 * seconds[1] / (seconds[0] + seconds[2]) - 1)
    low, middle, high = statistics.quantiles(ratios[1:], n=4, method="inclusive")  # the first round warms up
    stored = len(novelty.to_bytes())
    return {"network": name, "median": middle, "low": low, "high": high, "bytes": stored}


def dearest(predictor: dubito.Predictor, images: torch.Tensor) -> Novelty:
    """Neighbours in every layer and the energy, with references from features of random images."""
    mean = predictor.reference().mean_network()
    layers = find_layers(mean, images[:2])
    draws = predictor.reference()
    draws.watch(layers)
    seen = draws.observed(images)
    numbers = reference_numbers(multiplications(mean, images[:2]))
    many = tuple(_repeated(part, numbers) for part in seen.features)
    most = max(len(part) for part in many)
    outputs = seen.outputs.repeat(-(-most // len(seen.outputs)), 1)
    score = NeighboursAndEnergy.fit(Observed(outputs, many), seen, numbers, head=predictor.head)
    return replace(Novelty(score, tuple(layers), torch.zeros(5000)), notes={})


def _repeated(features: torch.Tensor, numbers: int) -> torch.Tensor:
    """As many rows as may be kept, of noisy copies."""
    count = min(max(numbers // features.shape[1], 100), 10_000)
    copies = features.repeat(-(-count // len(features)), 1)[:count]
    return copies + 0.1 * features.std() * torch.randn_like(copies)


def _cpu_seconds(predictor: dubito.Predictor, images: torch.Tensor) -> float:
    start = time.process_time()
    predictor(images)
    return time.process_time() - start


if __name__ == "__main__":
    main()
