"""The estimator ``flipout`` (Wen et al. 2018): one draw for the batch, decorrelated by random signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dubito.estimators.base import Estimator
from dubito.linear_map import LinearMap
from dubito.variational.posterior import Posterior


@dataclass(frozen=True)
class Flipout(Estimator):
    """One draw of the weights' deviation, flipped by a sign per example and input channel, and output channel."""

    name: ClassVar[str] = "flipout"
    needs_independence: ClassVar[bool] = True

    def __call__(self, linear_map: LinearMap, x: Tensor, weight: Posterior, bias: Posterior | Tensor | None) -> Tensor:
        """F(x, mu) + r * F(s * x, sigma * eps), with signs s and r that are constant over an example's positions."""
        bias_mean, bias_deviation = (bias.mean, _deviation(bias)) if isinstance(bias, Posterior) else (bias, None)
        mean = linear_map(x, weight.mean, bias_mean)
        flipped = x * _signs(linear_map.sign_shape(x), x)
        perturbation = linear_map(flipped, _deviation(weight), bias_deviation)
        return torch.addcmul(mean, perturbation, _signs(linear_map.sign_shape(mean), mean))


def _deviation(posterior: Posterior) -> Tensor:
    """sigma * eps."""
    return posterior.std * posterior.fresh_noise().view(posterior.mean.shape).to(posterior.mean.dtype)


def _signs(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.randint(0, 2, shape, dtype=like.dtype, device=like.device).mul_(2).sub_(1)
