"""Bootstrap confidence intervals: images are drawn with replacement, and statistics of all resamples computed at once.

A resample of N images is a vector of N multinomial weights, so a mean over it is a product with the matrix of weights,
and a rank statistic comes from running sums of the weights in sorted order. Weights are made in blocks of shape
(B, N), a row for each resample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dubito.errors import OptionError, ShapeError

__all__ = ["Ranking", "bootstrap_means", "interval", "replicate", "resamples"]

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


def bootstrap_means(values: Tensor, bootstrap: int = 1000, seed: int = 0) -> Tensor:
    """Means of the columns of `values` (N, K) over each resample of its rows: (K, bootstrap).

    >>> bootstrap_means(torch.ones(5, 2), bootstrap=3)
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """
    if values.dim() != 2:
        raise ShapeError(f"values has shape {tuple(values.shape)}, but must be (images, statistics).")
    columns = values.float().T / len(values)
    return replicate(lambda weights: columns @ weights.T, len(values), bootstrap, seed)


def interval(
    replicates: Tensor, level: float = 0.95, estimate: float | None = None, least: float = 0.0
) -> tuple[float, float]:
    """The percentile interval of a statistic's replicates; NaN where a resample has no value.

    Resampling pushes sums of absolute values, such as a calibration error, upwards, and its difference from another
    network's to where that one's bins are fuller. With `estimate`, the statistic of the images themselves, the interval
    is moved back by the mean of that shift, but not below `least`. What it then covers is the statistic's expectation
    with so many images, which itself lies above that of infinitely many: a perfectly calibrated network's is not 0.

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


class Ranking:
    """Images in the order of a score, for rank statistics of weighted images; equal scores share their rank.

    >>> ranking = Ranking(torch.tensor([0.1, 0.4, 0.4, 0.9]), positive=torch.tensor([False, False, True, True]))
    >>> ranking.statistics(torch.ones(1, 4))
    (tensor([0.8750]), tensor([0.2917]))
    """

    def __init__(self, scores: Tensor, positive: Tensor) -> None:
        if scores.dim() != 1 or scores.shape != positive.shape or not len(scores):
            raise ShapeError(
                f"The scores have shape {tuple(scores.shape)} and what they are to find {tuple(positive.shape)}, but "
                "both must be (N,) with at least one image."
            )
        if bool(scores.isnan().any()):
            raise ShapeError("The scores contain NaN, which has no rank.")
        ordered, self.order = scores.detach().cpu().sort(stable=True)
        self.positive = positive.bool()[self.order]
        last = torch.ones(len(scores), dtype=torch.bool)
        last[:-1] = ordered[1:] != ordered[:-1]
        self.ends = last.nonzero().squeeze(1)
        """Position of the last image of every distinct score."""
        self.ties = len(self.ends) < len(scores)
        self._places = self.positive.nonzero().squeeze(1)
        group = (torch.cumsum(last, 0) - last.long())[self._places]
        """The distinct score of every positive image."""
        self._group = group
        self._end = self.ends[group] + 1
        self._start = torch.cat([torch.zeros(1, dtype=torch.long), self.ends + 1])[group]
        passed = torch.cat([torch.zeros(1, dtype=torch.long), self.positive.long().cumsum(0)])
        self._positive_end, self._positive_start = passed[self._end], passed[self._start]

    def statistics(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """AUROC and area under the risk-coverage curve, each (B,), of images with weights (B, N).

        AUROC is the probability that a positive image has the higher score, ties counting one half, and NaN where all
        images or none are positive. For the area, positive images are the mistakes and the score is the uncertainty.
        """
        weights = weights.index_select(1, self.order)
        found = weights.index_select(1, self._places)
        total = _running_sums(weights)
        return self._auroc(found, total), self._area(weights, found, total)

    def _auroc(self, found: Tensor, total: Tensor) -> Tensor:
        positive = _running_sums(found)
        below = total.index_select(1, self._start)
        if self.ties:
            below -= positive.index_select(1, self._positive_start)
            upto = total.index_select(1, self._end) - positive.index_select(1, self._positive_end)
            below = (below + upto) / 2
        else:
            below -= positive[:, :-1]
        negatives = total[:, -1] - positive[:, -1]
        # Divided first: products of counts would not be exact in single precision.
        return (below / negatives.unsqueeze(1) * found).sum(1) / positive[:, -1]

    def _area(self, weights: Tensor, found: Tensor, total: Tensor) -> Tensor:
        """Sum over thresholds of weight * mistakes / accepted, mistake by mistake: each counts from its own on."""
        accepted = total[:, 1:]
        if self.ties:
            accepted = accepted.index_select(1, self.ends)
            weights = torch.diff(accepted, prepend=torch.zeros_like(accepted[:, :1]))
        # Where nothing is accepted yet the weights are 0 too.
        passed = _running_sums(weights / accepted.clamp_min(1e-30))
        later = passed[:, -1:] - passed.index_select(1, self._group)
        return (found * later).sum(1) / total[:, -1]


def _running_sums(values: Tensor) -> Tensor:
    """Sums along the rows, with a 0 before the first."""
    sums = values.new_empty(len(values), values.shape[1] + 1)
    sums[:, 0] = 0
    torch.cumsum(values, 1, out=sums[:, 1:])
    return sums
