"""Noise on the pixels of test images, and what it does to a network's uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dubito.data import Images, normalize
from dubito.data.batches import key_seed
from dubito.evaluation import metrics
from dubito.evaluation.bootstrap import MEANS, MeanUncertainties
from dubito.evaluation.intervals import measure
from dubito.evaluation.predictions import Evaluated
from dubito.runs.description import DataDescription

BLOCK = 64
"""Images that share a generator of noise."""


@dataclass(frozen=True)
class NoiseLevel:
    """Means over test images to whose pixels, in [0, 1], `gamma` times standard normal noise was added.

    The 95 % intervals cover images and draws.
    """

    gamma: float
    accuracy: float
    aleatoric: float
    epistemic: float
    entropy: float
    mutual_information: float
    aleatoric_interval: tuple[float, float]
    epistemic_interval: tuple[float, float]

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> NoiseLevel:
        """From what a JSON file holds."""
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
        return cls(**values)


def noise_level(gamma: float, part: Evaluated, bootstrap: int, seed: int) -> NoiseLevel:
    """Accuracy and mean uncertainties of noisy images, with intervals of aleatoric and epistemic uncertainty."""
    found = measure(lambda left_out: MeanUncertainties(part.without(left_out)), part.units, bootstrap, seed)
    return NoiseLevel(
        gamma=gamma,
        accuracy=metrics.accuracy(part.prediction.probs, part.truth),
        **{name: found[name] for name in MEANS},
        aleatoric_interval=found.interval("aleatoric"),
        epistemic_interval=found.interval("epistemic"),
    )


def noisy_batches(
    images: Images,
    data: DataDescription,
    gamma: float,
    size: int,
    seed: int,
    advance: Callable[[int], None] = lambda count: None,
    first: int = 0,
) -> Iterator[Tensor]:
    """Batches as a network takes them, with noise of standard deviation `gamma` on pixels in [0, 1].

    The sum is not clipped. All levels and all members of an ensemble get the same noise, so that a difference between
    two levels is that of the level alone. It is a function of the seed and of an image's place, which `first` is for
    the first of these images: the size of batches does not change it. `advance` is told how many images are done.
    """
    for part in images.split(size):
        pixels = part / 255 + gamma * _noise(part, first, seed) if gamma > 0 else part
        yield normalize(pixels, data.mean, data.std)
        advance(len(part))
        first += len(part)


def _noise(part: Tensor, first: int, seed: int) -> Tensor:
    """Standard normal noise for images of which the first has that place, made in whole blocks."""
    blocks = range(first // BLOCK, (first + len(part) - 1) // BLOCK + 1)
    generators = (torch.Generator().manual_seed(key_seed(seed, block)) for block in blocks)
    noise = torch.cat([torch.randn(BLOCK, *part.shape[1:], generator=generator) for generator in generators])
    return noise[first % BLOCK :][: len(part)]
