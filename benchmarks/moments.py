"""Prediction by propagated moments against prediction by many draws: how close it comes, and what it costs.

    python benchmarks/moments.py RUN [RUN ...] [--images 512] [--draws 1000] [--noise 0.2] [--out FILE.json]

The reference is a prediction by `--draws` draws of activations (method ``local``), on clean test images and on the same
ones with noise. Its own error shows in the row that compares one half of it with the other; a further row has 100 draws
of the weights, whose positions are not independent. Costs are medians with
quartiles of a batch of 128 images, in turns in one process; the forward pass is that of the posterior means. `--out`
writes the results for docs/explanation/choosing.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dubito
from dubito.data import normalize, open_dataset, with_channels
from dubito.files import write_atomically
from dubito.prediction import Prediction, Predictor, pool
from dubito.runs.run import Run

COLUMNS = ("probabilities, mean abs. difference", "aleatoric, ratio", "epistemic, ratio", "epistemic, Spearman")
BATCH = 128
REPETITIONS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--noise", type=float, default=0.2, help="standard deviation, for pixels from 0 to 1")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    results = [measure(Run.open(path), arguments) for path in arguments.runs]
    if arguments.out:
        write_atomically(arguments.out, json.dumps(results, indent=2) + "\n")


def measure(run: Run, arguments: argparse.Namespace) -> dict[str, Any]:
    model = dubito.load(run.path).eval()
    clean = test_images(run, arguments.images)
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    noisy = clean + noise * (arguments.noise / torch.tensor(run.data.std).view(-1, 1, 1))
    result: dict[str, Any] = {"run": run.path.name, "images": len(clean), "draws": arguments.draws, "rows": []}
    print(f"\n{run.path.name}: {len(clean)} test images, against {arguments.draws} draws\n")
    print(f"{'':>28}" + "".join(f"{name:>38}" if i == 0 else f"{name:>22}" for i, name in enumerate(COLUMNS)))
    for condition, images in (("clean", clean), (f"noise {arguments.noise:g}", noisy)):
        for name, values in compare(model, images, arguments.draws).items():
            result["rows"].append({"images": condition, "prediction": name, **dict(zip(COLUMNS, values, strict=True))})
            print(f"{condition:>11}, {name:>15}{values[0]:>38.5f}" + "".join(f"{v:>22.4f}" for v in values[1:]))
    result["cost"] = cost(model, clean[:BATCH])
    print()
    for name, value in result["cost"].items():
        print(f"{name:>28}{value['ms']:>28} ms{value['passes']:>10.2f} forward passes")
    return result


def test_images(run: Run, count: int) -> Tensor:
    images = with_channels(open_dataset(run.config.data).test().images, run.data.channels)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return normalize(images[order[:count]], run.data.mean, run.data.std)


def compare(model: nn.Module, images: Tensor, draws: int) -> dict[str, tuple[float, ...]]:
    halves = [by_draws(model, images, draws // 2, seed) for seed in (0, 1)]
    reference = pool(halves)
    return {
        f"half of {draws}": closeness(*halves),
        "10 draws": closeness(by_draws(model, images, 10, 2), reference),
        "100 draws": closeness(by_draws(model, images, 100, 3), reference),
        "100 of weights": closeness(by_draws(model, images, 100, 4, "weights"), reference),
        "moments": closeness(by_moments(model, images), reference),
    }


def by_draws(model: nn.Module, images: Tensor, samples: int, seed: int, method: str = "local") -> Prediction:
    return Predictor(model, samples, method, seed, batch_size=BATCH)(images)


def by_moments(model: nn.Module, images: Tensor) -> Prediction:
    return Predictor(model, method="moments", batch_size=BATCH)(images)


def closeness(prediction: Prediction, reference: Prediction) -> tuple[float, ...]:
    return (
        float((prediction.probs - reference.probs).abs().mean()),
        float(prediction.aleatoric.mean() / reference.aleatoric.mean()),
        float(prediction.epistemic.mean() / reference.epistemic.mean()),
        spearman(prediction.epistemic, reference.epistemic),
    )


def spearman(a: Tensor, b: Tensor) -> float:
    ranks = torch.stack([values.argsort().argsort().double() for values in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


@torch.no_grad()
def cost(model: nn.Module, batch: Tensor) -> dict[str, dict[str, Any]]:
    kept = Predictor(model, method="moments", batch_size=BATCH)

    def forward() -> None:
        with dubito.estimator(model, "mean"):
            model(batch)

    ways = {
        "forward pass": forward,
        "one draw": lambda: by_draws(model, batch, 1, 0),
        "moments, one batch": lambda: by_moments(model, batch),
        "moments, each further batch": lambda: kept(batch),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for repetition in range(REPETITIONS + 2):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if repetition >= 2:
                times[name].append(1000 * (time.perf_counter() - start))
    unit = statistics.median(times["forward pass"])
    return {name: {"ms": spread(taken), "passes": statistics.median(taken) / unit} for name, taken in times.items()}


def spread(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.1f} ({low:.1f} .. {high:.1f})"


def markdown(result: dict[str, Any]) -> str:
    title = f"{result['run']}, {result['images']} test images, against {result['draws']} draws"
    lines = [f"| {title} | {' | '.join(COLUMNS)} |", "| --- " * (1 + len(COLUMNS)) + "|"]
    for row in result["rows"]:
        first, *ratios = (row[name] for name in COLUMNS)
        numbers = " | ".join([f"{first:.5f}", *(f"{ratio:.4f}" for ratio in ratios)])
        lines.append(f"| {row['images']}: {row['prediction']} | {numbers} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
