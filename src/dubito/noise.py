"""Standard normal noise on two cores.

torch draws the numbers of a CPU tensor on one core, which takes about as long as a convolution with as many outputs.
Here two threads each fill one half of a large tensor, from generators that start at two numbers of torch's own: so
`torch.manual_seed` decides everything, and the result does not depend on the number of threads.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor, nn

__all__ = ["standard_normal_like"]

SMALLEST = 1 << 17
"""Fewer numbers than this are drawn at once: a second thread takes a while to wake up."""


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
        or x.numel() < SMALLEST
        or torch._C._functorch.is_functorch_wrapped_tensor(x)
    ):
        return torch.randn_like(x)
    noise = torch.empty(x.shape, dtype=x.dtype)
    first, second = noise.view(-1).tensor_split(2)
    seeds = torch.randint(2**62, (2,)).tolist()
    if torch.get_num_threads() > 1:
        other = _second_thread().submit(_fill, first, seeds[0])
        _fill(second, seeds[1])
        other.result()
    else:
        _fill(first, seeds[0])
        _fill(second, seeds[1])
    return noise


def _fill(numbers: Tensor, seed: int) -> None:
    with torch.no_grad():  # which holds for this thread alone
        numbers.normal_(generator=torch.Generator().manual_seed(seed))


@cache
def _second_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="dubito-noise")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_second_thread.cache_clear)  # a forked process has no second thread yet
