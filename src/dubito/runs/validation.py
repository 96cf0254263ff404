"""The validation record of a run: what its network predicts for the images that training held out.

    validation.safetensors   labels and predictions of these images, and a few of the images to show
    calibration.json         what was fitted to them: see `Calibration`

Training writes both at its end, so that later commands need no images: calibrated probabilities, sets of classes,
comparisons with usual images and decisions all come from here. A record belongs to the weights that made it and to the
novelty that they had; after further training, or once novelty was fitted again, it does not count any more.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from dubito.heads.split import Prediction
from dubito.runs.description import DataDescription


@dataclass(frozen=True)
class Score:
    """How well an uncertainty finds mistakes: the area under its ROC curve, None if there is none to find.

    Attributes:
        auroc: 1 is perfect, 0.5 is chance.
        interval: of 95 %, over images and draws.
    """

    auroc: float | None
    interval: tuple[float | None, float | None]

    @property
    def beats_chance(self) -> bool:
        """Whether the whole interval is above one half."""
        return self.interval[0] is not None and self.interval[0] > 0.5


@dataclass(frozen=True)
class Calibration:
    """What was fitted to the validation images, and what it was fitted with.

    Attributes:
        weights: the fingerprint of the network's file.
        images: how many.
        samples, seed: of the predictor, which draws weights.
        accuracy: share of images that are predicted right.
        temperature: calibrated probabilities are p^(1/temperature), normalised, with p the mean probabilities.
        coverage: how often a conformal set is to hold the true class.
        threshold: of conformal sets; a class is inside if 1 - p is at most this. None: every class is.
        scores: how well each uncertainty finds mistakes.
        quantiles: of each uncertainty, and of novelty where it was fitted, at 0, 1, ..., 100 %.
        novelty: the fingerprint of the file that says how novelty is measured, None if there was none; empty if it is
            not known, as of earlier versions.
    """

    weights: str
    images: int
    samples: int
    seed: int
    accuracy: float
    temperature: float
    coverage: float
    threshold: float | None
    scores: dict[str, Score]
    quantiles: dict[str, list[float]]
    novelty: str | None = ""

    @property
    def origin(self) -> dict[str, str | None]:
        """The fingerprints of what was used, as far as they are known."""
        return {"weights": self.weights} if self.novelty == "" else {"weights": self.weights, "novelty": self.novelty}

    @property
    def best_score(self) -> str | None:
        """The uncertainty that found mistakes best; None if none beats chance."""
        able = {name: score.auroc or 0.0 for name, score in self.scores.items() if score.beats_chance}
        return max(able, key=lambda name: able[name], default=None)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Calibration:
        """From what the JSON file holds."""
        scores = {name: Score(score["auroc"], tuple(score["interval"])) for name, score in content["scores"].items()}
        made = cls(**{**content, "scores": scores})
        made._check()
        return made

    def _check(self) -> None:
        """A ValueError if a field makes no sense."""
        shares = [
            self.accuracy,
            self.coverage,
            *(v for one in self.scores.values() for v in (one.auroc, *one.interval)),
        ]
        numbers = [self.temperature, self.threshold, *(value for one in self.quantiles.values() for value in one)]
        sound = {
            "weights": isinstance(self.weights, str) and isinstance(self.novelty, str | None),
            "images": all(_is_whole(value) for value in (self.images, self.samples, self.seed)),
            "accuracy": all(value is None or (_is_number(value) and 0 <= value <= 1) for value in shares),
            "scores": all(len(one.interval) == 2 for one in self.scores.values()),
            "temperature": _is_number(self.temperature) and self.temperature > 0,
            "quantiles": all(value is None or _is_number(value) for value in numbers) and all(self.quantiles.values()),
        }
        for name, holds in sound.items():
            if not holds:
                raise ValueError(f"{name} makes no sense")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


@dataclass(frozen=True, eq=False)
class Validation:
    """Predictions of the validation images.

    Attributes:
        prediction: by the run's best weights, 10 weight draws and seed 0.
        labels: (N,) the true classes.
        examples: (K, C, H, W) bytes: some of the images, to show.
        example_index: (K,) which of the N they are.
        calibration: what was fitted to them.
    """

    prediction: Prediction
    labels: Tensor
    examples: Tensor
    example_index: Tensor
    calibration: Calibration

    def __len__(self) -> int:
        """The number of images."""
        return len(self.labels)

    def tensors(self) -> dict[str, Tensor]:
        """What validation.safetensors holds."""
        values = {field.name: getattr(self.prediction, field.name) for field in fields(self.prediction)}
        own = {name: getattr(self, name) for name in _OWN}
        return own | {f"{_PREFIX}{name}": value for name, value in values.items() if isinstance(value, Tensor)}

    @classmethod
    def of(
        cls, tensors: Mapping[str, Tensor], samples: Any, calibration: Calibration, data: DataDescription
    ) -> Validation:
        """From what the two files hold; a ValueError says what makes no sense."""
        values = {key.removeprefix(_PREFIX): tensor for key, tensor in tensors.items() if key.startswith(_PREFIX)}
        prediction = stored_prediction(values, samples, len(data.class_names))
        if not len(prediction):
            raise ValueError("it has no images")
        own = {name: tensors[name] for name in _OWN}
        check_labels(own["labels"], len(prediction), len(data.class_names))
        check_labels(own["example_index"], len(own["examples"]), len(prediction))
        shape = (len(own["examples"]), data.channels, data.size, data.size)
        if own["examples"].dtype is not torch.uint8 or own["examples"].shape != shape:
            raise ValueError(f"its examples are {own['examples'].dtype} {tuple(own['examples'].shape)}")
        return cls(prediction, **own, calibration=calibration)


def stored_prediction(tensors: Mapping[str, Tensor], samples: Any, classes: int) -> Prediction:
    """A prediction from its tensors by their names; a ValueError if one is unknown, of another shape or not finite."""
    images = len(tensors["probs"])
    for name, tensor in tensors.items():
        if name not in _PER_CLASS + _PER_IMAGE:
            raise ValueError(f"it has the unknown tensor {name[:50]!r}")
        shape = (images, classes) if name in _PER_CLASS else (images,)
        if tensor.shape != shape or tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, but must be float32 {shape}")
        # One draw or one pair leaves nothing to estimate the unbiased one from.
        if not name.startswith("epistemic_unbiased") and not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} has values that are not finite")
    if not _is_whole(samples) or not samples:
        raise ValueError(f"it is of {reprlib.repr(samples)} samples")
    return Prediction(**tensors, samples=samples)  # type: ignore[arg-type]


def check_labels(labels: Tensor, images: int, classes: int) -> None:
    """A ValueError if the labels of so many images are not whole numbers below the number of classes."""
    if labels.shape != (images,) or labels.dtype is not torch.int64:
        raise ValueError(f"its labels are {labels.dtype} {tuple(labels.shape)}, but must be int64 ({images},)")
    if images and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(f"its labels must be 0 to {classes - 1}")


_PER_CLASS = ("probs", "aleatoric_per_class", "epistemic_per_class", "epistemic_unbiased_per_class")
_PER_IMAGE = ("entropy", "mutual_information", "novelty")
_OWN = ("labels", "examples", "example_index")
_PREFIX = "prediction/"
