"""How uncertain the network usually is: predictions of the images that its training held out.

An answer compares its image with these images; conformal sets are calibrated on them, and the page's examples are
chosen from them. They are predicted once by each method and kept in the run folder (validation-METHOD.safetensors), or
in the cache if the run folder cannot be written. Data that is not on this machine is not downloaded: the server then
answers without a comparison.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dubito.data import DATASETS, cache_folder, images_at_once, in_memory, status
from dubito.errors import DataError, DubitoError, RunError
from dubito.evaluation.calibration import Conformal
from dubito.evaluation.images import held_out_images
from dubito.evaluation.metrics import percentile
from dubito.evaluation.thumbnails import data_uri
from dubito.files import write_atomically
from dubito.prediction import Prediction
from dubito.prediction.novelty import FALSE_ALARM
from dubito.progress import progress_bar
from dubito.runs.run import Run
from dubito.serving.model import ServedModel

__all__ = ["MAX_IMAGES", "QUANTILE", "RULE", "Validation", "find_validation"]

MAX_IMAGES = 2000
"""Held-out images that are predicted at most, chosen at random: enough for percentiles."""
QUANTILE = 0.95
"""An uncertainty above that of this share of the validation images is unusual."""
RULE = (
    "An image is ambiguous if its aleatoric uncertainty, and the model undecided if its epistemic uncertainty is "
    f"larger than that of {QUANTILE:.0%} of the validation images; it can be both. An image is unlike the training "
    f"images if its novelty is larger than that of {1 - FALSE_ALARM:.0%} of them, and then nothing else is said."
).replace("%", " %")
EXAMPLES = 12
FILE = "validation"


@dataclass(frozen=True, eq=False)
class Validation:
    """Predictions of held-out images.

    Attributes:
        probs: (N, C) of each image.
        labels: (N,) their true classes.
        aleatoric, epistemic: (N,) in ascending order.
        examples: (K, C, H, W) bytes, a few of the images: half of them sure, half doubtful.
        example_labels: (K,) their true classes.
    """

    probs: Tensor
    labels: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    examples: Tensor
    example_labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def accuracy(self) -> float:
        """The share of images that are predicted right."""
        return float((self.probs.argmax(1) == self.labels).double().mean())

    def describe(self) -> dict[str, Any]:
        """Quantiles 0 .. 100 % of both uncertainties, and how good the predictions are."""
        places = torch.linspace(0, 1, 101, dtype=torch.float64)
        return {
            **{kind: self.sorted(kind).double().quantile(places).tolist() for kind in ("aleatoric", "epistemic")},
            "accuracy": self.accuracy,
            "images": len(self),
        }

    def sorted(self, kind: str) -> Tensor:
        """The uncertainties of that kind in ascending order."""
        values: Tensor = getattr(self, kind)
        return values

    def percentile(self, kind: str, value: float) -> float:
        """The share of images with a smaller uncertainty; those with an equal one count half."""
        return float(percentile(self.sorted(kind), torch.tensor(value)))

    def is_unusual(self, kind: str, value: float) -> bool:
        """Whether the uncertainty is larger than that of most images."""
        return value > self._threshold(kind)

    @lru_cache(maxsize=2)  # noqa: B019  (one object lives as long as the server)
    def _threshold(self, kind: str) -> float:
        return float(self.sorted(kind).quantile(QUANTILE))

    @lru_cache(maxsize=64)  # noqa: B019
    def conformal(self, coverage: float) -> Conformal:
        """Sets of classes, never empty, that hold the true one at least that often."""
        return Conformal.fit(self.probs, self.labels, coverage, "aps", randomized=False)

    def example_list(self, class_names: tuple[str, ...]) -> list[dict[str, Any]]:
        """The examples as images in data: URLs."""
        return [
            {"id": number, "name": class_names[label], "truth": class_names[label], "image": data_uri(image)}
            for number, (image, label) in enumerate(zip(self.examples, self.example_labels.tolist(), strict=True))
        ]


def find_validation(
    model: ServedModel,
    method: str,
    images: int = MAX_IMAGES,
    progress: bool = False,
) -> Validation:
    """The validation images' predictions by that method, kept or made; an error says why there are none.

    Each method has its own: an uncertainty that is usual for one may be rare for another.
    """
    notes: dict[str, Any] = {
        "weights": model.run.fingerprint(model.checkpoint),
        "method": method,
        "samples": model.samples,
        "images": images,
        "version": 2,
    }
    digest = f"{notes['weights'][:16]}-{method}-{model.samples}-{images}"
    places = (model.run.path / f"{FILE}-{method}.safetensors", cache_folder() / "serving" / f"{digest}.safetensors")
    for place in places:
        if (kept := _read(place, notes)) is not None:
            return kept
    _require_local_data(model.run)
    made = _predict(model, method, images, progress)
    for place in places:
        try:
            write_atomically(place, _content(made, notes))
            break
        except OSError:
            continue
    return made


def _require_local_data(run: Run) -> None:
    name = run.config.data
    if name in DATASETS:
        if status(name).place == "absent":
            raise DataError(f"{name} is not on this machine; `dubito data get {name}` brings it.")
    elif not Path(name).expanduser().exists():
        raise DataError(f"{name} does not exist any more.")


def _predict(model: ServedModel, method: str, wanted: int, progress: bool) -> Validation:
    held_out = held_out_images([model.run])
    if not len(held_out):
        raise RunError(f"{model.run.path} held no images out.")
    chosen = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(0))[:wanted].sort().values
    held_out = held_out.part(chosen)
    images, labels = held_out.images, held_out.labels
    predictor, parts = model.predictors(method, model.samples), []
    with progress_bar(f"Predicting validation images by {method}", len(images), shown=progress) as advance:
        for part in images.split(images_at_once(model.run.data.size, 128)):
            parts.append(predictor(model.prepare_bytes(part)).to("cpu"))
            advance(len(part))
    prediction = Prediction.cat(parts)
    shown = _examples(prediction.aleatoric, prediction.epistemic, labels)
    return Validation(
        prediction.probs,
        labels,
        prediction.aleatoric.sort().values,
        prediction.epistemic.sort().values,
        in_memory(images[shown]),
        labels[shown],
    )


def _examples(aleatoric: Tensor, epistemic: Tensor, labels: Tensor) -> Tensor:
    """Which images to show: half are certain and of different classes, a quarter has each kind of uncertainty."""
    doubt = aleatoric + epistemic
    sure: list[int] = []
    for number in doubt.argsort().tolist():
        if len(sure) < EXAMPLES // 2 and labels[number] not in labels[sure]:
            sure.append(number)
    doubtful: list[int] = []
    # The share of epistemic uncertainty tells the two apart: the absolute ones are both large for the same images.
    unsure = doubt.argsort(descending=True, stable=True)[: max(len(doubt) // 25, EXAMPLES)]
    share = (epistemic / doubt.clamp_min(1e-12))[unsure]
    for order in (share.argsort(stable=True), share.argsort(descending=True, stable=True)):
        doubtful += [number for number in unsure[order].tolist() if number not in sure + doubtful][: EXAMPLES // 4]
    return torch.tensor(sure + doubtful)


def _content(made: Validation, notes: dict[str, Any]) -> bytes:
    from safetensors.torch import save

    tensors = {name: getattr(made, name).contiguous() for name in Validation.__dataclass_fields__}
    return save(tensors, {"notes": json.dumps(notes)})


def _read(place: Path, notes: dict[str, Any]) -> Validation | None:
    """The stored statistics, or None if they are missing, damaged or made with other settings."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(place, framework="pt") as stored:
            if json.loads((stored.metadata() or {}).get("notes", "null")) != notes:
                return None
            return Validation(**{name: stored.get_tensor(name) for name in Validation.__dataclass_fields__})
    except (SafetensorError, OSError, ValueError, DubitoError):
        return None
