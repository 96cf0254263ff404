"""Where gradients written by hand may take the place of automatic ones, and a small one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from dubito.softplus import at_least_single

__all__ = ["runs_eagerly", "sum_of_squares"]


def runs_eagerly(*tensors: Tensor | None) -> bool:
    """Whether these are ordinary float32 or float64 tensors in ordinary reverse-mode autograd.

    Compilers, `torch.func` transforms, forward-mode differentiation, autocast and half precision get plain operations,
    which they understand.
    """
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return False
    given = [tensor for tensor in tensors if tensor is not None]
    first = given[0]
    if first.dtype not in (torch.float32, torch.float64) or first.is_meta:
        return False
    if torch.is_autocast_enabled(first.device.type):
        return False
    return all(
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.dtype is first.dtype
        and tensor.device == first.device
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        for tensor in given
    )


def sum_of_squares(x: Tensor) -> Tensor:
    """The sum of x^2 over all elements, in at least float32, without a tensor of squares.

    >>> sum_of_squares(torch.tensor([3.0, 4.0]))
    tensor(25.)
    """
    if not runs_eagerly(x):
        return at_least_single(x).square().sum()
    result: Tensor = _SumOfSquares.apply(x)
    return result


class _SumOfSquares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        flat = x.reshape(-1)
        return torch.dot(flat, flat)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return x * (2 * gradients[0])
