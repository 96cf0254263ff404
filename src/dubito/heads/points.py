"""Points that stand for a standard normal distribution, the same ones every time."""

from __future__ import annotations

import math
from functools import lru_cache
from operator import mul
from random import Random

import torch
from torch import Tensor


def gaussian_points(count: int, dimensions: int) -> Tensor:
    """(T, D) points that stand for a standard normal distribution: quantiles of it in every dimension, mirrored.

    >>> points = gaussian_points(64, 3)
    >>> points.shape, bool((points.T @ points / 64 - torch.eye(3)).abs().max() < 1e-6)
    (torch.Size([64, 3]), True)
    """
    return torch.tensor(_gaussian_columns((count + 1) // 2, dimensions)).T


@lru_cache(maxsize=16)
def _gaussian_columns(pairs: int, dimensions: int) -> list[list[float]]:
    """A latin hypercube, made uncorrelated dimension by dimension as far as the number of pairs allows.

    In plain Python: whatever records tensor operations sees a constant.
    """
    from statistics import NormalDist  # not before it is used: it takes a while to import

    shuffle = Random(0)
    quantiles = [NormalDist().inv_cdf(0.5 + (i + 0.5) / (2 * pairs)) for i in range(pairs)]
    columns: list[list[float]] = []
    for _ in range(dimensions):
        column = [value * shuffle.choice((-1.0, 1.0)) for value in shuffle.sample(quantiles, pairs)]
        for other in columns[: pairs // 2]:
            overlap = sum(map(mul, column, other)) / pairs
            column = [value - overlap * known for value, known in zip(column, other, strict=True)]
        scale = math.sqrt(pairs / sum(value * value for value in column))
        columns.append([value * scale for value in column])
    return [column + [-value for value in column] for column in columns]
