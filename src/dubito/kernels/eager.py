"""Where gradients written by hand may take the place of automatic ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.jit import is_tracing  # type: ignore[attr-defined]


def runs_eagerly(*tensors: Tensor | None) -> bool:
    """Whether these are ordinary float32 or float64 tensors in ordinary reverse-mode autograd.

    Compilers, transforms of `torch.func`, forward-mode differentiation, autocast and half precision get plain
    operations, which they understand.

    >>> runs_eagerly(torch.zeros(2)), runs_eagerly(torch.zeros(2, dtype=torch.float16))
    (True, False)
    """
    if torch.compiler.is_compiling() or is_tracing():
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
        and torch.func.debug_unwrap(tensor, recurse=False) is tensor
        and forward_ad.unpack_dual(tensor).tangent is None
        for tensor in given
    )
