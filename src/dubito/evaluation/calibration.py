"""Post-hoc calibration on images that training has not seen: temperature scaling and conformal prediction sets.

- Temperature scaling sharpens or softens all probabilities alike: p^(1/T), renormalised, with the T of lowest NLL.
- A conformal set holds every class whose score is at most a threshold, the smallest score that enough calibration
  images have for their true class: of n images the ceil((n + 1) * coverage)-th. If calibration and test images are
  exchangeable the true class is then inside with at least the requested probability, however bad the network.

  - ``lac`` (least ambiguous sets; Sadinle et al. 2019): score 1 - p_c. The smallest sets on average.
  - ``aps`` (adaptive prediction sets; Romano et al. 2020): the probability of all classes above c, plus a uniform share
    u of p_c itself. Harder images get larger sets. Without randomisation (u = 0) sets are never empty, but cover more
    than asked for.

A network that is right more often than the requested coverage reaches it with some empty sets: of an image that no
class fits. `suitable_coverage` asks for more than the network's accuracy, so that few are empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from dubito.errors import OptionError, ShapeError, choose
from dubito.evaluation.metrics import require_labelled
from dubito.prediction.calibrated import log_probs, temper
from dubito.runs.validation import Calibration

__all__ = [
    "NO_CLASS",
    "Conformal",
    "ConformalMethod",
    "conformal_quantile",
    "fit_temperature",
    "set_metrics",
    "suitable_coverage",
    "temper",
]

NO_CLASS = "no class fits"
"""What is said of an empty conformal set."""
TEMPERATURES = (0.01, 100.0)
"""Where the temperature is looked for; the best of a network without a single mistake would be 0."""


def fit_temperature(probs: Tensor, labels: Tensor) -> float:
    """The temperature of lowest NLL on calibration images, between 0.01 and 100.

    The NLL is convex in b = 1/T with slope mean(E_b[log p]) - mean(log p_y), E_b being the mean under p^b; the slope's
    root is found by bisection in float64. Images that are all predicted right say nothing about the temperature (the
    NLL falls all the way to T = 0, and certainty on other images would cost dearly), so it stays 1.

    >>> probs = torch.tensor([[0.9, 0.1]]).repeat(4, 1)
    >>> round(fit_temperature(probs, torch.tensor([0, 0, 0, 1])), 3)    # right 3 times in 4: p = 0.75
    2.0
    """
    labels = require_labelled(probs, labels)
    logs = log_probs(probs)
    if bool((logs.argmax(1) == labels).all()):
        return 1.0
    target = float(logs.gather(1, labels.unsqueeze(1)).mean())
    low, high = (math.log(1 / temperature) for temperature in reversed(TEMPERATURES))
    for _ in range(50):
        middle = (low + high) / 2
        slope = float((torch.softmax(logs * math.exp(middle), 1) * logs).sum(1).mean()) - target
        low, high = (low, middle) if slope > 0 else (middle, high)
    return math.exp(-(low + high) / 2)


def suitable_coverage(mistakes: int, images: int) -> float:
    """The coverage of conformal sets that suits a network with so many mistakes on calibration images.

    1 - half the share of mistakes, rounded up to one digit of what is missing to 1; at least 0.9, and at most
    images / (images + 1), beyond which sets hold every class. It is above the accuracy: the sets of half the mistakes
    hold the true class too, so most images have a class that fits. Chosen on the calibration images themselves, it is
    a little data-dependent; the promise of conformal sets is exact for a coverage that is fixed beforehand.

    >>> suitable_coverage(140, 10000), suitable_coverage(3000, 10000), suitable_coverage(0, 199)
    (0.993, 0.9, 0.995)
    """
    if not 0 <= mistakes <= images or images < 1:
        raise OptionError(
            f"There are {mistakes} mistakes on {images} images, but there must be at least one image and "
            "no more mistakes than images."
        )
    half = mistakes / images / 2
    least = 1 / (images + 1)
    if half > least:
        unit = 10.0 ** math.floor(math.log10(half))
        half = max(math.floor(round(half / unit, 9)) * unit, least)
    return 1 - min(max(half, least), 0.1)


def conformal_quantile(scores: Tensor, coverage: float) -> float:
    """The ceil((n + 1) * coverage)-th smallest of n scores; infinite if there are too few.

    >>> conformal_quantile(torch.arange(1.0, 10.0), 0.9), conformal_quantile(torch.arange(1.0, 9.0), 0.9)
    (9.0, inf)
    """
    if not 0 < coverage < 1:
        raise OptionError(f"coverage is {coverage}, but must lie between 0 and 1.")
    if scores.dim() != 1:
        raise ShapeError(f"The scores have shape {tuple(scores.shape)}, but must be (N,).")
    # Rounded first: 10 * 0.9 is 9, whatever binary fractions make of it.
    rank = math.ceil(round((len(scores) + 1) * coverage, 9))
    return float(scores.sort().values[rank - 1]) if rank <= len(scores) else math.inf


class ConformalMethod(str, Enum):
    """How classes are scored."""

    LAC = "lac"
    APS = "aps"


@dataclass(frozen=True)
class Conformal:
    """Conformal prediction sets, calibrated by `fit`.

    >>> probs = torch.tensor([[0.7, 0.2, 0.1]]).repeat(9, 1)
    >>> labels = torch.tensor([0, 0, 0, 0, 0, 0, 0, 0, 1])
    >>> Conformal.fit(probs, labels, coverage=0.9, method="lac").sets(probs[:1])
    tensor([[ True,  True, False]])
    """

    method: ConformalMethod
    coverage: float
    threshold: float
    randomized: bool = True
    seed: int = 0

    @classmethod
    def fit(
        cls,
        probs: Tensor,
        labels: Tensor,
        coverage: float = 0.9,
        method: str = "lac",
        *,
        randomized: bool = True,
        seed: int = 0,
    ) -> Conformal:
        """Calibrate on images that training has not seen.

        Args:
            probs: (N, C) their probabilities.
            labels: (N,) their true classes.
            coverage: how often the true class is to be in the set.
            method: ``lac`` or ``aps``.
            randomized: whether ``aps`` takes a random share of each class's own probability.
            seed: of these shares.
        """
        labels = require_labelled(probs, labels)
        chosen = choose(ConformalMethod, method, "method")
        start = cls(chosen, coverage, math.nan, randomized, seed)
        scores = start.scores(probs, seed).gather(1, labels.unsqueeze(1)).squeeze(1)
        return cls(chosen, coverage, conformal_quantile(scores, coverage), randomized, seed)

    @classmethod
    def of(cls, calibration: Calibration) -> Conformal:
        """The sets of a run's validation record: ``lac``, which has no randomness."""
        threshold = math.inf if calibration.threshold is None else calibration.threshold
        return cls(ConformalMethod.LAC, calibration.coverage, threshold)

    @property
    def is_randomized(self) -> bool:
        """Whether chance decides about a class at the edge of a set."""
        return self.randomized and self.method is ConformalMethod.APS

    def scores(self, probs: Tensor, seed: int) -> Tensor:
        """(N, C) how badly each class fits each image, in float64."""
        wide = probs.double()
        if self.method is ConformalMethod.LAC:
            return 1 - wide
        ordered, order = wide.sort(dim=1, descending=True, stable=True)
        share = wide.new_zeros(len(wide), 1)
        if self.is_randomized:
            generator = torch.Generator("cpu").manual_seed(seed)
            share = torch.rand(len(wide), 1, dtype=torch.float64, generator=generator, device="cpu").to(wide.device)
        scores = ordered.cumsum(1) - ordered * (1 - share)
        return torch.empty_like(scores).scatter_(1, order, scores)

    def sets(self, probs: Tensor) -> Tensor:
        """(N, C) whether each class is in the set of each image."""
        # A seed of its own: with that of `fit`, shares of the first images would be those of the calibration.
        return self.scores(probs, self.seed + 1) <= self.threshold

    def named(self, probs: Tensor, class_names: Sequence[str]) -> list[list[str]]:
        """The names of the classes in the set of each image, the most probable first."""
        order = probs.argsort(1, descending=True)
        inside = self.sets(probs).gather(1, order).tolist()
        return [
            [class_names[index] for index, chosen in zip(row, kept, strict=True) if chosen]
            for row, kept in zip(order.tolist(), inside, strict=True)
        ]


def set_metrics(sets: Tensor, labels: Tensor) -> dict[str, Any]:
    """Achieved coverage, mean size, share of empty sets, and coverage and mean size for each true class.

    >>> set_metrics(torch.tensor([[True, True], [False, True]]), torch.tensor([0, 0]))["coverage"]
    0.5
    """
    if sets.dim() != 2 or sets.dtype != torch.bool:
        raise ShapeError(f"sets has shape {tuple(sets.shape)} and type {sets.dtype}, but must be bool (N, C).")
    labels = require_labelled(sets.double(), labels)
    covered = sets.gather(1, labels.unsqueeze(1)).squeeze(1).double()
    size = sets.sum(1).double()
    count = torch.bincount(labels, minlength=sets.shape[1])
    by_class = [torch.bincount(labels, values, sets.shape[1]) / count for values in (covered, size)]
    return {
        "coverage": float(covered.mean()),
        "mean_size": float(size.mean()),
        "empty": float((size == 0).double().mean()),
        "class_coverage": by_class[0].tolist(),
        "class_size": by_class[1].tolist(),
    }
