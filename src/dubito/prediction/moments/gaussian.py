"""Closed forms for Gaussian variables, in plain tensor operations that a graph can hold."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# The logistic distribution as a mixture of Gaussians: weights and variances by a minimax fit of softplus, which they
# give to 4e-6 everywhere, and the sigmoid to 1.4e-5.
_LOGISTIC = (
    (0.14981091789741485, 1.0219865420953056**2),
    (0.5013362068061348, 1.519577562929548**2),
    (0.3122913922351365, 2.2475581666705153**2),
    (0.03656148306131388, 3.3000684539111256**2),
)

_DENSITY = 1 / math.sqrt(2 * math.pi)


def softplus_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E[f(x)], E[f'(x)] and the variance of f(x) beyond E[f']^2 v, for softplus f and x ~ N(mean, variance).

    The sigmoid is a mixture of Gaussian distribution functions, so that with s^2 = v + tau^2 every expectation is a sum
    of closed forms. The variance is the sum of v^n E[f^(n)]^2 / n!, of which the residue takes n = 2 and 3.

    >>> [round(float(t), 4) for t in softplus_moments(torch.tensor(0.0), torch.tensor(1.0))]
    [0.8061, 0.5, 0.0213]
    """
    value, slope, second, third = (torch.zeros_like(mean) for _ in range(4))
    for weight, width in _LOGISTIC:
        inverse = (variance + width).rsqrt()
        a = (mean * inverse).clamp(-13, 13)
        density = torch.exp(a.square() * -0.5)
        slope = slope.add(torch.erf(a * math.sqrt(0.5)), alpha=weight / 2)
        value = value.addcdiv(density, inverse, value=weight * _DENSITY)
        density = density * inverse
        second = second.add(density, alpha=weight * _DENSITY)
        third = third.addcmul(density * inverse, a, value=weight * _DENSITY)
    slope = slope + 0.5
    residue = variance.square() * torch.addcmul(second.square() / 2, variance, third.square(), value=1 / 6)
    return torch.addcmul(value, mean, slope), slope, residue


def clark(a: Tensor, a_variance: Tensor, b: Tensor, b_variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the maximum of two independent Gaussians, and the probability that it is the first.

    >>> [round(float(t), 4) for t in clark(*torch.tensor([0.0, 1.0, 0.0, 1.0]))]     # 1/sqrt(pi), 1 - 1/pi
    [0.5642, 0.6817, 0.5]
    """
    total = (a_variance + b_variance).clamp_min(torch.finfo(a.dtype).tiny)
    spread = total.sqrt()
    distance = ((a - b) / spread).clamp(-13, 13)  # beyond, densities would be denormal
    lead = torch.erf(distance * math.sqrt(0.5))
    density = torch.exp(distance.square() * -0.5) * _DENSITY
    # the larger mean, and what the smaller one adds to it: exact when there is no contest
    mean = torch.addcmul(torch.maximum(a, b), spread, density - distance.abs() * (0.5 - lead.abs() / 2))
    share = lead / 2 + 0.5
    overlap = distance.square() * (1 - lead.square()) / 4 - density * torch.addcmul(density, distance, lead)
    variance = torch.addcmul(torch.lerp(b_variance, a_variance, share), total, overlap).clamp_min(0)
    return mean, variance, share


def root(covariance: Tensor) -> Tensor:
    """The lower triangular root of positive semidefinite matrices (N, R, R), by Cholesky's method in plain operations.

    A pivot that is 0 to rounding gives a column of zeros.

    >>> root(torch.tensor([[[4.0, 2.0], [2.0, 1.0]]]))
    tensor([[[2., 0.],
             [1., 0.]]])
    """
    size = covariance.shape[1]
    diagonal = covariance.diagonal(dim1=1, dim2=2)
    floor = diagonal * (size * torch.finfo(covariance.dtype).eps)
    columns: list[Tensor] = []
    for j in range(size):
        column = covariance[:, :, j]
        if columns:
            before = torch.stack(columns, 2)
            column = column - (before @ before[:, j].unsqueeze(2)).squeeze(2)
        pivot = column[:, j : j + 1]
        usable = pivot > floor[:, j : j + 1]
        scaled = column / torch.where(usable, pivot, 1.0).sqrt()
        below = torch.arange(size, device=column.device) >= j
        columns.append(torch.where(usable & below, scaled, 0.0))
    return torch.stack(columns, 2)


def safe_sqrt(x: Tensor) -> Tensor:
    """The root, with gradient 0 at 0."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)
