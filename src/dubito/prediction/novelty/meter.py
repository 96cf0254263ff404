"""A meter: a network together with the novelty that was fitted for it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from dubito.prediction.novelty.layers import Observer
from dubito.prediction.novelty.novelty import Novelty
from dubito.prediction.workers import Workers

__all__ = ["Meter"]


class Meter:
    """Measures the novelty of images by one pass of a plain network; threads can share it."""

    def __init__(self, network: nn.Module, novelty: Novelty, device: torch.device) -> None:
        self._network = network
        self.novelty = replace(novelty, score=novelty.score.to(device))
        self._workers: Workers[Observer] = Workers()
        with self._workers.one(self._make):
            pass  # a network without these layers is refused now

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The network's outputs, and the novelty (N,) of images."""
        with self._workers.one(self._make) as observer:
            seen = observer(images)
        return seen.outputs, self.novelty(seen)

    def _make(self) -> Observer:
        return Observer(self._network, self.novelty.layers)
