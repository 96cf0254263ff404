"""The estimator ``local``, the local reparameterisation trick (paper, section 2.3.1).

    b = F(x, mu) + eps * sqrt(F(x^2, sigma^2)),   eps ~ N(0, 1) for each output element

It has the least noisy gradients. For convolutions it draws every output position independently, although in truth the
positions share their weights: each position's distribution is exact, their joint one is not.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dubito import kernels
from dubito.estimators.base import Estimator
from dubito.linear_map import LinearMap
from dubito.variational.posterior import Posterior


@dataclass(frozen=True)
class Local(Estimator):
    """One linear map for the mean, one for the variance, and noise for each output element."""

    name: ClassVar[str] = "local"
    needs_independence: ClassVar[bool] = True

    def __call__(self, linear_map: LinearMap, x: Tensor, weight: Posterior, bias: Posterior | Tensor | None) -> Tensor:
        """F(x, mu) + eps * sqrt(F(x^2, sigma^2))."""
        bias_mean, bias_std = (bias.mean, bias.std) if isinstance(bias, Posterior) else (bias, None)
        tensors = (x, weight.mean, bias_mean, weight.std, bias_std)
        kernel = kernels.find("local", *tensors, linear_map=linear_map)
        if kernel is not None:
            output: Tensor = kernel(*tensors, linear_map=linear_map, noise=self.noise)
            return output
        mean, std = output_moments(linear_map, x, weight, bias)
        return torch.addcmul(mean, std, self.noise(mean))

    def noise(self, output: Tensor) -> Tensor:
        """eps, with the shape, dtype and memory format of the output.

        Torch fills only contiguous tensors quickly: with channels last, this is ten times as fast as
        `torch.randn_like`.

        >>> x = torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
        >>> Local().noise(x).is_contiguous(memory_format=torch.channels_last)
        True
        """
        if output.dim() < 3 or output.is_contiguous():
            return torch.randn_like(output)
        last = output.movedim(1, -1)
        return torch.randn_like(last).movedim(-1, 1) if last.is_contiguous() else torch.randn_like(output)


def output_moments(
    linear_map: LinearMap, x: Tensor, weight: Posterior, bias: Posterior | Tensor | None
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each output element."""
    bias_mean, bias_variance = (bias.mean, bias.variance) if isinstance(bias, Posterior) else (bias, None)
    mean = linear_map(x, weight.mean, bias_mean)
    variance = _variance(linear_map, x, weight.variance, bias_variance)
    # An all-zero patch has variance 0, and fast convolutions may round to just below it: the root needs a floor, and
    # the floor has gradient 0, which is the right one.
    return mean, variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt().to(mean.dtype)


def _variance(linear_map: LinearMap, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F(x^2, sigma^2)."""
    if _compute_dtype(x) is torch.float16:
        # float16 holds neither the square of 0.0002 nor that of 300
        with nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False):
            return linear_map(x.float().square(), weight, bias)
    return linear_map(x.square(), weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def _compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype that linear maps of `x` run in, autocast included."""
    kind = x.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind) and x.dtype is not torch.float64:
        return torch.get_autocast_dtype(kind)
    return x.dtype
