"""The local reparameterisation trick as one autograd function, for linear layers and convolutions alike.

The formula F(x, mu) + eps * sqrt(F(x^2, sigma^2)) written with torch's operations keeps six tensors of the output's size
for the backward pass and allocates as many again. Written out, it works in place and keeps two: the input, which the
previous layer keeps anyway, and h = eps / (2 sqrt(v)), the derivative of the output with respect to its variance v. The
squares are computed again. :class:`dubito.estimators.Local` has the plain formula, which tests compare with this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from dubito.noise import standard_normal_like

__all__ = ["Convolution", "LinearMap", "MatrixProduct", "local_reparameterization"]

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


class LinearMap(Protocol):
    """A function of (input, weight, bias) that is linear in the input, and its gradients."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output."""

    def gradients(self, gradient: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool, bool]) -> Gradients:
        """Gradients of input, weight and bias, each if needed, from that of the output."""


@dataclass(frozen=True)
class MatrixProduct:
    """x W' + b."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output."""
        return linear(x, weight, bias)

    def gradients(self, gradient: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool, bool]) -> Gradients:
        """Three products."""
        rows = gradient.reshape(-1, gradient.shape[-1])
        return (
            gradient @ weight if needs[0] else None,
            rows.t() @ x.reshape(-1, x.shape[-1]) if needs[1] else None,
            rows.sum(0) if needs[2] else None,
        )


@dataclass(frozen=True)
class Convolution:
    """Any convolution of torch, transposed ones included, on a batch."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output."""
        return torch.convolution(
            x,
            weight,
            bias,
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding,
            self.groups,
        )

    def gradients(self, gradient: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool, bool]) -> Gradients:
        """torch's own, but for the weight's on tiny maps."""
        tiny = needs[1] and self._is_tiny(gradient, x)
        of_x, of_weight, of_bias = torch.ops.aten.convolution_backward(
            gradient,
            x,
            weight,
            [gradient.shape[1]],
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding,
            self.groups,
            [needs[0], needs[1] and not tiny, needs[2] and not tiny],  # oneDNN has a bias's only with the weight's
        )
        if tiny:
            of_bias = gradient.sum((0, 2, 3)) if needs[2] else None
            of_weight = self._weight_gradient_by_positions(gradient, x, weight.shape)
        return of_x, of_weight, of_bias

    def _is_tiny(self, gradient: Tensor, x: Tensor) -> bool:
        """Whether input and output have few positions and the batch is large enough for products of matrices."""
        few = math.prod(gradient.shape[2:]) * math.prod(x.shape[2:]) <= TINY
        return (
            few
            and x.dim() == 4
            and len(x) >= 32
            and self.groups == 1
            and not self.transposed
            and x.device.type == "cpu"
        )

    def _weight_gradient_by_positions(self, gradient: Tensor, x: Tensor, shape: torch.Size) -> Tensor:
        """The gradient of a weight as a sum of products of matrices, one for each pair of positions that it connects.

        On maps of 2x2 a 3x3 kernel lies mostly on padding, and libraries multiply that too: this takes a third of the
        time of oneDNN's.
        """
        kernel = shape[2:]
        weight = x.new_zeros(kernel[0] * kernel[1], shape[0], shape[1])
        rows = gradient.permute(2, 3, 1, 0).contiguous()  # (H, W, out, N)
        columns = x.permute(2, 3, 0, 1).contiguous()  # (H, W, N, in)
        for i in range(rows.shape[0]):
            for j in range(rows.shape[1]):
                for k in range(kernel[0]):
                    for m in range(kernel[1]):
                        u = i * self.stride[0] - self.padding[0] + k * self.dilation[0]
                        v = j * self.stride[1] - self.padding[1] + m * self.dilation[1]
                        if 0 <= u < columns.shape[0] and 0 <= v < columns.shape[1]:
                            weight[k * kernel[1] + m].addmm_(rows[i, j], columns[u, v])
        return weight.permute(1, 2, 0).reshape(shape)


TINY = 16
"""Pairs of an output's and an input's position, up to which the weight's gradient is computed pair by pair."""


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
        ctx.save_for_backward(x, mean, bias_mean, std, bias_std, noise.div_(deviation).mul_(0.5))
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, mean, bias_mean, std, bias_std, by_variance = ctx.saved_tensors
        (gradient,) = gradients
        _, need_x, need_mean, need_bias_mean, need_std, need_bias_std = ctx.needs_input_grad
        if torch.is_grad_enabled():  # a second derivative is wanted
            return (None, *_differentiable(ctx, x, mean, bias_mean, std, bias_std, by_variance, gradient))
        linear_map: LinearMap = ctx.linear_map
        of_x, of_mean, of_bias_mean = linear_map.gradients(gradient, x, mean, (need_x, need_mean, need_bias_mean))
        needs = (need_x, need_std, need_bias_std)
        if not any(needs):
            return None, of_x, of_mean, of_bias_mean, None, None
        of_square, of_std, of_bias_std = linear_map.gradients(gradient * by_variance, x.square(), std.square(), needs)
        if of_x is not None and of_square is not None:
            of_x.addcmul_(of_square, x, value=2)
        if of_std is not None:
            of_std.mul_(std).mul_(2)
        if of_bias_std is not None:
            of_bias_std.mul_(bias_std).mul_(2)
        return None, of_x, of_mean, of_bias_mean, of_std, of_bias_std


def _differentiable(
    ctx: Any,
    x: Tensor,
    mean: Tensor,
    bias_mean: Tensor | None,
    std: Tensor,
    bias_std: Tensor | None,
    by_variance: Tensor,
    gradient: Tensor,
) -> tuple[Tensor | None, ...]:
    """The gradients by the plain formula with the same noise, as functions that can be differentiated again."""
    linear_map: LinearMap = ctx.linear_map
    inputs = (x, mean, bias_mean, std, bias_std)
    variance = linear_map(x.square(), std.square(), None if bias_std is None else bias_std.square())
    deviation = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
    output = torch.addcmul(linear_map(x, mean, bias_mean), deviation, 2 * by_variance * deviation.detach())
    pairs = zip(inputs, ctx.needs_input_grad[1:], strict=True)
    wanted = [tensor for tensor, need in pairs if need and tensor is not None]
    found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=True))
    return tuple(next(found) if need else None for need in ctx.needs_input_grad[1:])
