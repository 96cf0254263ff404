"""The bootstrap over images: they are drawn with replacement, and the statistics of many resamples computed at once.

A resample of N images is a vector of N multinomial weights, so a mean over it is a product with the matrix of weights,
and a rank statistic comes from running sums of the weights in sorted order. Weights are made in blocks of shape
(B, N), a row for each resample.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito.errors import OptionError, ShapeError
from dubito.evaluation import metrics
from dubito.prediction import Prediction

CALIBRATION_ERRORS = ("ece", "ece_equal_mass")
MEANS = metrics.UNCERTAINTIES[:-1]
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


# ---- every statistic that has an interval --------------------------------------------------------------------------


class Statistics(Sampled):
    """Every metric of labelled predictions.

    How well an uncertainty finds mistakes is named ``errors/UNCERTAINTY/auroc`` and ``errors/UNCERTAINTY/aurc``. The
    bins of the calibration errors stay those of all images in every resample.

    Args:
        prediction: of the images.
        labels: (N,) their true classes.
        ranked: the uncertainties that are to find mistakes; they take most of the time.
    """

    def __init__(self, prediction: Prediction, labels: Tensor, ranked: Sequence[str] = metrics.UNCERTAINTIES) -> None:
        self.count = len(labels)
        self.scores = metrics.uncertainties(prediction)
        self.errors = ~metrics.hits(prediction.probs, labels)
        probs = prediction.probs
        shares = {"accuracy": ~self.errors}
        if probs.shape[1] > 5:
            shares["top5_accuracy"] = metrics.top_k_hits(probs, labels, 5)
        shares["nll"] = metrics.log_losses(probs, labels)
        shares["brier"] = metrics.squared_errors(probs, labels)
        shares |= {name: self.scores[name] for name in MEANS}
        self._shares = torch.stack([values.double() for values in shares.values()])
        gap = prediction.confidence.double() - (~self.errors).double()
        self._gaps = [
            F.one_hot(metrics.bin_of(prediction.confidence, equal_mass=equal), metrics.BINS) * gap.unsqueeze(1)
            for equal in (False, True)
        ]
        self._rankings = [metrics.Ranking(self.scores[name], self.errors) for name in ranked]
        found = [f"errors/{name}/{what}" for name in ranked for what in ("auroc", "aurc")]
        self.names = [*shares, *CALIBRATION_ERRORS, *found]

    def values(self, weights: Tensor) -> Tensor:
        """(statistics, B) for weights (B, N)."""
        means = self._shares.to(weights.dtype) @ weights.T / self.count
        errors = [(weights @ gap.to(weights.dtype)).abs().sum(1) / self.count for gap in self._gaps]
        ranked = [value for ranking in self._rankings for value in ranking.statistics(weights)]
        return torch.cat([means, torch.stack([*errors, *ranked])])


class Separations(Sampled):
    """How well each uncertainty tells the images of another data set from the network's own: AUROC."""

    def __init__(self, own: Prediction, other: Prediction) -> None:
        self.count = len(own) + len(other)
        positive = torch.arange(self.count) >= len(own)
        others = metrics.uncertainties(other)
        self._rankings = {
            name: metrics.Ranking(torch.cat([score, others[name]]), positive)
            for name, score in metrics.uncertainties(own).items()
        }
        self.names = [f"{name}/auroc" for name in self._rankings]

    def values(self, weights: Tensor) -> Tensor:
        """(uncertainties, B) for weights (B, N)."""
        return torch.stack([ranking.statistics(weights)[0] for ranking in self._rankings.values()])


class MeanUncertainties(Sampled):
    """The mean uncertainties of images."""

    def __init__(self, prediction: Prediction) -> None:
        self.count = len(prediction)
        self.names = list(MEANS)
        self._columns = torch.stack([getattr(prediction, name).double() for name in MEANS])

    def values(self, weights: Tensor) -> Tensor:
        """(uncertainties, B) for weights (B, N)."""
        return self._columns.to(weights.dtype) @ weights.T / self.count
