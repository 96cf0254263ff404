"""Which score tells unfamiliar images from familiar ones: AUROC, FPR95 and the share flagged at 1 % false alarms.

    python -m benchmarks.ood RUN... --foreign PHOTOGRAPHS --out results/ood.json

For each run: the test images of its own data set against those of others, against noise, and against its own test
images corrupted; --foreign names a folder of images of your own. Novelty was chosen and fitted by the run's training
without any of these; a run without novelty is fitted first. The threshold of each score is its 99 % quantile on the
run's validation images, so that the share of own test images that it flags is a measured rate of false alarms. Energy
is that of the mean network.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito.data import normalize
from dubito.data.noise import add_pixel_noise
from dubito.evaluation.images import held_out_images, own_test_images, test_images
from dubito.evaluation.metrics import separation
from dubito.evaluation.novelty import fit_novelty, run_novelty
from dubito.files import write_atomically
from dubito.prediction import Prediction, Predictor
from dubito.runs.run import Run

SCORES = ("entropy", "energy", "epistemic", "mutual_information", "novelty")
OTHERS = ("mnist", "fashion-mnist", "cifar10", "cifar100")
FALSE_ALARM = 0.01


def main() -> None:
    options = _options()
    torch.set_flush_denormal(True)
    torch.set_num_threads(options.threads)
    results = [measured(Run.open(path), options.images, options.samples, options.foreign) for path in options.runs]
    if options.out:
        write_atomically(options.out, json.dumps(results, indent=1) + "\n")
        write_atomically(options.out.with_suffix(".md"), markdown(results) + "\n")
    print(markdown(results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders")
    parser.add_argument("--images", type=int, default=2000, help="images of each set")
    parser.add_argument("--samples", type=int, default=10, help="draws of each prediction")
    parser.add_argument("--foreign", default=[], nargs="*", help="more data sets: folders of images")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="also write the results as JSON, and the table beside it")
    return parser.parse_args()


def measured(run: Run, count: int, samples: int, foreign: Sequence[str] = ()) -> dict[str, Any]:
    """Every score on every set of images."""
    held_out = held_out_images([run])
    if run_novelty(run) is None:
        training, _ = run.open_data().parts(run.config.validation_fraction, run.config.seed)
        fit_novelty(run, training, held_out)
    predictor = Predictor(run, samples)
    assert predictor.novelty is not None
    scores = scorer(predictor, run)
    own = _some(own_test_images(run, None).images, count)
    usual, familiar = scores(_some(held_out.images, 5000)), scores(own)
    thresholds = {name: float(values.quantile(1 - FALSE_ALARM)) for name, values in usual.items()}
    rows = []
    for name, images in unfamiliar(run, own, count, foreign):
        strange = scores(images)
        rows.append({"images": name, **{key: _row(familiar[key], strange[key], thresholds[key]) for key in SCORES}})
    return {
        "run": run.path.resolve().name,
        "model": run.config.model,
        "inference": run.config.inference,
        "data": run.data.name,
        "validation_accuracy": max(row["val_accuracy"] for row in run.metrics()),
        "novelty": predictor.novelty.describe(),
        "images": len(own),
        "samples": samples,
        "false_alarms": {key: float((familiar[key] > thresholds[key]).double().mean()) for key in SCORES},
        "sets": rows,
    }


def _row(own: Tensor, other: Tensor, threshold: float) -> dict[str, float]:
    found = separation(own, other)
    flagged = float((other > threshold).double().mean())
    return {"auroc": round(found.auroc, 4), "fpr95": round(found.fpr95, 4), "flagged": round(flagged, 4)}


def scorer(predictor: Predictor, run: Run) -> Callable[[Tensor], dict[str, Tensor]]:
    """A function from images, bytes or floats in [0, 1], to each score."""
    (mean,) = Predictor(run, 1, "mean").networks()

    def scores(images: Tensor) -> dict[str, Tensor]:
        parts, energies = [], []
        for part in images.split(250):
            inputs = normalize(part, run.data.mean, run.data.std)
            parts.append(predictor(inputs))
            with torch.no_grad():
                energies.append(-mean(inputs)[:, : len(run.data.class_names)].logsumexp(1))
        prediction = Prediction.cat(parts)
        named = {name: getattr(prediction, name) for name in SCORES if name != "energy"}
        return {**named, "energy": torch.cat(energies)}

    return scores


def unfamiliar(run: Run, own: Tensor, count: int, foreign: Sequence[str] = ()) -> Iterator[tuple[str, Tensor]]:
    """Sets of images that the run knows nothing of, or only in part."""
    for name in (*OTHERS, *foreign):
        if name != run.config.data:
            yield Path(name).name, _some(test_images(name, run, labelled=False).images, count)
    generator = torch.Generator().manual_seed(0)
    yield "uniform noise", torch.randint(256, own.shape, dtype=torch.uint8, generator=generator)
    pixels = own / 255
    yield "pixel noise 0.3", add_pixel_noise(own, 0.3, generator).clamp(0, 1)
    yield "pixel noise 0.1", add_pixel_noise(own, 0.1, generator).clamp(0, 1)
    small = F.avg_pool2d(pixels, 4)
    yield "blur", F.interpolate(small, size=own.shape[2:], mode="bilinear", align_corners=False)
    yield "low contrast", 0.5 + 0.2 * (pixels - 0.5)
    yield "upside down", own.flip(2)


def _some(images: Any, count: int) -> Tensor:
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:count]
    chosen: Tensor = images[order]
    return chosen


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """A table for each run: AUROC / FPR95, in per cent, and the share flagged by entropy and novelty."""
    lines: list[str] = []
    for result in results:
        alarms = result["false_alarms"]
        lines += [
            f"**{result['model']} ({result['inference']}) on {result['data']}**, validation accuracy "
            f"{result['validation_accuracy']:.1%}. {result['novelty']}".replace("%", " %").replace("  %", " %"),
            "",
            "| images | " + " | ".join(name.replace("_", " ") for name in SCORES) + " | flagged by entropy, novelty |",
            "| --- |" + " --- |" * (len(SCORES) + 1),
        ]
        for row in result["sets"]:
            cells = [f"{100 * row[name]['auroc']:.1f} / {100 * row[name]['fpr95']:.0f}" for name in SCORES]
            flagged = ", ".join(f"{100 * row[name]['flagged']:.1f} %" for name in ("entropy", "novelty"))
            lines.append(f"| {row['images']} | {' | '.join(cells)} | {flagged} |")
        shares = ", ".join(f"{100 * alarms[name]:.1f} %" for name in ("entropy", "novelty"))
        lines += [f"| own test images | {'| ' * len(SCORES)}| {shares} |", ""]
    return "\n".join(lines).strip()


if __name__ == "__main__":
    main()
