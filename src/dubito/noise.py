"""Standard normal noise on all cores.

torch draws the numbers of a CPU tensor on one core, which takes about as long as a convolution with as many outputs.
Here every number is a function of its place: a counter is scrambled by the finaliser of SplitMix64 (Steele, Lea and
Flood, 2014), starting at a number from torch's own generator, and goes through the inverse of the normal distribution
function. These are ordinary operations on tensors, which torch spreads over the cores. So `torch.manual_seed` decides
everything, and the result does not depend on the number of threads.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

__all__ = ["standard_normal_like"]

SMALLEST = 1 << 17
"""Fewer numbers than this torch draws as fast by itself."""

BLOCK = 1 << 18
"""Counters that are scrambled at once: enough for all cores, few enough for their caches."""


def standard_normal_like(x: Tensor) -> Tensor:
    """Independent N(0, 1) numbers with the shape, dtype and device of `x`.

    >>> noise = standard_normal_like(torch.empty(1000, 1000))
    >>> bool(noise.mean().abs() < 0.01), bool((noise.var() - 1).abs() < 0.01)
    (True, True)
    """
    if (
        torch.compiler.is_compiling()
        or type(x) not in (Tensor, nn.Parameter)
        or x.device.type != "cpu"
        or x.dtype not in (torch.float32, torch.float64)
        or x.numel() < SMALLEST
        or torch._C._functorch.is_functorch_wrapped_tensor(x)
    ):
        return torch.randn_like(x)
    with torch.no_grad(), _shown_to_profilers():
        noise = torch.empty(x.shape, dtype=x.dtype, device="cpu")
        start = int(torch.randint(-(2**63), 2**63 - 1, (), device="cpu"))
        _fill(noise.view(-1), start)
    return noise


def _shown_to_profilers() -> AbstractContextManager[Any]:
    """A range in a profile, and only there: it costs a hundredth of the smallest noise, asking a thousandth at most."""
    return record_function("dubito::noise") if torch._C._autograd._profiler_enabled() else nullcontext()


def _fill(noise: Tensor, start: int) -> None:
    """Fill a vector with normal numbers."""
    whole, bits = (torch.int32, 24) if noise.dtype is torch.float32 else (torch.int64, 53)
    width = torch.iinfo(whole).bits
    per_counter = 64 // width
    scratch = torch.empty(2, BLOCK, dtype=torch.int64, device="cpu")
    half = torch.tensor(2.0**-bits, dtype=noise.dtype, device="cpu")
    for number, part in enumerate(noise.split(BLOCK * per_counter)):
        counters = -(-part.numel() // per_counter)
        numbers = _scrambled(start + number * BLOCK * GOLDEN, *scratch[:, :counters])
        signed = numbers.view(whole)[: part.numel()].bitwise_right_shift_(width - bits)
        torch.add(half, part.copy_(signed), alpha=2.0 ** (1 - bits), out=part)  # odd multiples of 2^-bits in (-1, 1)
        part.erfinv_().mul_(math.sqrt(2))


GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""SplitMix64's increment and multipliers."""


def _scrambled(start: int, numbers: Tensor, temporary: Tensor) -> Tensor:
    """64 random bits for each of the counters start, start + GOLDEN, ...; both tensors are overwritten."""
    torch.add(_counters()[: len(numbers)], _signed(start), out=numbers)
    for shift, multiplier in ((30, FIRST), (27, SECOND), (31, 1)):
        # torch's shift repeats the sign
        torch.bitwise_right_shift(numbers, shift, out=temporary).bitwise_and_((1 << 64 - shift) - 1)
        numbers.bitwise_xor_(temporary)
        if multiplier > 1:
            numbers.mul_(_signed(multiplier))
    return numbers


@cache
def _counters() -> Tensor:
    return torch.arange(BLOCK, device="cpu") * _signed(GOLDEN)


def _signed(number: int) -> int:
    """The number modulo 2^64 as torch's int64 has it."""
    return (number + 2**63) % 2**64 - 2**63
