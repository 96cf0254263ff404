"""Splits that are a pure function of labels, fraction and seed."""

from __future__ import annotations

import torch
from torch import Tensor

from dubito.errors import DataError, OptionError


def split_validation(labels: Tensor, fraction: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Sorted indices of a training and a validation part, stratified by class.

    Of a class with n images, n * fraction go to validation, rounded down or up so that the whole part has
    round(N * fraction) images; the last image of a class always stays in training. The global random state is
    neither used nor changed.

    >>> train, validation = split_validation(torch.arange(100) % 4, fraction=0.25, seed=1)
    >>> len(train), torch.bincount(validation % 4).tolist()
    (75, [7, 6, 6, 6])
    """
    if not 0 <= fraction < 1:
        raise OptionError(f"fraction is {fraction}, but must be at least 0 and below 1.")
    labels = labels.detach().cpu()
    if labels.ndim != 1 or labels.is_floating_point() or (labels.numel() and int(labels.min()) < 0):
        raise DataError("labels must be a vector of class numbers from 0 on.")
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(labels), generator=generator)
    # A stable sort of the shuffled labels groups the classes and keeps the random order inside each.
    grouped = shuffled[torch.argsort(labels[shuffled], stable=True)]
    counts = torch.bincount(labels, minlength=1)
    taken = _shares(counts, fraction, generator)
    rank = torch.arange(len(labels)) - torch.repeat_interleave(torch.cumsum(counts, 0) - counts, counts)
    chosen = rank < torch.repeat_interleave(taken, counts)
    return grouped[~chosen].sort().values, grouped[chosen].sort().values


def _shares(counts: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """How many images each class gives: its share rounded down, plus one where the remainder is largest."""
    exact = counts.double() * fraction
    shares = exact.floor().long()
    eligible = (exact > shares) & (shares < counts - 1)
    missing = min(round(float(exact.sum())) - int(shares.sum()), int(eligible.sum()))
    if missing > 0:
        # Equal remainders are common (balanced classes), so chance, not the class number, breaks the tie.
        tie = torch.rand(len(counts), generator=generator, dtype=torch.float64) * 1e-6
        remainder = torch.where(eligible, exact - shares + tie, torch.full_like(exact, -1.0))
        shares[remainder.topk(missing).indices] += 1
    return shares
