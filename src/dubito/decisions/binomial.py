"""Exact bounds for a share that is known from counts: of n images, k were wrong.

K of n independent images being wrong, each with probability p, is binomial. Its distribution function is a regularised
incomplete beta function,

    P(K <= k) = I_{1 - p}(n - k, k + 1),

and the bounds of Clopper & Pearson (1934) are the p at which that equals what the confidence leaves over: they hold
with at least the stated confidence for every n and p, without any approximation. Counts may be fractions, for planning.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
STEPS = 100_000
"""Of the continued fraction, which needs about the square root of the number of images."""


def binomial_cdf(count: ArrayLike, total: ArrayLike, share: ArrayLike) -> Floats:
    """P(K <= count) of `total` independent images, each of which counts with probability `share`; element by element.

    >>> binomial_cdf([0, 1, 2], 2, 0.5)
    array([0.25, 0.75, 1.  ])
    """
    k, n, p = np.broadcast_arrays(*(np.asarray(value, np.float64) for value in (count, total, share)))
    inside = (k >= 0) & (k < n) & (p > 0) & (p < 1)
    result = np.where(k < 0, 0.0, np.where((k >= n) | (p <= 0), 1.0, 0.0))
    if inside.any():
        result[inside] = incomplete_beta(n[inside] - k[inside], k[inside] + 1, 1 - p[inside], p[inside])
    return result


def upper_bound(count: ArrayLike, total: ArrayLike, confidence: float) -> Floats:
    """The one-sided upper bound of Clopper & Pearson: the share below which the truth lies with that confidence.

    It is 1 where nothing was counted, and 1 - (1 - confidence)^(1 / n) without a mistake in n images.

    >>> float(upper_bound(0, 299, 0.95))                # 299 images without a mistake: less than 1 in 100 is wrong
    0.009969...
    """
    k, n = np.broadcast_arrays(*(np.asarray(value, np.float64) for value in (count, total)))
    low, high, guess = np.zeros(k.shape), np.ones(k.shape), np.clip(wilson_bound(k, n, confidence), 1e-12, 1 - 1e-9)
    for _ in range(60):
        # Newton's step where it stays between what is known to be too low and too high, else the middle of the two.
        excess = binomial_cdf(k, n, guess) - (1 - confidence)
        low, high = np.where(excess > 0, guess, low), np.where(excess > 0, high, guess)
        step = guess + excess / np.maximum(_slope(k, n, guess), 1e-300)
        before, guess = guess, np.where((step > low) & (step < high), step, (low + high) / 2)
        if (np.abs(guess - before) <= 1e-13 * guess)[k < n].all():
            break
    return np.where(k >= n, 1.0, guess)


def _slope(count: Floats, total: Floats, share: Floats) -> Floats:
    """-d/dp P(K <= k) = p^k (1 - p)^(n - k - 1) / B(k + 1, n - k)."""
    rest = np.maximum(total - count, 1e-9)
    logs = count * np.log(share) + (rest - 1) * np.log1p(-share)
    return np.exp(logs + _log_gamma(total + 1) - _log_gamma(count + 1) - _log_gamma(rest))


def wilson_bound(count: ArrayLike, total: ArrayLike, confidence: float) -> Floats:
    """Wilson's approximate upper bound, for planning: cheap, and near `upper_bound`. It is 1 where the total is 0."""
    k, n = np.broadcast_arrays(*(np.asarray(value, np.float64) for value in (count, total)))
    z = NormalDist().inv_cdf(confidence)
    size = np.maximum(n, 1e-9)
    share = np.minimum(k / size, 1.0)
    spread = np.sqrt(share * (1 - share) / size + z * z / (4 * size * size))
    return np.where(n > 0, (share + z * z / (2 * size) + z * spread) / (1 + z * z / size), 1.0)


def incomplete_beta(a: Floats, b: Floats, x: Floats, rest: Floats) -> Floats:
    """I_x(a, b) for positive a and b; `rest` is 1 - x, which may be known better than the difference.

    By Lentz's method for the continued fraction, on the side of the mean where it converges fast.
    """
    swap = x > (a + 1) / (a + b + 2)
    a, b = np.where(swap, b, a), np.where(swap, a, b)
    x, rest = np.where(swap, rest, x), np.where(swap, x, rest)
    front = np.exp(_log_gamma(a + b) - _log_gamma(a) - _log_gamma(b) + a * np.log(x) + b * np.log(rest)) / a
    value = front * _fraction(a, b, x)
    return np.where(swap, 1 - value, value)


def _fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    """The continued fraction of the incomplete beta function (Numerical Recipes, section 6.4)."""
    tiny = 1e-300
    c = np.ones_like(x)
    d = 1 / _away_from_zero(1 - (a + b) * x / (a + 1), tiny)
    whole = d.copy()
    for step in range(1, STEPS):
        even = step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step))
        odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d, tiny)
            c = _away_from_zero(1 + term / c, tiny)
            whole = whole * (change := c * d)
        if float(np.abs(change - 1).max()) < 1e-14:
            return whole
    raise ArithmeticError(f"The continued fraction did not converge in {STEPS} steps.")  # pragma: no cover


def _away_from_zero(values: Floats, tiny: float) -> Floats:
    return np.where(np.abs(values) < tiny, tiny, values)


def _log_gamma(values: Floats) -> Any:
    return torch.lgamma(torch.from_numpy(np.array(values))).numpy()


def images_needed(share: float, confidence: float) -> int:
    """How many accepted images without a single mistake it takes to promise at most this share.

    >>> images_needed(0.01, 0.95)
    299
    """
    return math.ceil(math.log(1 - confidence) / math.log1p(-share))
