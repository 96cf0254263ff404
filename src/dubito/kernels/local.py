"""The local reparameterisation trick as one autograd function, for linear layers and convolutions alike.

F(x, mu) + eps * sqrt(F(x^2, sigma^2)) written with torch's operations keeps six tensors of the output's size for the
backward pass and allocates as many again. Written out, it works in place and keeps two: the input, which the previous
layer keeps anyway, and h = eps / sqrt(v), twice the derivative of the output with respect to its variance v: so the
factors 2 of the squares cancel. The squares are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dubito.linear_map import LinearMap


def applies(
    x: Tensor, mean: Tensor, bias_mean: Tensor | None, std: Tensor, bias_std: Tensor | None, *, linear_map: LinearMap
) -> bool:
    """Whether `x` is a batch."""
    return linear_map.is_batched(x)


def compute(
    x: Tensor,
    mean: Tensor,
    bias_mean: Tensor | None,
    std: Tensor,
    bias_std: Tensor | None,
    *,
    linear_map: LinearMap,
    noise: Callable[[Tensor], Tensor],
) -> Tensor:
    """F(x, mu) + noise * sqrt(F(x^2, sigma^2)); `noise` makes fresh noise with the shape of a tensor."""
    result: Tensor = _Local.apply(linear_map, x, mean, bias_mean, std, bias_std, noise)
    return result


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
        make_noise: Callable[[Tensor], Tensor],
    ) -> Tensor:
        output = linear_map(x, mean, bias_mean)
        noise = make_noise(output)
        deviation = linear_map(x.square(), std.square(), None if bias_std is None else bias_std.square())
        # An all-zero patch has variance 0, and fast convolutions may round to just below it: the root needs a floor.
        tiny = torch.finfo(deviation.dtype).tiny
        deviation.clamp_min_(tiny).sqrt_()
        output = torch.addcmul(output, deviation, noise, out=None if output._is_view() else output)
        # Where the variance has its floor, its gradient is 0.
        torch.threshold_(deviation, math.sqrt(tiny) * (1 + 1e-6), math.inf)
        ctx.linear_map = linear_map
        ctx.save_for_backward(x, mean, bias_mean, std, bias_std, torch.div(noise, deviation, out=deviation))
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, mean, _, std, bias_std, scaled = ctx.saved_tensors
        (gradient,) = gradients
        _, need_x, need_mean, need_bias_mean, need_std, need_bias_std, _ = ctx.needs_input_grad
        linear_map: LinearMap = ctx.linear_map
        if torch.is_grad_enabled():  # a second derivative is wanted
            return _differentiable(linear_map, scaled, ctx.saved_tensors[:5], ctx.needs_input_grad[1:6], gradient)
        needs = (need_x, need_std, need_bias_std)
        of_square = of_std = of_bias_std = None
        if any(needs):  # first the variance, whose many temporary tensors are then gone
            of_square, of_std, of_bias_std = linear_map.gradients(gradient * scaled, x.square(), std.square(), needs)
        needs = (need_x, need_mean, need_bias_mean)
        of_x, of_mean, of_bias_mean = linear_map.gradients(gradient, x, mean, needs)
        if of_x is not None and of_square is not None:
            of_x.addcmul_(of_square, x)
        if of_std is not None:
            of_std.mul_(std)
        if of_bias_std is not None:
            of_bias_std.mul_(bias_std)
        return None, of_x, of_mean, of_bias_mean, of_std, of_bias_std, None


def _differentiable(
    linear_map: LinearMap, scaled: Tensor, inputs: tuple[Tensor | None, ...], needs: tuple[bool, ...], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients that can be differentiated again, each with respect to its own input alone."""
    own = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
    x, mean, bias_mean, std, bias_std = own
    assert x is not None
    assert std is not None
    variance = linear_map(x.square(), std.square(), None if bias_std is None else bias_std.square())
    deviation = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
    output = torch.addcmul(linear_map(x, mean, bias_mean), deviation, scaled * deviation.detach())
    wanted = [tensor for tensor, need in zip(own, needs, strict=True) if need and tensor is not None]
    found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=True))
    return (None, *(next(found) if need else None for need in needs), None)
