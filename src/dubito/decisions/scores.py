"""The scores (`dubito.scores`) of a prediction, or of plain probabilities, which lack those that compare draws."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from dubito.errors import NonFiniteError, OptionError, ShapeError, unknown
from dubito.heads.split import Prediction, decompose, require_probabilities
from dubito.scores import DRAWN, SCORES

Predicted: TypeAlias = Any
"""A :class:`dubito.Prediction`, or probabilities (N, C): a tensor, an array or nested lists."""


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
    require_probabilities(probs, 1, "(N, C)")
    return decompose(probs.detach().cpu().unsqueeze(0))


def as_labels(prediction: Prediction, labels: Any) -> NDArray[np.int64]:
    """The true class of each image of a prediction as an array; an error if they are no class numbers."""
    truth = np.asarray(labels.detach().cpu() if isinstance(labels, torch.Tensor) else labels)
    count, classes = prediction.probs.shape
    if truth.shape != (count,) or (count and truth.dtype.kind not in "iu"):
        raise ShapeError(
            f"labels has shape {truth.shape} and type {truth.dtype}, but must be class numbers of shape ({count},), "
            "one for each image."
        )
    if count and (truth.min() < 0 or truth.max() >= classes):
        raise ShapeError(f"labels goes from {truth.min()} to {truth.max()}, but must lie in 0 ... {classes - 1}.")
    return truth.astype(np.int64)


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
