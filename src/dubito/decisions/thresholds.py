"""Thresholds of a score that keep a promise about the images below them.

A rule accepts images whose score is at most a threshold. For a threshold that was fixed before its images were looked
at, the number of wrong ones among n accepted images is binomial with n and the error r among accepted images, whatever
n came out, so that

    p = P(Binomial(n, target) <= wrong)

is a p-value of the hypothesis that r is above the target. Many thresholds are tested one after the other, from the
strict to the generous, each at the whole level 1 - confidence, until the first one fails; the last one that passed is
taken. Because the order is fixed beforehand, some threshold with r above the target passes with probability at most
1 - confidence: to get there, the first such threshold in the order has to pass. This is fixed sequence testing within
"Learn then test" (Angelopoulos, Bates, Candes, Jordan & Lei 2021); the bound for a single threshold is that of
Geifman & El-Yaniv (2017), "Selective classification for deep neural networks".

Nothing may be fixed by looking at the same images, so one part of the images *plans*: it proposes score, thresholds and
the start of the sequence. The other, larger part *proves*. That pays for every choice at once; neither the number of
scores nor the shape of the error curve matters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dubito.decisions.binomial import binomial_cdf, upper_bound, wilson_bound

Floats = NDArray[np.float64]
RATIO = 0.9
"""From one threshold to the next the planned share of reviewed images shrinks by this factor."""


@dataclass(frozen=True)
class Part:
    """Scores of some images, in ascending order, and how many of the first 0, 1, 2, ... are wrong."""

    scores: Floats
    wrong: NDArray[np.int64]

    @classmethod
    def of(cls, scores: Floats, wrong: NDArray[np.bool_]) -> Part:
        """From scores (N,) and whether each image's label is wrong (N,)."""
        order = np.argsort(scores, kind="stable")
        return cls(scores[order], np.concatenate([[0], np.cumsum(wrong[order])]))

    def __len__(self) -> int:
        return len(self.scores)

    def count(self, thresholds: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each threshold: how many images have a score of at most that, and how many of these are wrong."""
        accepted = np.searchsorted(self.scores, thresholds, side="right")
        return accepted, self.wrong[accepted]


@dataclass(frozen=True)
class Promise:
    """A threshold with what can be said of the images below it.

    Attributes:
        threshold: images with at most this score are accepted.
        bound: the error among them is at most this, with the confidence asked for; None if nothing is promised.
        kept: whether that is at most the target.
    """

    threshold: float
    bound: float | None
    kept: bool = True


def candidates(scores: Floats) -> Floats:
    """Thresholds from strict to generous, of ascending `scores`: the last accepts everything.

    >>> candidates(np.arange(1.0, 6.0)).tolist()
    [1.0, 2.0, 3.0, 4.0, inf]
    """
    count = len(scores)
    steps = int(np.ceil(np.log(max(count, 2)) / -np.log(RATIO)))
    reviewed = np.unique(np.floor(count * RATIO ** np.arange(1, steps + 1)).astype(int))
    ranks = count - reviewed[(reviewed > 0) & (reviewed < count)]
    return np.append(np.unique(scores[ranks - 1]), np.inf)


def keep_error(plan: Part, proof: Part, target: float, confidence: float) -> Promise:
    """The most generous threshold whose error is at most `target`, with `confidence`.

    If not even the most promising threshold passes, its own bound is the best promise there is: that bound is at most
    the target exactly if the threshold passes, so it adds no chance to be wrong.
    """
    thresholds = candidates(plan.scores)
    start = int(np.argmin(_foreseen_bounds(plan, thresholds, len(proof), confidence)))
    accepted, wrong = proof.count(thresholds[start:])
    fails = ~(binomial_cdf(wrong, accepted, target) <= 1 - confidence)
    passed = int(np.argmax(fails)) if fails.any() else len(fails)
    if passed == 0:
        bound = float(upper_bound(wrong[0], accepted[0], confidence))
        return Promise(float(thresholds[start]), bound, kept=False)
    return Promise(float(thresholds[start + passed - 1]), target)


def foreseen_coverage(plan: Part, images: int, target: float, confidence: float) -> tuple[float, float]:
    """What a score promises, as far as the planning images tell: the larger, the better.

    The share of images that could be accepted if the proof has `images` images; then, where none could, minus the best
    bound.
    """
    thresholds = candidates(plan.scores)
    bounds = _foreseen_bounds(plan, thresholds, images, confidence)
    fine = thresholds[bounds <= target]
    accepted = plan.count(fine[-1:])[0].sum() if len(fine) else 0
    return float(accepted) / max(len(plan), 1), -float(bounds.min())


def _foreseen_bounds(plan: Part, thresholds: Floats, images: int, confidence: float) -> Floats:
    """The bound of each threshold if the proof goes as the plan did; half a mistake more keeps luck from choosing."""
    accepted, wrong = plan.count(thresholds)
    scale = images / max(len(plan), 1)
    return wilson_bound((wrong + 0.5) * scale, accepted * scale, confidence)


def rank_for_coverage(images: int, coverage: float, confidence: float) -> int | None:
    """The rank of the score below which at least this share of all images lies, with that confidence; None if there
    are too few images.

    The share below the j-th smallest of n scores is less than c with probability P(Binomial(n, c) >= j).

    >>> rank_for_coverage(59, 0.95, 0.95), rank_for_coverage(58, 0.95, 0.95)
    (59, None)
    """
    ranks = np.arange(1, images + 1)
    enough = binomial_cdf(ranks - 1, images, coverage) >= confidence
    return int(ranks[enough][0]) if enough.any() else None
