"""What review buys: if a person takes over the most doubtful images, how many of the others are wrong."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dubito.decisions.binomial import upper_bound

REVIEWED = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
"""The shares of reviewed images that a table shows."""


@dataclass(frozen=True)
class Reviewed:
    """A share of the images is reviewed: how many are left to the network, and how many of these are wrong."""

    share: float
    left: int
    mistakes: int

    @property
    def error(self) -> float:
        """The share of mistakes among the images that are left."""
        return self.mistakes / self.left

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Of the error, over images: the exact one of Clopper & Pearson, which is honest about 0 mistakes too.

        >>> [round(edge, 4) for edge in Reviewed(0.1, 90, 0).interval()]        # 1 - 0.025^(1/90)
        [0.0, 0.0402]
        """
        side = (1 + level) / 2
        right = self.left - self.mistakes
        low = 1 - float(upper_bound(right, self.left, side)) if self.mistakes else 0.0
        return low, float(upper_bound(self.mistakes, self.left, side))


def review(doubt: Tensor, wrong: Tensor, shares: tuple[float, ...] = REVIEWED) -> list[Reviewed]:
    """What is left when those `shares` of the images with the largest `doubt` are reviewed; at least one is left.

    >>> import torch
    >>> [row.error for row in review(torch.tensor([0.1, 0.9, 0.2, 0.8]), torch.tensor([0, 1, 0, 1]).bool(), (0, 0.25))]
    [0.5, 0.3333333333333333]
    """
    mistakes = wrong.cpu()[doubt.cpu().argsort(stable=True)].cumsum(0)
    lefts = [max(len(wrong) - round(share * len(wrong)), 1) for share in shares]
    return [Reviewed(share, left, int(mistakes[left - 1])) for share, left in zip(shares, lefts, strict=True)]
