"""Standard normal noise on all cores.

torch draws the numbers of a CPU tensor on one core, which takes about as long as a convolution with as many outputs.
Here every number is a function of its place, made of ordinary operations on tensors, which torch spreads over the
cores: a fixed table of outputs of SplitMix64 (Steele, Lea and Flood, 2014), plus a random key for each block of as many
places, its halves mixed and multiplied, goes through the inverse of the normal distribution function. The keys come
from torch's own generator: so `torch.manual_seed` decides everything, and the number of threads nothing.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor
from torch.jit import is_tracing  # type: ignore[attr-defined]
from torch.profiler import record_function

__all__ = ["applies", "compute"]

SMALLEST = 1 << 15
"""Fewer numbers than this torch draws as fast by itself."""

BLOCK = 1 << 17
"""Words of 64 bits that are made at once: enough for all cores, few enough for their caches."""


def applies(size: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None) -> bool:
    """Whether this many numbers are wanted on the CPU, and no graph is being made."""
    if torch.compiler.is_compiling() or is_tracing() or size < SMALLEST:
        return False
    return device.type == "cpu" and dtype in (torch.float32, torch.float64)


def compute(size: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """A vector of independent N(0, 1) numbers.

    >>> noise = compute(1 << 20, torch.float32, torch.device("cpu"), None)
    >>> bool(noise.mean().abs() < 0.01), bool((noise.var() - 1).abs() < 0.01)
    (True, True)
    """
    with torch.no_grad(), record_function("dubito::noise"):
        noise = torch.empty(size, dtype=dtype, device=device)
        _fill(noise, generator)
    return noise


def _fill(noise: Tensor, generator: torch.Generator | None) -> None:
    """Fill a vector with normal numbers."""
    whole, bits = (torch.int32, 24) if noise.dtype is torch.float32 else (torch.int64, 53)
    width = torch.iinfo(whole).bits
    parts = noise.split(BLOCK * 64 // width)
    keys = torch.randint(-(2**63), 2**63 - 1, (len(parts),), generator=generator, device="cpu").tolist()
    table, scratch = _table(), torch.empty(2, BLOCK, dtype=torch.int64, device="cpu")
    for key, part in zip(keys, parts, strict=True):
        needed = -(-part.numel() * width // 64)
        words, halves = scratch[:, :needed]
        torch.add(table[:needed], key, out=words)
        words.bitwise_xor_(torch.bitwise_right_shift(words, 32, out=halves)).mul_(_signed(FIRST))
        part.copy_(words.view(whole)[: part.numel()])
        part.mul_(2.0 ** (1 - width) * (1 - 2.0**-bits)).erfinv_().mul_(math.sqrt(2))  # in (-1, 1), both ends excluded


GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""SplitMix64's increment and multipliers."""


@cache
def _table() -> Tensor:
    """The first outputs of SplitMix64 with seed 0."""
    words = torch.arange(1, BLOCK + 1, device="cpu") * _signed(GOLDEN)
    for shift, multiplier in ((30, FIRST), (27, SECOND), (31, 1)):
        shifted = words.bitwise_right_shift(shift) & (1 << 64 - shift) - 1  # torch's shift repeats the sign
        words = (words ^ shifted) * _signed(multiplier)
    return words


def _signed(number: int) -> int:
    """The number modulo 2^64 as torch's int64 has it."""
    return (number + 2**63) % 2**64 - 2**63
