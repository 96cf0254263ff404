"""Draws of the weights as one autograd function, for groups of a batch.

Each group gets weights mu + sigma * eps. The function keeps eps instead of the weights, adds the gradients of the
groups in place, and an antithetic pair shares its eps: the gradient of sigma is eps times the difference of the pair's.
:class:`dubito.estimators.base.Weight` has the plain formula, which tests compare with this.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from dubito.kernels.autograd import differentiable_gradients, not_a_view
from dubito.kernels.linear_maps import LinearMap
from dubito.kernels.noise import standard_normal_like

__all__ = ["with_drawn_weights"]


def with_drawn_weights(
    linear_map: LinearMap,
    x: Tensor,
    mean: tuple[Tensor, Tensor | None],
    std: tuple[Tensor, Tensor | None],
    draws: int,
    antithetic: bool,
) -> Tensor:
    """F(x, w) with a draw of w for each of `draws` groups of the batch; `mean` and `std` of weight and bias."""
    result: Tensor = _Drawn.apply(linear_map, draws, antithetic, x, *mean, *std)
    return result


def _noise(std: Tensor, bias_std: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return standard_normal_like(std), None if bias_std is None else standard_normal_like(bias_std)


def _shift(mean: Tensor | None, std: Tensor | None, noise: Tensor | None, sign: int) -> Tensor | None:
    """Mean + sign * std * noise; a mean without a standard deviation stays as it is."""
    if mean is None or std is None or noise is None:
        return mean
    return torch.addcmul(mean, std, noise, value=sign)


class _Drawn(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        linear_map: LinearMap,
        draws: int,
        antithetic: bool,
        x: Tensor,
        mean: Tensor,
        bias_mean: Tensor | None,
        std: Tensor,
        bias_std: Tensor | None,
    ) -> Tensor:
        noises = [_noise(std, bias_std) for _ in range(-(-draws // 2) if antithetic else draws)]
        ctx.linear_map, ctx.draws, ctx.antithetic = linear_map, draws, antithetic
        ctx.save_for_backward(x, mean, bias_mean, std, bias_std, *(tensor for pair in noises for tensor in pair))
        return not_a_view(_with_noises(ctx, noises, x, mean, bias_mean, std, bias_std))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, mean, bias_mean, std, bias_std, *flat = ctx.saved_tensors
        noises = list(zip(flat[::2], flat[1::2], strict=True))
        inputs = (x, mean, bias_mean, std, bias_std)
        needs = ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():  # a second derivative is wanted
            plain = partial(_with_noises, ctx, noises)
            return (None, None, None, *differentiable_gradients(plain, inputs, needs, gradients[0]))
        wanted = (needs[0], needs[1] or needs[3], needs[2] or needs[4])
        of_inputs: list[Tensor] = []
        weights, biases = _Sum(needs[1], needs[3]), _Sum(needs[2], needs[4])
        groups = zip(x.tensor_split(ctx.draws), gradients[0].tensor_split(ctx.draws), strict=True)
        for index, (group, gradient) in enumerate(groups):
            mirrored = ctx.antithetic and index % 2 == 1
            noise, bias_noise = noises[index // 2 if ctx.antithetic else index]
            weight = _shift(mean, std, noise, -1 if mirrored else 1) if needs[0] else mean
            of_x, of_weight, of_bias = ctx.linear_map.gradients(gradient, group, weight, wanted)
            paired = ctx.antithetic and not mirrored
            weights.add(of_weight, noise, mirrored, paired)
            biases.add(of_bias, bias_noise, mirrored, paired)
            if of_x is not None:
                of_inputs.append(of_x)
        of_x = torch.cat(of_inputs) if len(of_inputs) > 1 else of_inputs[0] if of_inputs else None
        return None, None, None, of_x, weights.of_mean, biases.of_mean, weights.of_std, biases.of_std


class _Sum:
    """The gradients of a mean and a standard deviation, summed over the draws; works in place."""

    def __init__(self, need_mean: bool, need_std: bool) -> None:
        self.need_mean, self.need_std = need_mean, need_std
        self.of_mean: Tensor | None = None
        self.of_std: Tensor | None = None
        self._first: Tensor | None = None

    def add(self, gradient: Tensor | None, noise: Tensor | None, mirrored: bool, paired: bool) -> None:
        """Take in the gradient of a draw; the first of a pair waits for its mirror image."""
        if gradient is None:
            return
        if paired:
            self._first = gradient
            return
        if mirrored:
            assert self._first is not None
            total = self._first + gradient if self.need_mean else None
            signed = self._first.sub_(gradient)
        else:
            total, signed = gradient, gradient.clone() if self.need_mean and self.need_std else gradient
        if self.need_mean and total is not None:
            self.of_mean = total if self.of_mean is None else self.of_mean.add_(total)
        if self.need_std and noise is not None:
            self.of_std = signed.mul_(noise) if self.of_std is None else self.of_std.addcmul_(signed, noise)


def _with_noises(
    ctx: Any,
    noises: list[tuple[Tensor, Tensor | None]],
    x: Tensor,
    mean: Tensor,
    bias_mean: Tensor | None,
    std: Tensor,
    bias_std: Tensor | None,
) -> Tensor:
    """The output, each group of the batch with the weights of its noise."""
    outputs = []
    for index, group in enumerate(x.tensor_split(ctx.draws)):
        noise, bias_noise = noises[index // 2 if ctx.antithetic else index]
        sign = -1 if ctx.antithetic and index % 2 == 1 else 1
        weight, bias = _shift(mean, std, noise, sign), _shift(bias_mean, bias_std, bias_noise, sign)
        outputs.append(ctx.linear_map(group, weight, bias))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)
