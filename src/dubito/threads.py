"""How many threads suit a network: one for small work, all for large work.

Threads share a layer's work and wait for each other after it. With little work the waiting costs more than the sharing
saves, above all on a busy machine: two threads can be four times slower than one for LeNet-5. The rule: one thread if
a forward pass of a batch takes fewer than `FEWEST_MULTIPLICATIONS`, else as many as torch has.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dubito.errors import DubitoWarning

FEWEST_MULTIPLICATIONS = 200_000_000
"""Work worth sharing: LeNet-5 needs 27 million for a batch of 64 gray images, AlexNet more than a billion."""


def multiplications(network: nn.Module, image: Tensor) -> int:
    """The multiplications of a forward pass of one image (C, H, W).

    >>> multiplications(nn.Linear(5, 3), torch.zeros(5))
    15
    """
    modes = {module: module.training for module in network.modules()}
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        network.eval()(image.unsqueeze(0))
    for module, training in modes.items():
        module.training = training
    return int(counter.get_total_flops()) // 2


def suitable_threads(network: nn.Module, image: Tensor, batch_size: int) -> int:
    """1 for small work, else as many threads as torch has.

    >>> suitable_threads(nn.Linear(5, 3), torch.zeros(5), batch_size=64)
    1
    """
    small = multiplications(network, image) * batch_size < FEWEST_MULTIPLICATIONS
    return 1 if small else torch.get_num_threads()


@contextmanager
def suiting_threads(network: nn.Module, image: Tensor, batch_size: int) -> Iterator[int]:
    """Inside, torch uses the suitable number of threads; afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(suitable_threads(network, image, batch_size))
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def rounding() -> dict[str, Any]:
    """What decides how sums are rounded: a result is the same bit for bit where all of this is."""
    return {
        "processor": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


MOST = 4096
"""Threads that a run may ask for; a larger number is not one that it was trained with."""


@contextmanager
def same_threads(recorded: Mapping[str, Any]) -> Iterator[None]:
    """Inside, torch uses the recorded number of threads; a warning says if anything else rounds otherwise.

    `recorded` is what a run's environment.json holds, of which earlier versions may have kept less.

    >>> with same_threads({"threads": 1}):
    ...     torch.get_num_threads()
    1
    """
    before, threads, versions = torch.get_num_threads(), recorded.get("threads"), recorded.get("versions")
    if isinstance(threads, int) and 0 < threads <= MOST and threads != before:
        torch.set_num_threads(threads)
    try:
        then = {**recorded, "torch": versions.get("torch") if isinstance(versions, Mapping) else None}
        others = [
            f"{name} {then[name]} then, {now} now"
            for name, now in rounding().items()
            if then.get(name) not in (None, now)
        ]
        if others:
            warnings.warn(
                f"The result will not be bit-identical to an uninterrupted training: {', '.join(others)}.",
                DubitoWarning,
                stacklevel=4,
            )
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
