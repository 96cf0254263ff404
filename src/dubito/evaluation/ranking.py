"""Rank statistics of weighted images: AUROC and the area under the risk-coverage curve, for many weights at once."""

from __future__ import annotations

import torch
from torch import Tensor

from dubito.errors import ShapeError


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
