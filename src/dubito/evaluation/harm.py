"""Whether a change to a network, such as pruning, has made it worse: judged on the same images before and after.

Two things can become worse, and each is judged with its sampling error:

- **accuracy**, if it falls by more than a percentage point, and more images were lost than won by more than chance. Of
  the images on which only one of the two is right, each is as likely to be lost as won if both are equally good, so
  the number of lost ones is binomial: the exact sign test (McNemar 1947). Flips by other draws go both ways too.
- **NLL**, if it rises by more than 0.05 nats, so that the true class typically gets a probability 5 % lower, and the
  mean of the differences image by image is above zero by more than its standard error allows.

Each test is one-sided, at 2.5 %: a change that does no harm is called harmful at most once in 20 times.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from dubito.decisions.binomial import binomial_cdf
from dubito.evaluation.metrics import hits, log_losses

LEVEL = 0.025
"""How often each of the two tests may err if nothing has become worse."""
FALL, RISE = 0.01, 0.05
"""Changes of accuracy and of NLL that are too small to matter, however sure they are."""


@dataclass(frozen=True)
class Harm:
    """What a change did on the same images.

    Attributes:
        fall: by how much the accuracy fell.
        rise: by how much the NLL rose.
        fall_level: how likely at least so many images are lost by chance, if the networks are equally good.
        rise_level: how likely the NLL rises at least so much by chance.
    """

    fall: float
    rise: float
    fall_level: float
    rise_level: float

    @property
    def is_harmful(self) -> bool:
        """Whether either of the two is worse by more than is tolerable, and by more than chance."""
        return (self.fall > FALL and self.fall_level < LEVEL) or (self.rise > RISE and self.rise_level < LEVEL)


def harm(before: Tensor, after: Tensor, labels: Tensor) -> Harm:
    """Compare the probabilities (N, C) of two networks for the same images, the second being the changed one.

    >>> import torch
    >>> sure = torch.tensor([[0.9, 0.1]])
    >>> harm(sure.expand(8, 2), 1 - sure.expand(8, 2), torch.zeros(8, dtype=torch.long)).fall_level
    0.0039...
    """
    right, still = hits(before, labels), hits(after, labels)
    lost, won = int((right & ~still).sum()), int((~right & still).sum())
    differences = (log_losses(after, labels) - log_losses(before, labels)).double()
    rise = float(differences.mean())
    error = float(differences.std()) / math.sqrt(len(labels)) if len(labels) > 1 else math.inf
    return Harm(
        fall=(lost - won) / len(labels),
        rise=rise,
        # P(at least `lost` of all flips are lost) is P(at most `won` of them are won): both are fair coins.
        fall_level=float(binomial_cdf(won, lost + won, 0.5)),
        rise_level=1 - NormalDist().cdf(rise / error) if error > 0 else float(rise <= 0),
    )


def largest_harmless(levels: Sequence[float], is_harmful: Callable[[float], bool]) -> float | None:
    """The largest of these rising levels without harm, found by halving; None if the lowest does harm already.

    >>> largest_harmless([0.5, 0.6, 0.7, 0.8], lambda level: level > 0.65)
    0.6
    """
    first = bisect_left(levels, True, key=is_harmful)
    return levels[first - 1] if first else None
