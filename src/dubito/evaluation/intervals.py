"""Confidence intervals that cover the images and the draws.

A metric depends on two random things: which test images were collected, and which weights were drawn. All images
share the draws, so an interval that resamples images alone is too narrow: it calls a network different from itself
under another seed. The intervals here cover both. What they cover is the expected value of the metric over test sets
of this size and over seeds, with this number of draws.

**The variance.** Write a metric of N images and P units of draws as

    theta = expected value + a(images) + b(draws) + c(images, draws),

a and b being the parts that depend on one of the two alone, and c their interaction. Resampling the images with the
draws as they are gives var(a) + var(c): the bootstrap. Leaving out the units of draws one by one, with the images as
they are, gives var(b) + var(c): the jackknife. The sum of both would count the interaction twice, and for accuracy the
interaction is nearly everything: another seed changes the labels of a few images, some to the better and some to the
worse. So the interaction is taken off the jackknife. It is known from the bootstrap too: the influence of a unit on the
metric varies from resample to resample by exactly the noise that finitely many images add to it. In all

    variance = var over resamples of theta + sum_j (e_j^2 - var over resamples of e_j),

with e_j the influence of unit j. With equal units e_j^2 = (P - 1) / P * (theta_j - mean of all theta_j)^2, where
theta_j is the metric without unit j; units of several sizes are weighted as by Busing, Meijer & van der Leeden (1999).

**The units** are antithetic pairs, draws 2i and 2i + 1: the two depend on each other, pairs do not. An odd last
draw is a unit of its own. In an ensemble the members are fixed and the draws of each are a stratum of their own.

**Why no bootstrap of the draws.** Metrics of a mean over T draws (NLL, Brier score) and of their variance (epistemic
uncertainty) are biased in T. A resample of P pairs has only about 0.63 P different ones and shifts them, by more
than the width of the interval. The jackknife compares values that all have P - 1 units, so the bias cancels.

**The quantile.** The jackknife variance of few units is itself uncertain, so the interval uses Student's t with
Satterthwaite's degrees of freedom: P - 1 where the draws decide, a normal quantile where the images do. In calibration
errors, sums of absolute values, the interaction is large and uncertain too: there the degrees of freedom are those of
the whole jackknife variance.

`python -m benchmarks.intervals` measures how often the intervals cover.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dubito.errors import OptionError
from dubito.evaluation.bootstrap import CALIBRATION_ERRORS, Sampled, interval

LEVEL = 0.95
INTERACTION_RESAMPLES = 100
"""Resamples of the images for the interaction: a variance, which needs fewer than a percentile does."""


@dataclass(frozen=True)
class Units:
    """The draws of one member of an ensemble, or of a single network, as units that are independent of each other.

    Attributes:
        draws: the numbers of all its draws.
        units: the numbers of the draws of each unit.
    """

    draws: tuple[int, ...]
    units: tuple[tuple[int, ...], ...]


def units_of(members: Sequence[int]) -> tuple[Units, ...]:
    """The draws of each member in antithetic pairs; `members` are their numbers of draws, in the order of the draws.

    A member with fewer than two units says nothing about the variance of its draws, and is left out.

    >>> units_of([4])[0].units, units_of([3, 1])[0].units
    (((0, 1), (2, 3)), ((0, 1), (2,)))
    """
    found, start = [], 0
    for count in members:
        draws = tuple(range(start, start + count))
        pairs = tuple(draws[i : i + 2] for i in range(0, count, 2))
        start += count
        if len(pairs) > 1:
            found.append(Units(draws, pairs))
    return tuple(found)


class Variances(NamedTuple):
    """What the draws of a stratum contribute to the variance of a statistic."""

    jackknife: float
    """The variance over draws, on these images: main effect and interaction."""
    interaction: float
    """What finitely many images add to it."""
    freedom: int
    """The degrees of freedom of the first."""

    @property
    def main(self) -> float:
        """The variance of what the draws do to all images alike; the estimate may be below 0."""
        return self.jackknife - self.interaction


@dataclass(frozen=True, eq=False)
class DrawInfluence:
    """The influence of each unit of draws on M statistics, on all images and on R resamples of them.

    Attributes:
        values: (P, M) e_j; the sum of their squares is the jackknife variance.
        resampled: (P, M, R) the same on each resample of the images.
    """

    values: Tensor
    resampled: Tensor

    @classmethod
    def of(cls, units: Units, whole: tuple[Tensor, Tensor], without: Sequence[tuple[Tensor, Tensor]]) -> DrawInfluence:
        """From the statistics (M,) and their replicates (M, R), with all draws and without each unit.

        With unit j of m_j of T draws left out, the pseudo-value is h_j theta - (h_j - 1) theta_j, h_j = T / m_j.
        """
        values, resampled = (
            _influences(units, part, torch.stack([found[index] for found in without]))
            for index, part in enumerate(whole)
        )
        return cls(values, resampled)

    def __sub__(self, other: DrawInfluence) -> DrawInfluence:
        """The influence on a difference, where unit j of both has the same random numbers."""
        return DrawInfluence(self.values - other.values, self.resampled - other.resampled)

    def variances(self, index: int) -> Variances:
        """Of one of the statistics."""
        values, resampled = self.values[:, index], self.resampled[:, index]
        around = resampled - resampled.nanmean(1, keepdim=True)
        interaction = around.square().nanmean(1).nan_to_num(0.0).sum()
        return Variances(float(values.square().sum()), float(interaction), len(values) - 1)


def _influences(units: Units, whole: Tensor, without: Tensor) -> Tensor:
    """(P, ...) pseudo-values around their weighted mean, scaled so that their squares sum to the variance."""
    count = len(units.units)
    shares = torch.tensor([len(unit) / len(units.draws) for unit in units.units], dtype=torch.float64)
    shares = shares.view(count, *(1,) * whole.dim())
    pseudo = whole / shares - (1 / shares - 1) * without
    return (pseudo - (shares * pseudo).sum(0)) / (count * (1 / shares - 1)).sqrt()


@dataclass(frozen=True, eq=False)
class Measurement:
    """Statistics with what their intervals are made of; see the top of this file.

    Attributes:
        names: of the statistics.
        estimates: (M,) of all images and draws.
        replicates: (M, B) of resamples of the images.
        influences: of the units of draws, for each stratum; none for a network without draws, or with too few to
            tell their variance: its intervals cover the images alone.
        is_difference: whether these are differences between two networks, which may be negative.
    """

    names: list[str]
    estimates: Tensor
    replicates: Tensor
    influences: tuple[DrawInfluence, ...] = ()
    is_difference: bool = False

    def __getitem__(self, name: str) -> float:
        """The estimate of a statistic."""
        return float(self.estimates[self.names.index(name)])

    def minus(self, other: Measurement, *, same_draws: bool) -> Measurement:
        """By how much each statistic exceeds that of another network on the same images, resampled alike.

        With `same_draws` unit j of both has the same random numbers (one seed, as many draws), so that what they have
        in common cancels. Otherwise the draws are independent, and their variances add up.
        """
        shapes = [[len(influence.values) for influence in part.influences] for part in (self, other)]
        influences = (*self.influences, *other.influences)
        if same_draws and shapes[0] == shapes[1]:
            influences = tuple(a - b for a, b in zip(self.influences, other.influences, strict=True))
        return Measurement(
            self.names,
            self.estimates - other.estimates,
            self.replicates - other.replicates,
            influences,
            is_difference=True,
        )

    def interval(self, name: str, level: float = LEVEL) -> tuple[float, float]:
        """Of a statistic, over images and draws."""
        index = self.names.index(name)
        least, most = (-math.inf, math.inf) if self.is_difference else _range_of(name)
        return covering(
            self.replicates[index],
            float(self.estimates[index]),
            [influence.variances(index) for influence in self.influences],
            unshift=name in CALIBRATION_ERRORS,
            least=least,
            most=most,
            level=level,
        )


def measure(
    statistics: Callable[[Sequence[int]], Sampled], members: Sequence[int], bootstrap: int = 1000, seed: int = 0
) -> Measurement:
    """Statistics with their intervals.

    Args:
        statistics: gives them for predictions without some of the draws, whose numbers it gets; `()` leaves out none.
        members: the number of draws of each member of an ensemble; of a single network, one number; see `units_of`.
        bootstrap: resamples of the images.
        seed: of the resamples.
    """
    whole = statistics(())
    few = min(bootstrap, INTERACTION_RESAMPLES)
    base = whole.estimates(), whole.replicates(few, seed).double()
    influences = []
    for stratum in units_of(members):
        without = [statistics(unit) for unit in stratum.units]
        found = [(part.estimates(), part.replicates(few, seed).double()) for part in without]
        influences.append(DrawInfluence.of(stratum, base, found))
    return Measurement(whole.names, base[0], whole.replicates(bootstrap, seed), tuple(influences))


def _range_of(name: str) -> tuple[float, float]:
    is_share = name in ("accuracy", "top5_accuracy", *CALIBRATION_ERRORS) or name.endswith(("auroc", "aurc"))
    return 0.0, 1.0 if is_share else math.inf


def covering(
    replicates: Tensor,
    estimate: float,
    draws: Sequence[Variances] = (),
    *,
    unshift: bool = False,
    least: float = -math.inf,
    most: float = math.inf,
    level: float = LEVEL,
) -> tuple[float, float]:
    """The interval of one statistic over images and draws.

    The side of the draws is added in quadrature to each side of the percentile interval over images.

    Args:
        replicates: (B,) the statistic of resamples of the images.
        estimate: that of all images.
        draws: of each stratum; none for a network without draws, whose interval covers the images alone.
        unshift: move the percentiles back by the mean shift of the replicates, as in
            :func:`dubito.evaluation.bootstrap.interval`.
        least: the smallest possible value.
        most: the largest possible value.
        level: how often the interval is to cover.

    >>> means = torch.linspace(-1, 1, 1001)
    >>> [round(edge, 3) for edge in covering(means, 0.0)]
    [-0.95, 0.95]
    >>> [round(edge, 3) for edge in covering(means, 0.0, [Variances(jackknife=1.0, interaction=0.0, freedom=4)])]
    [-2.619, 2.619]
    """
    low, high = interval(replicates, level, estimate if unshift else None, least)
    main = max(sum(part.main for part in draws), 0.0)
    if math.isnan(low) or math.isnan(estimate) or main == 0:
        return low, high
    images = float(replicates[~replicates.isnan()].double().var(unbiased=False))
    parts = [part.jackknife if unshift else max(part.main, 0.0) for part in draws]
    doubt = sum(part**2 / freedom for part, (_, _, freedom) in zip(parts, draws, strict=True))
    normal = student_quantile(level, math.inf)
    scale = student_quantile(level, (images + main) ** 2 / doubt) / normal
    below, above = (
        scale * math.hypot(max(side, 0.0), normal * math.sqrt(main)) for side in (estimate - low, high - estimate)
    )
    return max(estimate - below, least), min(estimate + above, most)


def student_quantile(level: float, freedom: float) -> float:
    """Where the middle `level` of Student's t distribution ends.

    With t = sqrt(nu) tan(angle) the density is proportional to cos(angle)^(nu - 1), which is integrated numerically.

    >>> round(student_quantile(0.95, 4), 3), round(student_quantile(0.95, float("inf")), 3)
    (2.776, 1.96)
    """
    if not 0 < level < 1:
        raise OptionError(f"level is {level}, but must lie between 0 and 1.")
    if freedom > 1000:
        return math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))
    angles = torch.linspace(0, math.pi / 2, 100_001, dtype=torch.float64)
    mass = torch.cumulative_trapezoid(angles.cos().pow(freedom - 1), angles)
    place = int(torch.searchsorted(mass, level * mass[-1]))
    return math.sqrt(freedom) * math.tan(float(angles[place + 1]))
