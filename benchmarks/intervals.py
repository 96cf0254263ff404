"""How often intervals over images and draws cover: a trained network is compared with itself under other seeds.

    python -m benchmarks.intervals --pairs 600 --out results/intervals.json

A small Bayesian network is trained on Fashion-MNIST. For each pair of seeds, and for three sizes of the test set, the
metrics of the two predictions are compared as `dubito compare` does it. The network is the same, so 0 is the true
difference, and 95 % of the intervals should hold it. Beside that stands how often intervals over images alone do. A
share of 200 pairs has a standard error of 1.5 points, one of 600 pairs 0.9; the sizes share their draws.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

import dubito
from dubito.data import load
from dubito.evaluation import Evaluated
from dubito.evaluation.intervals import Measurement
from dubito.evaluation.summary import measured
from dubito.runs.run import write_atomically

METRICS = ("accuracy", "nll", "brier", "ece", "aleatoric", "epistemic")
FIRST_SEED = 10_000
COVERS = ("images and draws", "images")


def main() -> None:
    options = _options()
    torch.manual_seed(0)
    network = trained(*inputs("train", options.training_images), epochs=options.epochs)
    results = compared(network, *inputs("test"), options.images, options.pairs, options.samples, options.bootstrap)
    if options.out:
        write_atomically(options.out, json.dumps(results, indent=1) + "\n")
    print(markdown(results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=200, help="pairs of seeds")
    parser.add_argument("--images", type=int, nargs="+", default=[1000, 3000, 10_000], help="sizes of the test set")
    parser.add_argument("--samples", type=int, default=10, help="draws of each prediction")
    parser.add_argument("--bootstrap", type=int, default=1000, help="resamples of the images")
    parser.add_argument("--training-images", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, help="also write the results as JSON")
    return parser.parse_args()


def inputs(split: str, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Images of Fashion-MNIST at half their size, as vectors, and labels."""
    part = load("fashion-mnist", split)
    pixels = part.images[:count].float() / 255 - 0.3
    return nn.functional.avg_pool2d(pixels, 2).flatten(1), part.labels[:count]


def trained(images: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    """A network with one hidden layer, at temperature 1: its posterior is wide, and its draws matter."""
    layers = nn.Sequential(dubito.BayesLinear(images.shape[1], 32), nn.Softplus(), dubito.BayesLinear(32, 10))
    network = dubito.attach_head(layers, "softplus")
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(100):
            likelihood = -dubito.log_softplus_normalize(network(images[chosen])).gather(1, labels[chosen, None]).mean()
            loss = likelihood + dubito.kl_divergence(network) / len(images)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network.eval()


def compared(
    network: nn.Module, images: Tensor, labels: Tensor, sizes: Sequence[int], pairs: int, samples: int, bootstrap: int
) -> dict[str, Any]:
    """Of how many intervals of each metric 0 lies inside, for each size of the test set."""
    inside = {size: {metric: dict.fromkeys(COVERS, 0) for metric in METRICS} for size in sizes}
    console = Console(stderr=True)
    for pair in track(range(pairs), "Comparing", console=console, disable=not console.is_terminal):
        seeds = (FIRST_SEED + 2 * pair, FIRST_SEED + 2 * pair + 1)
        draws = [drawn(network, images, samples, seed) for seed in seeds]
        for size in sizes:
            one, two = (measured(part(found[:, :size], labels[:size]), bootstrap, pair, ranked=()) for found in draws)
            difference = two.minus(one, same_draws=False)
            alone = Measurement(difference.names, difference.estimates, difference.replicates, (), True)
            for metric in METRICS:
                for covers, found in zip(COVERS, (difference, alone), strict=True):
                    low, high = found.interval(metric)
                    inside[size][metric][covers] += low <= 0 <= high
    shares = {
        str(size): {
            metric: {covers: count / pairs for covers, count in counts.items()} for metric, counts in found.items()
        }
        for size, found in inside.items()
    }
    return {"pairs": pairs, "samples": samples, "bootstrap": bootstrap, "inside": shares}


def drawn(network: nn.Module, images: Tensor, samples: int, seed: int) -> Tensor:
    """(T, N, C) the probabilities of each draw."""
    return dubito.Predictor(network, samples, seed=seed, batch_size=len(images)).draws(images).float()


def part(draws: Tensor, labels: Tensor) -> Evaluated:
    """The draws as an evaluated set of images."""
    images = torch.zeros(0, dtype=torch.uint8)
    return Evaluated("fashion-mnist/test", images, labels, dubito.decompose(draws), draws, (len(draws),))


def markdown(results: dict[str, Any]) -> str:
    """A table of the percentages."""
    sizes = results["inside"]
    lines = [
        f"0 inside the 95 % interval of the difference, in % of {results['pairs']} pairs of seeds, "
        f"{results['samples']} draws each; in brackets the same for intervals over images alone:",
        "",
        "| metric | " + " | ".join(f"{int(size):,} images" for size in sizes) + " |",
        "| --- |" + " --- |" * len(sizes),
    ]
    for metric in METRICS:
        found = [sizes[size][metric] for size in sizes]
        cells = (f"{100 * each[COVERS[0]]:.1f} ({100 * each[COVERS[1]]:.1f})" for each in found)
        lines.append(f"| {metric} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
