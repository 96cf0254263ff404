"""The numbers of finished cells, read from their run folders, for the tables.

Accuracy, NLL and calibration error are those of the test split at the epoch with the lowest validation NLL; curves over
the epochs are those of the validation part. No published number comes into this file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito.evaluation import Evaluation, compare
from dubito.files import write_atomically
from dubito.paper.cells import Budget, Cell, settings
from dubito.paper.grid import is_finished, require_same_settings
from dubito.runs.run import Run

NOISE_LEVELS = (0.0, 0.1, 0.2, 0.3)
NEARLY_ZERO = 1e-3


@dataclass(frozen=True)
class Finished:
    """A cell that is trained and evaluated."""

    cell: Cell
    run: Run

    @cached_property
    def evaluation(self) -> Evaluation:
        """Predictions and metrics of the test split, without the images."""
        return Evaluation.load(self.run.path, images=False)

    @cached_property
    def epochs(self) -> list[dict[str, float]]:
        """A row per epoch."""
        return self.run.metrics()

    @property
    def best_epoch(self) -> int:
        """The one with the lowest validation NLL."""
        return int(min(self.epochs, key=lambda row: row["val_nll"])["epoch"])

    @property
    def validation_images(self) -> int:
        """How many were held out."""
        share = self.run.config.validation_fraction
        return round(self.run.data.num_data * share / (1 - share))

    def facts(self) -> dict[str, Any]:
        """Settings, commit, hardware, seed and command of the training."""
        environment = self.run.environment()
        done = json.loads((self.run.path / "finished.json").read_text(encoding="utf-8"))
        given = self.run.config.to_dict()
        given |= {name: Path(given[name]).name for name in ("data", "init")}  # no path of this machine
        words = environment.get("command", [])
        environment["command"] = [Path(word).name if Path(word).is_absolute() else word for word in words]
        return {"settings": given, **environment, "training_seconds": done["training_seconds"]}


def finished(cell: Cell, budget: Budget, runs: Path) -> Finished | None:
    """The cell if it is finished, else None; one of other settings is refused."""
    folder = runs / cell.name
    if not is_finished(folder):
        return None
    run = Run.open(folder)
    require_same_settings(run, settings(cell, budget, runs))
    return Finished(cell, run)


def accuracy_row(found: Finished) -> dict[str, Any]:
    """The measured part of a row of table 1."""
    metrics = found.evaluation.metrics
    row: dict[str, Any] = {"accuracy": 100 * metrics["accuracy"]}
    row["accuracy_low"], row["accuracy_high"] = (100 * end for end in metrics["intervals"]["accuracy"])
    for name in ("nll", "ece"):
        row[name] = metrics[name]
        row[f"{name}_low"], row[f"{name}_high"] = metrics["intervals"][name]
    row["intervals_cover"] = metrics["settings"]["intervals_cover"]
    row["confidence"] = 100 * float(found.evaluation.test.prediction.confidence.double().mean())
    first, last = found.epochs[0], found.epochs[-1]
    return {
        **row,
        "temperature": found.run.config.temperature if found.cell.inference == "vi" else None,
        "epochs": len(found.epochs),
        "best_epoch": found.best_epoch,
        "first_validation_accuracy": 100 * first["val_accuracy"],
        "best_validation_accuracy": 100 * max(epoch["val_accuracy"] for epoch in found.epochs),
        "validation_accuracy": 100 * last["val_accuracy"],
        "validation_images": found.validation_images,
        "training_accuracy": 100 * last["train_accuracy"],
    }


def beside_twin(found: Finished, twin: Finished, bootstrap: int) -> dict[str, float]:
    """By how much a network differs from its twin on the same test images, with intervals over images and draws."""
    both = compare([twin.evaluation, found.evaluation], bootstrap=bootstrap)
    row: dict[str, float] = {}
    for name, unit in (("accuracy", 100), ("nll", 1), ("ece", 1)):
        values = (both[name].differences[1], *both[name].difference_intervals[1])
        ends = ("", "_low", "_high")
        row |= {f"{name}_beside_twin{end}": unit * value for end, value in zip(ends, values, strict=True)}
    return row


def uncertainty_row(found: Finished) -> dict[str, Any]:
    """The measured part of a row of table 2."""
    metrics, epochs = found.evaluation.metrics, found.epochs
    test = found.evaluation.test
    row: dict[str, Any] = {"accuracy": 100 * metrics["accuracy"]}
    for name in ("aleatoric", "epistemic"):
        values = [epoch[f"val_{name}"] for epoch in epochs]
        row[f"{name}_mean_over_epochs"] = sum(values) / len(values)
        row[f"{name}_last_epoch"] = values[-1]
        row[f"{name}_test"] = metrics[name]
        row[f"{name}_median"] = float(getattr(test.prediction, name).double().quantile(0.5))
        row[f"{name}_correlation"] = correlation(getattr(test.prediction, name), test.wrong)
        row[f"{name}_auroc"] = metrics["errors"][name]["auroc"]
    row["nearly_zero"] = float((test.prediction.probs < NEARLY_ZERO).double().mean())
    return row


def correlation(uncertainty: Tensor, wrong: Tensor) -> float | None:
    """Pearson's correlation of an uncertainty with being wrong (0 or 1); None if either never varies.

    >>> correlation(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([False, False, True, True]))
    0.894...
    """
    a, b = uncertainty.double(), wrong.double()
    a, b = a - a.mean(), b - b.mean()
    scale = float(a.norm() * b.norm())
    return float(a @ b) / scale if scale > 0 else None


def batch_aleatoric(outputs: Tensor, axis: str) -> Tensor:
    """Mean over the classes of p (1 - p) for each image, p normalised over its classes or over the images of a batch.

    `outputs` are (N, C) of one draw; `axis` is ``classes``, what the formula says, or ``batch``, what the paper's prose
    says.

    >>> batch_aleatoric(torch.zeros(1000, 10), "batch")[0]
    tensor(0.0010)
    """
    from dubito.heads import softplus_normalize

    p = softplus_normalize(outputs, {"classes": 1, "batch": 0}[axis])
    return (p - p.square()).mean(1)


def noise_rows(found: Finished, budget: Budget) -> dict[str, Any]:
    """Aleatoric uncertainty at each noise level, of the first test image and of many, normalised both ways.

    By draws of the weights. Kept in the run folder, because a deep network takes minutes.
    """
    file = found.run.path / "noise.json"
    count = budget.noise_images[found.cell.model]
    key = {"weights": found.run.fingerprint(), "images": count, "batch": budget.batch}
    key |= {"samples": budget.samples, "method": "weights"}
    if file.exists():
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["key"] == key:
            return dict(stored["found"])
    rows = _noise(found.run, count, budget.batch, budget.samples)
    write_atomically(file, json.dumps({"key": key, "found": rows}, indent=2) + "\n")
    return rows


def _noise(run: Run, count: int, batch: int, samples: int) -> dict[str, Any]:
    from dubito.data import with_channels
    from dubito.evaluation.noise import noisy_batches
    from dubito.prediction import Predictor
    from dubito.progress import track

    networks = Predictor(run.load(), samples).networks()
    images = with_channels(run.open_data().test().images[:count], run.data.channels)
    images = images[: len(images) // batch * batch]  # whole batches, because the constant depends on their size
    levels = []
    for gamma in track(NOISE_LEVELS, f"Noise on {run.path.name}"):
        sums: dict[str, list[Tensor]] = {"classes": [], "batch": []}
        for inputs in noisy_batches(images, run.data, gamma, batch, seed=0):
            with torch.no_grad():
                draws = [_outputs(network, inputs) for network in networks]
            for axis, values in sums.items():
                values.append(torch.stack([batch_aleatoric(outputs, axis) for outputs in draws]).mean(0))
        row: dict[str, Any] = {"gamma": gamma}
        for axis, values in sums.items():
            each = torch.cat(values).double()
            row |= {f"{axis}_image": float(each[0]), f"{axis}_test": float(each.mean())}
        levels.append(row)
    return {"images": len(images), "batch": batch, "constant": 1 / batch * (1 - 1 / batch), "levels": levels}


def _outputs(network: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    return torch.cat([network(part) for part in inputs.split(250)])


def posterior_rows(found: Finished, epochs: Sequence[int]) -> list[dict[str, Any]]:
    """Mean and standard deviation of one weight of each layer at some epochs, and at the last."""
    trace = found.run.posterior_trace()
    wanted = {*epochs, trace[-1]["epoch"]}
    return [row for row in trace if row["epoch"] in wanted]


def filter_content(found: Finished) -> dict[str, Any]:
    """A patch of the first test image, a filter of the first layer, and its output there, as numbers and distributions.

    Filter and place are those with the largest output in terms of its standard deviation, in the middle of the image.
    """
    from dubito.data import normalize
    from dubito.layers import BayesConv2d

    run = found.run
    layer = next(module for module in run.load().children() if isinstance(module, BayesConv2d))
    image = run.open_data().test().images[:1]
    x = normalize(image, run.data.mean, run.data.std)
    assert layer.bias_mean is not None
    assert layer.bias_std is not None
    with torch.no_grad():
        mean = F.conv2d(x, layer.weight_mean, layer.bias_mean, layer.stride, layer.padding)[0]
        spread = layer.weight_std.square(), layer.bias_std.square()
        variance = F.conv2d(x.square(), *spread, layer.stride, layer.padding)[0]
        snr = mean.abs() / variance.sqrt()
        inside = snr[:, 8:-8, 8:-8]
        place = int(inside.argmax())
        rest, column = divmod(place, inside.shape[2])
        number, row = divmod(rest, inside.shape[1])
        row, column = row + 8, column + 8
        size = layer.weight_mean.shape[-1]
        patch = x[0, 0, row : row + size, column : column + size]
        return {
            "image": image[0, 0].tolist(),
            "row": row,
            "column": column,
            "filter": number,
            "patch": patch.tolist(),
            "weight_mean": layer.weight_mean[number, 0].tolist(),
            "weight_std": layer.weight_std[number, 0].tolist(),
            "bias_mean": float(layer.bias_mean[number]),
            "bias_std": float(layer.bias_std[number]),
            "output_mean": float(mean[number, row, column]),
            "output_std": float(variance[number, row, column].sqrt()),
        }
