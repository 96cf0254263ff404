"""The linear maps of layers with their gradients, for autograd functions that are written by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

__all__ = ["Convolution", "LinearMap", "MatrixProduct"]

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
