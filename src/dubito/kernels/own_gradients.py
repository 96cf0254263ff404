"""Convolutions that write their own backward pass, as one autograd function."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from dubito.kernels.eager import runs_eagerly
from dubito.linear_map import Convolution

__all__ = ["OwnGradients"]


@dataclass(frozen=True)
class OwnGradients(Convolution):
    """A convolution whose `gradients` are its own. Without gradients to come it is the plain one."""

    def __call__(self, x: Tensor, weight: Any, bias: Any = None) -> Tensor:
        """The output."""
        if not torch.is_grad_enabled() or not runs_eagerly(x, weight, bias):
            return super().__call__(x, weight, bias)
        output: Tensor = _Convolve.apply(self, x, weight, bias)
        return output

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What the forward pass computes: torch's own, unless a kernel has another."""
        return super().__call__(x, weight, bias)


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, convolution: OwnGradients, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.convolution = convolution
        ctx.save_for_backward(x, weight)
        return convolution.output(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        convolution: Convolution = ctx.convolution
        if torch.is_grad_enabled():  # a second derivative is wanted, which torch's own gradients have
            convolution = Convolution(*astuple(convolution))
        return None, *convolution.gradients(gradients[0], x, weight, ctx.needs_input_grad[1:])
