"""Convolutions on small maps with many channels, whose weights get their gradient by products of matrices.

There a library takes up to five times as long for the gradient of the weight as for the output, and multiplies the
padding, on which the kernel lies half of the time. Here each cell of the kernel is one product over the channels: of
the output's gradient at the positions that the cell leads to, and of the input at those that it comes from.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from dubito.linear_map import Convolution, Gradients, runs_eagerly

CHANNELS_PER_POSITION = 8
"""Channels, of input and output each, that there must be for every position of the output."""


def applies(x: Tensor, weight: Tensor, *, convolution: Convolution) -> bool:
    """Whether this is an ordinary convolution of images on the CPU with few positions and many channels."""
    if convolution.axes != 2 or convolution.transposed or convolution.groups > 1 or x.dim() != 4:
        return False
    if x.device.type != "cpu":
        return False
    positions = math.prod(convolution.output_size(x.shape[2:], weight.shape[2:]))
    return CHANNELS_PER_POSITION * positions <= min(weight.shape[:2])


def compute(convolution: Convolution) -> Convolution:
    """The same convolution, with its own gradients."""
    return _SmallMaps(*astuple(convolution))


@dataclass(frozen=True)
class _SmallMaps(Convolution):
    def __call__(self, x: Tensor, weight: Any, bias: Any = None) -> Tensor:
        """The output."""
        if not torch.is_grad_enabled() or not runs_eagerly(x, weight, bias):
            return super().__call__(x, weight, bias)
        output: Tensor = _Convolve.apply(self, x, weight, bias)
        return output

    def gradients(self, gradient: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool, bool]) -> Gradients:
        """Of input, weight and bias."""
        of_x, _, _ = super().gradients(gradient, x, weight, (needs[0], False, False)) if needs[0] else (None,) * 3
        of_weight = self._weight_gradient(gradient, x, weight) if needs[1] else None
        return of_x, of_weight, gradient.sum((0, 2, 3)) if needs[2] else None

    def _weight_gradient(self, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        size, channels, *kernel = weight.shape
        outputs, inputs = (tensor.permute(2, 3, 0, 1).contiguous() for tensor in (gradient, x))  # (H, W, N, channels)
        found = []
        for cell in product(*map(range, kernel)):
            (down, down_from), (right, right_from) = (
                self._reach(axis, place, x.shape[2 + axis], gradient.shape[2 + axis]) for axis, place in enumerate(cell)
            )
            left = outputs.narrow(0, *down).narrow(1, *right).reshape(-1, size).t()
            found.append(left @ inputs[down_from, right_from].reshape(-1, channels))
        return torch.stack(found).permute(1, 2, 0).reshape(weight.shape)

    def _reach(self, axis: int, cell: int, inputs: int, outputs: int) -> tuple[tuple[int, int], slice]:
        """Where a cell of the kernel leads along an axis: start and number of outputs, and the inputs behind."""
        stride = self.stride[axis]
        shift = cell * self.dilation[axis] - self.padding[axis]  # output a comes from input a * stride + shift
        first = max(0, -(shift // stride))
        count = min(outputs, (inputs - 1 - shift) // stride + 1) - first
        if count <= 0:
            return (0, 0), slice(0, 0)
        start = first * stride + shift
        return (first, count), slice(start, start + (count - 1) * stride + 1, stride)


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, convolution: _SmallMaps, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.convolution = convolution
        ctx.save_for_backward(x, weight)
        return convolution(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        convolution: Convolution = ctx.convolution
        if torch.is_grad_enabled():  # a second derivative is wanted, which torch's own gradients have
            convolution = Convolution(*astuple(convolution))
        return None, *convolution.gradients(gradients[0], x, weight, ctx.needs_input_grad[1:])
