"""Standard normal numbers, as every draw of dubito gets them."""

from __future__ import annotations

import torch
from torch import Tensor


def standard_normal(
    size: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None = None
) -> Tensor:
    """A vector of independent N(0, 1) numbers; with a generator of the CPU it is the same on every device.

    >>> generator = torch.Generator().manual_seed(0)
    >>> standard_normal(3, torch.float32, torch.device("cpu"), generator).shape
    torch.Size([3])
    """
    source = device if generator is None else generator.device
    return torch.randn(size, dtype=dtype, device=source, generator=generator).to(device)
