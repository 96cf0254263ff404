"""Standard normal numbers, as every draw of dubito gets them.

torch makes the numbers of a CPU tensor on one core, which takes about as long as a convolution with as many outputs. So
a long vector is made in parts, each by torch's generator with a seed of its own, on as many cores as torch uses. The
seeds come from the generator that was asked: `torch.manual_seed` decides everything, and the number of threads nothing.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.jit import is_tracing  # type: ignore[attr-defined]
from torch.profiler import record_function

__all__ = ["standard_normal", "standard_normal_like"]

PART = 1 << 17
"""Numbers in a part of a long vector."""


def standard_normal(
    size: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None = None
) -> Tensor:
    """A vector of independent N(0, 1) numbers; with a generator of the CPU it is the same on every device.

    >>> generator = torch.Generator().manual_seed(0)
    >>> standard_normal(3, torch.float32, torch.device("cpu"), generator).shape
    torch.Size([3])
    """
    source = device if generator is None else generator.device
    if size <= PART or source.type != "cpu" or torch.compiler.is_compiling() or is_tracing():
        return torch.randn(size, dtype=dtype, device=source, generator=generator).to(device)
    with record_function("dubito::noise"):
        return _in_parts(size, dtype, generator).to(device)


def _in_parts(size: int, dtype: torch.dtype, generator: torch.Generator | None) -> Tensor:
    with torch.inference_mode(False):  # a mode that the threads below are not in
        parts = torch.empty(size, dtype=dtype, device="cpu").split(PART)
    seeds = torch.randint(2**62, (len(parts),), generator=generator, device="cpu").tolist()
    with ThreadPoolExecutor(min(torch.get_num_threads(), len(parts))) as threads:
        list(threads.map(_fill, parts, seeds))
    whole = parts[0]._base
    assert whole is not None
    return whole


def _fill(part: Tensor, seed: int) -> None:
    part.normal_(generator=torch.Generator("cpu").manual_seed(seed))


def standard_normal_like(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Independent N(0, 1) numbers with the shape, dtype and device of `x`."""
    if torch.compiler.is_compiling() or is_tracing() or x.is_meta:
        return torch.randn_like(x)
    if torch.func.debug_unwrap(x, recurse=False) is not x:  # a transform of torch.func is at work
        return torch.randn_like(x)
    return standard_normal(x.numel(), x.dtype, x.device, generator).view(x.shape)
