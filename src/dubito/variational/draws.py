"""Which weights a forward pass sees: one draw of every posterior, the same wherever it is read in that pass.

A pass is a call of the objective or of a network that `to_bayesian` made. Within it, the first reading of a posterior
draws, and later ones, by the same layer or by others that share the posterior, get the same weights. Outside of a pass
every reading is a fresh draw. Passes belong to their thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dubito.kernels import runs_eagerly
from dubito.variational.posterior import Posterior


class Pass:
    """The draws of one forward pass.

    Args:
        generator: what the noise comes from; None for torch's global one.
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self._generator = generator
        self._weights: dict[tuple[Posterior, int, bool], list[Tensor]] = {}
        self._computed: dict[tuple[Posterior, bool], tuple[Tensor, int, Tensor]] = {}

    def groups(self, posterior: Posterior, count: int, antithetic: bool) -> list[Tensor]:
        """`count` draws of a posterior, in pairs of opposite noise if `antithetic`; the same ones at every call."""
        key = (posterior, count, antithetic)
        if key not in self._weights:
            self._weights[key] = _draw_groups(posterior, count, antithetic, self._generator)
        return self._weights[key]

    def computed(self, posterior: Posterior, source: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """What `make` computes of a posterior's tensor, with its gradient; once, as long as the tensor is the same."""
        key = (posterior, torch.is_grad_enabled())
        known = self._computed.get(key)
        if known is None or known[0] is not source or known[1] != source._version:
            known = self._computed[key] = (source, source._version, make(source))
        return known[2]


class _Local(threading.local):
    """What is under way in this thread; attributes of the object itself, which compilers can follow."""

    def __init__(self) -> None:
        self.current: Pass | None = None
        self.owner: nn.Module | None = None
        self.depth = 0  # of calls of the owner inside each other


_thread = _Local()


@contextmanager
def one_pass(generator: torch.Generator | None = None) -> Iterator[Pass]:
    """Inside, every posterior has one draw; a pass inside a pass is the same pass, unless it has its own generator."""
    outer = _thread.current
    if outer is not None and generator is None:
        yield outer
        return
    _thread.current = Pass(generator)
    try:
        yield _thread.current
    finally:
        _thread.current = outer


def open_pass(module: nn.Module, inputs: object) -> None:
    """A forward pre-hook: a call of `module` is a pass, unless it is part of one."""
    if _thread.current is None:
        _thread.current, _thread.owner, _thread.depth = Pass(), module, 1
    elif _thread.owner is module:
        _thread.depth += 1


def close_pass(module: nn.Module, inputs: object, output: object) -> None:
    """The forward hook that ends what :func:`open_pass` began."""
    if _thread.owner is not module:
        return
    _thread.depth -= 1
    if _thread.depth == 0:
        _thread.current = _thread.owner = None


def computed_once(posterior: Posterior, source: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
    """What `make` computes of a posterior's tensor, once in the pass under way."""
    current = _thread.current
    if current is None or not runs_eagerly(source) or source.is_inference():
        return make(source)
    return current.computed(posterior, source, make)


def drawn(posterior: Posterior) -> Tensor:
    """The weights that the pass under way sees."""
    return drawn_groups(posterior, 1, False)[0]


def drawn_groups(posterior: Posterior, count: int, antithetic: bool) -> list[Tensor]:
    """The weights that the groups of a batch see in the pass under way."""
    if _thread.current is None:
        return _draw_groups(posterior, count, antithetic, None)
    return _thread.current.groups(posterior, count, antithetic)


def _draw_groups(posterior: Posterior, count: int, antithetic: bool, generator: torch.Generator | None) -> list[Tensor]:
    weights = []
    noise = posterior.fresh_noise(generator)
    for index in range(count):
        if index:
            noise = -noise if antithetic and index % 2 else posterior.fresh_noise(generator)
        weights.append(posterior.draw(noise))
    return weights
