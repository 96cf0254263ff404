"""The bootstrap over images: they are drawn with replacement, and the statistics of many resamples computed at once.

A resample of N images is a vector of N multinomial weights, so a mean over it is a product with the matrix of weights,
and a rank statistic comes from running sums of the weights in sorted order. Weights are made in blocks of shape
(B, N), a row for each resample.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dubito.errors import OptionError, ShapeError

CELLS = 1_250_000
"""Weights in memory at once, 5 MB: those of 125 resamples of 10,000 images."""


def resamples(count: int, bootstrap: int, seed: int = 0) -> Iterator[Tensor]:
    """Blocks (B, count) of multinomial weights, each row one resample of `count` images, `bootstrap` in all.

    The same count, number and seed give the same resamples: statistics of the same images are then paired.

    >>> [tuple(weights.shape) for weights in resamples(10000, 200)], next(resamples(4, 200)).sum(1).unique()
    ([(125, 10000), (75, 10000)], tensor([4.]))
    """
    if bootstrap < 1:
        raise OptionError(f"bootstrap is {bootstrap}, but an interval needs at least 1 resample.")
    if count < 1:
        raise ShapeError("There are no images, but a bootstrap needs at least 1.")
    generator = torch.Generator().manual_seed(seed)
    block = max(CELLS // count, 1)
    for start in range(0, bootstrap, block):
        width = min(block, bootstrap - start)
        drawn = torch.randint(count, (width, count), generator=generator, dtype=torch.int32)
        cells = drawn.add_(torch.arange(width, dtype=torch.int32).mul_(count).unsqueeze(1)).flatten()
        yield torch.bincount(cells, minlength=width * count).view(width, count).float()


def replicate(statistic: Callable[[Tensor], Tensor], count: int, bootstrap: int, seed: int = 0) -> Tensor:
    """A statistic of every resample: `statistic` takes weights (B, count) and gives (..., B)."""
    return torch.cat([statistic(weights) for weights in resamples(count, bootstrap, seed)], -1)


class Sampled(ABC):
    """Some statistics of a set of images, also of weighted images.

    Attributes:
        names: of the statistics.
        count: how many images there are.
    """

    names: list[str]
    count: int

    @abstractmethod
    def values(self, weights: Tensor) -> Tensor:
        """(statistics, B) for weights (B, count), in their precision."""

    def estimates(self) -> Tensor:
        """(statistics,) of all images, in float64."""
        return self.values(torch.ones(1, self.count, dtype=torch.float64)).squeeze(1)

    def replicates(self, bootstrap: int, seed: int) -> Tensor:
        """(statistics, bootstrap) of resamples; those of two predictions of the same images are paired."""
        return replicate(self.values, self.count, bootstrap, seed)


def interval(
    replicates: Tensor, level: float = 0.95, estimate: float | None = None, least: float = 0.0
) -> tuple[float, float]:
    """The percentile interval of a statistic's replicates, over images alone; NaN if no resample has a value.

    Resampling shifts sums of absolute values, such as a calibration error, upwards. With `estimate`, the statistic of
    the images themselves, the interval is moved back by the mean of that shift, but not below `least`. It then covers
    the expected value with this number of images. That lies above the value with infinitely many images: the
    calibration error of a perfectly calibrated network is not 0.

    >>> [round(edge, 6) for edge in interval(torch.arange(1001.0))]
    [25.0, 975.0]
    """
    if not 0 < level < 1:
        raise OptionError(f"level is {level}, but must lie between 0 and 1.")
    known = replicates[~replicates.isnan()].double()
    if not len(known):
        return float("nan"), float("nan")
    edges = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = known.quantile(edges).tolist()
    if estimate is None:
        return low, high
    shift = float(known.mean()) - estimate
    return max(low - shift, least), max(high - shift, least)
