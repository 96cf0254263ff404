"""The validation record of a run: what its network predicts for the images that training held out.

    validation.safetensors   labels and predictions of these images, and a few of the images to show
    calibration.json         what was fitted to them: see `Calibration`

Training writes both at its end, so that later commands need no images: calibrated probabilities, sets of classes,
comparisons with usual images and decisions all come from here. A record belongs to the weights that made it and to the
novelty that they had; after further training, or once novelty was fitted again, it does not count any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from dubito.heads.split import Prediction

__all__ = ["Calibration", "Score", "Validation"]


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
        return cls(**{**content, "scores": scores})


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
    def of(cls, tensors: Mapping[str, Tensor], samples: int, calibration: Calibration) -> Validation:
        """From what the two files hold."""
        values: dict[str, Any] = {
            key.removeprefix(_PREFIX): tensor for key, tensor in tensors.items() if key.startswith(_PREFIX)
        }
        own = {name: tensors[name] for name in _OWN}
        return cls(Prediction(**values, samples=samples), **own, calibration=calibration)


_OWN = ("labels", "examples", "example_index")
_PREFIX = "prediction/"
