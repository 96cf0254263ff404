"""What a rule can be fitted for: each goal chooses a score, and a threshold for each group of images."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dubito.decisions.binomial import upper_bound
from dubito.decisions.thresholds import Part, Promise, foreseen_coverage, keep_error, rank_for_coverage

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Images:
    """The validation images.

    Attributes:
        wrong: (N,) whether the label is wrong.
        planning: (N,) whether the image plans; the others prove.
        familiar: (N,) whether the image counts at all.
        group: (N,) the group that it belongs to: its predicted class, or 0.
        groups: how many there are.
    """

    wrong: Mask
    planning: Mask
    familiar: Mask
    group: NDArray[np.int64]
    groups: int

    def part(self, scores: Floats, which: Mask) -> Part:
        """Some of the familiar images, by a score."""
        chosen = which & self.familiar
        return Part.of(scores[chosen], self.wrong[chosen])

    def pairs(self, scores: Floats) -> list[tuple[Part, Part]]:
        """For each group, the images that plan and those that prove."""
        return [
            (self.part(scores, here & self.planning), self.part(scores, here & ~self.planning))
            for here in (self.group == number for number in range(self.groups))
        ]


class Goal(ABC):
    """What a rule is for.

    Attributes:
        name: as in :attr:`Rule.goal`.
        target: the value asked for.
        proves: whether some images are kept back to prove a promise.
    """

    name: ClassVar[str]
    target: float
    proves: ClassVar[bool] = True

    @abstractmethod
    def choose(self, images: Images, scores: Mapping[str, Floats]) -> tuple[str, list[Promise]]:
        """The best score's name, and the promise for each group of images."""


@dataclass(frozen=True)
class MaxError(Goal):
    """At most this error among accepted images, with a confidence."""

    target: float
    confidence: float
    name: ClassVar[str] = "max_error"

    def choose(self, images: Images, scores: Mapping[str, Floats]) -> tuple[str, list[Promise]]:
        """The score that the planning images would accept most with, and the thresholds that the others prove."""
        proving = int((images.familiar & ~images.planning).sum())

        def foreseen(name: str) -> tuple[float, float]:
            plan = images.part(scores[name], images.planning)
            return foreseen_coverage(plan, proving, self.target, self.confidence)

        best = max(scores, key=foreseen)  # the first of equals
        pairs = images.pairs(scores[best])
        return best, [keep_error(plan, proof, self.target, self.confidence) for plan, proof in pairs]


@dataclass(frozen=True)
class Review(Goal):
    """This share of images is reviewed."""

    target: float
    confidence: float
    name: ClassVar[str] = "review"

    def threshold(self, plan: Part, candidates: int) -> float:
        """The score that the planned share of images has at most; `candidates` is among how many scores one chooses."""
        accepted = len(plan) - math.floor(round(self.target * len(plan), 9))
        return float(plan.scores[accepted - 1]) if 0 < accepted < len(plan) else math.inf

    @property
    def error_confidence(self) -> float:
        """The confidence that is left for the bound of the error."""
        return self.confidence

    def choose(self, images: Images, scores: Mapping[str, Floats]) -> tuple[str, list[Promise]]:
        """The score with the fewest mistakes among accepted planning images; the others bound the error."""

        def error(name: str) -> float:
            plan = images.part(scores[name], images.planning)
            accepted, wrong = plan.count(np.array([self.threshold(plan, len(scores))]))
            return float(wrong[0] / max(accepted[0], 1))

        best = min(scores, key=error)
        promises = []
        for plan, proof in images.pairs(scores[best]):
            threshold = self.threshold(plan, len(scores))
            accepted, wrong = proof.count(np.array([threshold]))
            promises.append(Promise(threshold, float(upper_bound(wrong, accepted, self.error_confidence)[0])))
        return best, promises


@dataclass(frozen=True)
class MinCoverage(Review):
    """At least this share of images is accepted, with a confidence.

    Half of what the confidence leaves over is for the share, shared in turn by all scores that one chooses among; the
    other half is for the bound of the error.
    """

    name: ClassVar[str] = "min_coverage"

    def threshold(self, plan: Part, candidates: int) -> float:
        """The score below which enough images lie."""
        rank = rank_for_coverage(len(plan), self.target, 1 - (1 - self.confidence) / (2 * candidates))
        return math.inf if rank is None else float(plan.scores[rank - 1])

    @property
    def error_confidence(self) -> float:
        """The other half."""
        return 1 - (1 - self.confidence) / 2


@dataclass(frozen=True)
class Cost(Goal):
    """Least mean cost on the images, if a mistake costs as much as `target` reviews; nothing is promised."""

    target: float
    name: ClassVar[str] = "cost"
    proves: ClassVar[bool] = False

    def choose(self, images: Images, scores: Mapping[str, Floats]) -> tuple[str, list[Promise]]:
        """The score and thresholds of least cost."""
        found = {
            name: [self.cheapest(images.part(values, images.group == number)) for number in range(images.groups)]
            for name, values in scores.items()
        }
        best = min(found, key=lambda name: sum(cost for _, cost in found[name]))
        return best, [Promise(threshold, None) for threshold, _ in found[best]]

    def cheapest(self, part: Part) -> tuple[float, float]:
        """The threshold of least cost, the most generous if there are several, and that cost in reviews."""
        thresholds = np.concatenate([[-math.inf], np.unique(part.scores), [math.inf]])
        accepted, wrong = part.count(thresholds)
        costs = self.target * wrong + (len(part) - accepted)
        least = len(costs) - 1 - int(np.argmin(costs[::-1]))
        return float(thresholds[least]), float(costs[least])
