"""Where gradients written by hand may take the place of automatic ones, and a small one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from dubito.softplus import at_least_single

__all__ = [
    "differentiable_gradients",
    "has_values",
    "not_a_view",
    "runs_eagerly",
    "self_product",
    "sum_of_squares",
    "sums_of_squares",
]


def runs_eagerly(*tensors: Tensor | None) -> bool:
    """Whether these are ordinary float32 or float64 tensors in ordinary reverse-mode autograd.

    Compilers, `torch.func` transforms, forward-mode differentiation, autocast and half precision get plain operations,
    which they understand.
    """
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return False
    if torch._C._are_functorch_transforms_active():  # even of tensors that it does not transform
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


def has_values(*tensors: Tensor) -> bool:
    """Whether the values of these can be looked at: neither a compiler nor a transform of `torch.func` is at work."""
    if torch.compiler.is_compiling():
        return False
    transformed = (torch._C._functorch.is_functorch_wrapped_tensor, torch._C._functorch.is_legacy_batchedtensor)
    return not any(tensor.is_meta or any(kind(tensor) for kind in transformed) for tensor in tensors)


def differentiable_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor | None], needs: Sequence[bool], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of a function with respect to the inputs that need them, which can be differentiated again.

    Each is with respect to its own input alone: an input may have been computed from another one, such as a standard
    deviation from a mean, or from the same parameter.
    """
    own = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
    wanted = [tensor for tensor, need in zip(own, needs, strict=True) if need and tensor is not None]
    found = iter(torch.autograd.grad(function(*own), wanted, gradient, create_graph=True))
    return tuple(next(found) if need else None for need in needs)


def not_a_view(tensor: Tensor) -> Tensor:
    """The same numbers in the same memory, as what an autograd function may give: its views refuse changes in place."""
    if not tensor._is_view():
        return tensor
    whole: Tensor = torch.ops.aten._unsafe_view(tensor, tensor.shape)
    return whole


ROW, FEW = 1 << 10, 1 << 15
"""Numbers in one of many norms, and up to which a dot product does: every number rounds the sum so far."""


def self_product(flat: Tensor) -> Tensor:
    """The sum of the squares of a vector, without a vector of squares.

    >>> abs(float(self_product(torch.full((1 << 24,), 0.1))) / (0.01 * 2**24) - 1) < 1e-6
    True
    """
    if flat.numel() <= FEW:
        return torch.dot(flat, flat)
    end = flat.numel() // ROW * ROW
    rows, rest = flat[:end].view(-1, ROW), flat[end:]
    return torch.linalg.vector_norm(rows, dim=1).square().sum() + torch.dot(rest, rest)


def sum_of_squares(x: Tensor) -> Tensor:
    """The sum of x^2 over all elements, in at least float32, without a tensor of squares.

    >>> sum_of_squares(torch.tensor([3.0, 4.0]))
    tensor(25.)
    """
    return sums_of_squares([x])[0]


def sums_of_squares(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The same for several tensors at once, as most of the time of small ones would go into calls."""
    if not runs_eagerly(*tensors):
        return [at_least_single(x).square().sum() for x in tensors]
    sums: tuple[Tensor, ...] = _SumsOfSquares.apply(*tensors)
    return sums


class _SumsOfSquares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*tensors)
        return tuple(self_product(x.reshape(-1)) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        if torch.is_grad_enabled() or gradients[0].device.type != "cpu" or not has_values(*gradients):
            return tuple(x * (2 * gradient) for x, gradient in zip(ctx.saved_tensors, gradients, strict=True))
        found: tuple[Tensor, ...] = torch._foreach_mul(
            ctx.saved_tensors, [2 * gradient.item() for gradient in gradients]
        )
        return tuple(found)
