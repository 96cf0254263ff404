"""The local reparameterisation trick as one autograd function, for linear layers and convolutions alike.

F(x, mu) + eps * sqrt(F(x^2, sigma^2)) written with torch's operations keeps six tensors of the output's size for the
backward pass and allocates as many again. Written out, it works in place and keeps two: the input, which the previous
layer keeps anyway, and h = eps / sqrt(v), twice the derivative of the output with respect to its variance v: so the
factors 2 of the squares cancel. The squares are computed again. :class:`dubito.estimators.Local` has the plain formula,
which tests compare with this.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dubito.kernels.autograd import differentiable_gradients, not_a_view
from dubito.kernels.linear_maps import LinearMap
from dubito.kernels.noise import standard_normal_like

__all__ = ["local_reparameterization"]


def local_reparameterization(
    linear_map: LinearMap, x: Tensor, mean: tuple[Tensor, Tensor | None], std: tuple[Tensor, Tensor | None]
) -> Tensor:
    """A draw of F(x, w) for each output element by itself; `mean` and `std` are those of weight and bias."""
    if torch.is_grad_enabled():
        result: Tensor = _Local.apply(linear_map, x, *mean, *std)
        return result
    output, _, _ = _draw(linear_map, x, *mean, *std)
    return output


def _draw(
    linear_map: LinearMap, x: Tensor, mean: Tensor, bias_mean: Tensor | None, std: Tensor, bias_std: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, its standard deviation and the noise."""
    output = linear_map(x, mean, bias_mean)
    deviation = linear_map(x.square(), std.square(), None if bias_std is None else bias_std.square())
    # An all-zero patch has variance 0, and fast convolutions may round to just below it: the root needs a floor.
    deviation.clamp_min_(torch.finfo(deviation.dtype).tiny).sqrt_()
    noise = standard_normal_like(output)
    return output.addcmul_(deviation, noise), deviation, noise


class _Local(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        linear_map: LinearMap,
        x: Tensor,
        mean: Tensor,
        bias_mean: Tensor | None,
        std: Tensor,
        bias_std: Tensor | None,
    ) -> Tensor:
        output, deviation, noise = _draw(linear_map, x, mean, bias_mean, std, bias_std)
        # Where the variance has its floor, its gradient is 0.
        floor = math.sqrt(torch.finfo(deviation.dtype).tiny)
        torch.threshold_(deviation, floor * (1 + 1e-6), math.inf)
        ctx.linear_map = linear_map
        ctx.save_for_backward(x, mean, bias_mean, std, bias_std, noise.div_(deviation))
        return not_a_view(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, mean, bias_mean, std, bias_std, scaled = ctx.saved_tensors
        (gradient,) = gradients
        _, need_x, need_mean, need_bias_mean, need_std, need_bias_std = ctx.needs_input_grad
        linear_map: LinearMap = ctx.linear_map
        if torch.is_grad_enabled():  # a second derivative is wanted
            plain, inputs = partial(_same_draw, linear_map, scaled), (x, mean, bias_mean, std, bias_std)
            return (None, *differentiable_gradients(plain, inputs, ctx.needs_input_grad[1:], gradient))
        needs = (need_x, need_std, need_bias_std)
        of_square = of_std = of_bias_std = None
        if any(needs):  # first the variance, whose many temporary tensors are then gone
            of_square, of_std, of_bias_std = linear_map.gradients(gradient * scaled, x.square(), std.square(), needs)
        of_x, of_mean, of_bias_mean = linear_map.gradients(gradient, x, mean, (need_x, need_mean, need_bias_mean))
        if of_x is not None and of_square is not None:
            of_x.addcmul_(of_square, x)
        if of_std is not None:
            of_std.mul_(std)
        if of_bias_std is not None:
            of_bias_std.mul_(bias_std)
        return None, of_x, of_mean, of_bias_mean, of_std, of_bias_std


def _same_draw(
    linear_map: LinearMap,
    scaled: Tensor,
    x: Tensor,
    mean: Tensor,
    bias_mean: Tensor | None,
    std: Tensor,
    bias_std: Tensor | None,
) -> Tensor:
    """The output by the plain formula with the same noise."""
    variance = linear_map(x.square(), std.square(), None if bias_std is None else bias_std.square())
    deviation = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
    return torch.addcmul(linear_map(x, mean, bias_mean), deviation, scaled * deviation.detach())
