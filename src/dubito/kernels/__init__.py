"""Private fast versions of plain formulas, behind one table.

Whoever has a plain formula asks :func:`find` for a kernel that computes the same for these arguments, and does without
if there is none. A kernel is a file here with two functions, `applies` and `compute`, a test that compares it with its
plain twin, and a row in `benchmarks/kernels.py`; one that does not save a tenth of the time or the peak memory of
a whole step on some network goes. `results/kernels.json` and `results/kernels-memory.json` have the last run:
`local` is there for memory, `gaussian_kl` for both. `winograd`, in these files too, went: with two threads it made
steps of VGG16 slower.

| name | its plain twin |
| --- | --- |
| ``local`` | :class:`dubito.estimators.local.Local` |
| ``gaussian_kl`` | :meth:`dubito.variational.prior.GaussianPrior.divergence` |
| ``small_maps`` | :class:`dubito.linear_map.Convolution` |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torch import Tensor

from dubito.kernels import gaussian_kl, local, small_maps
from dubito.linear_map import runs_eagerly

__all__ = ["find", "without"]

TABLE: dict[str, ModuleType] = {"local": local, "gaussian_kl": gaussian_kl, "small_maps": small_maps}
_off: set[str] = set()


def find(name: str, *tensors: Tensor | None, **facts: Any) -> Callable[..., Any] | None:
    """The kernel of that name if it can be used with these arguments, else None."""
    kernel = TABLE[name]
    usable = name not in _off and runs_eagerly(*tensors) and kernel.applies(*tensors, **facts)
    return kernel.compute if usable else None


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
