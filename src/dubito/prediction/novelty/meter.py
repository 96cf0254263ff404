"""A meter: the draws of a network together with the novelty that was fitted to their features."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dubito.prediction.novelty.layers import Observed
from dubito.prediction.novelty.novelty import Novelty

if TYPE_CHECKING:
    from dubito.prediction.draws import WeightDraws

__all__ = ["Meter"]


class Meter:
    """Measures the novelty of images in the features of two draws; threads can share it.

    Attributes:
        draws: they make the features; a prediction by the same draws has them already.
        novelty: what was fitted.
    """

    def __init__(self, draws: WeightDraws, novelty: Novelty, device: torch.device) -> None:
        self.draws = draws
        self.novelty = replace(novelty, score=novelty.score.to(device))
        draws.watch(novelty.layers)

    def __call__(self, images: Tensor, seen: list[Observed]) -> Tensor:
        """The novelty (N,) of images; `seen` may hold what a prediction by the meter's draws saw of them."""
        return self.novelty(seen[0] if seen else self.draws.observed(images))
