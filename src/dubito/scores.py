"""Scores by which a prediction can be doubted: the larger, the more doubtful.

A new score is a function of a prediction and a line in `SCORES`. Nothing here imports torch: help lists the names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from dubito.heads.split import Prediction


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
