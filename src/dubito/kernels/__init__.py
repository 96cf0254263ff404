"""Private fast versions of plain formulas, behind one table.

Whoever has a plain formula asks :func:`find` for a kernel that computes the same for these arguments, and does without
if there is none. A kernel is a file here with two functions, `applies` and `compute`, a test that compares it with its
plain twin, and a row in `benchmarks/kernels.py`; one that does not save a tenth of the time or the peak memory of
a whole step on some network goes. `results/kernels.json` and `results/kernels-memory.json` have the last run:
`local` is there for memory, `gaussian_kl` for both. `winograd` and `small_maps`, in these files too, went: neither
saved a tenth of any step.

| name | its plain twin |
| --- | --- |
| ``local`` | :class:`dubito.estimators.local.Local` |
| ``gaussian_kl`` | :meth:`dubito.variational.prior.GaussianPrior.divergence` |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.jit import is_tracing  # type: ignore[attr-defined]

from dubito.kernels import gaussian_kl, local

__all__ = ["find", "runs_eagerly", "without"]

TABLE: dict[str, ModuleType] = {"local": local, "gaussian_kl": gaussian_kl}
_off: set[str] = set()


def find(name: str, *tensors: Tensor | None, **facts: Any) -> Callable[..., Any] | None:
    """The kernel of that name if it can be used with these arguments, else None."""
    kernel = TABLE[name]
    usable = name not in _off and runs_eagerly(*tensors) and kernel.applies(*tensors, **facts)
    return kernel.compute if usable else None


def runs_eagerly(*tensors: Tensor | None) -> bool:
    """Whether these are ordinary float32 or float64 tensors in ordinary reverse-mode autograd.

    There alone gradients written by hand may take the place of automatic ones. Compilers, transforms of `torch.func`,
    forward-mode differentiation, autocast and half precision get plain operations, which they understand.

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


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Inside, these kernels are not used: for tests and benchmarks."""
    before = set(_off)
    _off.update(names)
    try:
        yield
    finally:
        _off.clear()
        _off.update(before)
