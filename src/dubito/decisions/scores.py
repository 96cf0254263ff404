"""Scores by which a prediction can be doubted: the larger, the more doubtful.

A new score is a function of a prediction and a line in `SCORES`. Rules choose among those that a prediction has: plain
probabilities lack those that compare draws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubito.errors import NonFiniteError, OptionError, ShapeError, unknown
from dubito.heads.split import Prediction, decompose

Predicted: TypeAlias = Any
"""A :class:`dubito.Prediction`, or probabilities (N, C): a tensor, an array or nested lists."""


def lack_of_confidence(prediction: Prediction) -> Tensor:
    """1 - confidence, as the sum of all other probabilities: exact even where the confidence rounds to 1."""
    return prediction.probs.scatter(1, prediction.label.unsqueeze(1), 0.0).sum(1)


def lack_of_margin(prediction: Prediction) -> Tensor:
    """1 - (the largest probability - the second largest)."""
    others = prediction.probs.scatter(1, prediction.label.unsqueeze(1), 0.0)
    return others.sum(1) + others.amax(1)


SCORES: dict[str, Callable[[Prediction], Tensor | None]] = {
    "confidence": lack_of_confidence,
    "entropy": lambda prediction: prediction.entropy,
    "margin": lack_of_margin,
    "aleatoric": lambda prediction: prediction.aleatoric,
    "epistemic": lambda prediction: prediction.epistemic,
    "mutual_information": lambda prediction: prediction.mutual_information,
    "novelty": lambda prediction: prediction.novelty,
}
"""Every score by name; where two do equally well, the one that comes first is taken."""
DRAWN = ("epistemic", "mutual_information")
"""The scores that compare draws: 0 for a single one."""


def as_prediction(predicted: Predicted) -> Prediction:
    """A prediction as it is; probabilities (N, C) of any kind as the prediction of a single draw."""
    if isinstance(predicted, Prediction):
        if predicted.probs.dim() != 2:
            raise ShapeError(
                f"The prediction has probabilities of shape {tuple(predicted.probs.shape)}, but decisions are about "
                "images with one class each: (N, C)."
            )
        return predicted
    try:
        probs = torch.as_tensor(predicted)
    except (TypeError, ValueError, RuntimeError):
        raise ShapeError(
            f"The prediction is a {type(predicted).__name__}, but must be a dubito.Prediction or probabilities (N, C)."
        ) from None
    if probs.dim() != 2 or not probs.is_floating_point() or probs.shape[1] < 2:
        raise ShapeError(
            f"The probabilities have shape {tuple(probs.shape)} and type {probs.dtype}, but must be floating point of "
            "shape (N, C) with at least two classes."
        )
    return decompose(probs.detach().cpu().unsqueeze(0))


def score(prediction: Prediction, name: str) -> NDArray[np.float64]:
    """One score of every image."""
    if name not in SCORES:
        raise OptionError(unknown("score", name, SCORES))
    values = SCORES[name](prediction)
    if values is None or not has(prediction, name):
        what = f"no {name}" if values is None else f"one draw, which has no {name}"
        raise OptionError(f"The score is {name!r}, but the prediction has {what}: use another score.")
    return values.detach().cpu().double().numpy()


def scores(prediction: Prediction, only: str | None = None) -> dict[str, NDArray[np.float64]]:
    """The scores that a prediction has, by name; or only the one that is asked for."""
    names = [name for name in SCORES if has(prediction, name)] if only is None else [only]
    found = {name: score(prediction, name) for name in names}
    for name, values in found.items():
        if not np.isfinite(values).all():
            raise NonFiniteError(f"The {name} of some images is NaN or infinite, so no rule can be fitted to it.")
    return found


def has(prediction: Prediction, name: str) -> bool:
    """Whether a prediction has a score of that name."""
    if name == "novelty":
        return prediction.novelty is not None
    return prediction.samples > 1 or name not in DRAWN
