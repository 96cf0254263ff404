"""Rules for nonlinearities: softplus, ReLU, the largest of a window, and dropout that draws."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito.prediction.moments.gaussian import clark, softplus_moments
from dubito.prediction.moments.linear import per_axis, same
from dubito.prediction.moments.shape import unslide
from dubito.prediction.moments.value import DRAWING, Activated, Moments, UnsupportedError, rule


@rule("softplus")
def _softplus(function: Any, x: Moments, beta: float = 1.0, threshold: float = 20.0) -> Moments:
    if beta == 1.0:
        return Activated(x, _softplus_of)
    return F.softplus(x * beta) / beta  # type: ignore[return-value]


@rule("relu", "relu_")
def _relu(function: Any, x: Moments, inplace: bool = False) -> Moments:
    return Activated(x, _relu_of)


def _softplus_of(x: Moments) -> Moments:
    mean, slope, residue = softplus_moments(x.expected, x.variance)
    return _bent(x, mean, slope, residue)


def _relu_of(x: Moments) -> Moments:
    zero = torch.zeros((), dtype=x.expected.dtype, device=x.expected.device)
    mean, variance, share = clark(x.expected, x.variance, zero, zero)
    return _bent(x, mean, share, (variance - share.square() * x.variance).clamp_min(0))


def _bent(x: Moments, mean: Tensor, slope: Tensor, residue: Tensor) -> Moments:
    """Units f(x) with Cov(f(x), x) = slope * variance, and what variance that does not explain."""
    return Moments(
        mean,
        torch.addcmul(residue, slope.square(), x.variance),
        own=lambda: residue,
        links=[(x, lambda jacobian: jacobian * slope.unsqueeze(1))],
        unmixed=True,
    )


@rule("max_pool2d")
def _max_pool(
    function: Any,
    x: Moments,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Moments:
    if isinstance(x, Activated):
        return Activated(
            _max_pool(function, x.source, kernel_size, stride, padding, dilation, ceil_mode, return_indices), x.rule
        )
    if ceil_mode or return_indices:
        raise UnsupportedError("max_pool2d with ceil_mode or return_indices")
    kernel, padding, dilation = (per_axis(value, 2) for value in (kernel_size, padding, dilation))
    stride = per_axis(stride or kernel, 2)
    amounts = [padding[1], padding[1], padding[0], padding[0]]
    means, variances = x.expected, x.variance
    if any(padding):
        lowest = max(-1e30, torch.finfo(means.dtype).min / 4)
        means, variances = F.pad(means, amounts, value=lowest), F.pad(variances, amounts)
    height, width = (
        (size - d * (k - 1) - 1) // s + 1
        for size, d, k, s in zip(means.shape[2:], dilation, kernel, stride, strict=True)
    )

    def cells(values: Tensor) -> list[Tensor]:
        return [
            values[:, :, i * dilation[0] :: stride[0], j * dilation[1] :: stride[1]][:, :, :height, :width]
            for i, j in itertools.product(range(kernel[0]), range(kernel[1]))
        ]

    leaves = cells(variances)
    mean, variance, rounds = _largest(cells(means), leaves)

    def shares() -> list[Tensor]:
        return _leaf_shares(rounds)

    def own() -> Tensor:
        explained = torch.stack([share.square() * v for share, v in zip(shares(), leaves, strict=True)]).sum(0)
        return (variance - explained).clamp_min(0)

    def pull(jacobian: Tensor) -> Tensor:
        parts = [jacobian * share.unsqueeze(1) for share in shares()]
        return unslide(parts, x.expected.shape, kernel, stride, padding, dilation)

    return Moments(mean, variance, own=own, links=[(x, pull)], unmixed=kernel == stride and dilation == (1, 1))


def _largest(means: list[Tensor], variances: list[Tensor]) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
    """Mean and variance of the maximum by rounds of pairs, and each round's probabilities that the first one wins."""
    rounds = []
    while len(means) > 1:
        pairs = range(0, len(means) - 1, 2)
        played = [clark(means[i], variances[i], means[i + 1], variances[i + 1]) for i in pairs]
        odd = len(means) % 2
        means = [mean for mean, _, _ in played] + means[len(means) - odd :]
        variances = [variance for _, variance, _ in played] + variances[len(variances) - odd :]
        rounds.append([share for _, _, share in played])
    return means[0], variances[0], rounds


def _leaf_shares(rounds: list[list[Tensor]]) -> list[Tensor]:
    """The probability of each cell to be the largest: the product of the rounds that it has to win."""
    reach: list[Tensor] | None = None
    for played in reversed(rounds):
        winners = reach or [torch.ones_like(played[0])]
        reach = [part for p, w in zip(played, winners, strict=False) for part in (p * w, (1 - p) * w)]
        reach += winners[len(played) :]
    assert reach is not None
    return reach


@rule(*DRAWING)
def _dropout(function: Any, x: Moments, p: float = 0.5, training: bool = True, inplace: bool = False) -> Moments:
    if not training or p == 0:
        return x
    if function.__name__ != "dropout" or p == 1:
        raise UnsupportedError(f"{function.__name__} with p={p} that draws")
    x = x.settled()
    square = x.expected.square() if x.certain else torch.addcmul(x.variance, x.expected, x.expected)
    new = square * (p / (1 - p))
    if x.certain:
        return Moments(x.expected, new, own=lambda: new)
    return Moments(x.expected, lambda: x.variance + new, own=lambda: new, links=[(x, same)], unmixed=True)
