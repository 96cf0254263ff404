"""Standard normal numbers, as every draw of dubito gets them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.jit import is_tracing  # type: ignore[attr-defined]

from dubito import kernels

__all__ = ["standard_normal", "standard_normal_like"]


def standard_normal(
    size: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None = None
) -> Tensor:
    """A vector of independent N(0, 1) numbers; with a generator of the CPU it is the same on every device.

    >>> generator = torch.Generator().manual_seed(0)
    >>> standard_normal(3, torch.float32, torch.device("cpu"), generator).shape
    torch.Size([3])
    """
    kernel = kernels.find("noise", size, dtype, device, generator)
    if kernel is not None:
        noise: Tensor = kernel(size, dtype, device, generator)
        return noise
    source = device if generator is None else generator.device
    return torch.randn(size, dtype=dtype, device=source, generator=generator).to(device)


def standard_normal_like(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Independent N(0, 1) numbers with the shape, dtype and device of `x`."""
    if torch.compiler.is_compiling() or is_tracing() or x.is_meta:
        return torch.randn_like(x)
    if torch.func.debug_unwrap(x, recurse=False) is not x:  # a transform of torch.func is at work
        return torch.randn_like(x)
    return standard_normal(x.numel(), x.dtype, x.device, generator).view(x.shape)
