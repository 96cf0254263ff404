"""Copies of a network for threads to work with, one at a time each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

__all__ = ["Workers"]

Worker = TypeVar("Worker")


class Workers(Generic[Worker]):
    """Makes a worker when all others are busy; threads never share one, and never wait for each other.

    >>> workers = Workers(list)
    >>> with workers.one() as first, workers.one() as second:
    ...     first is second
    False
    """

    def __init__(self, make: Callable[[], Worker]) -> None:
        self._make = make
        self._idle: list[Worker] = []

    @contextmanager
    def one(self) -> Iterator[Worker]:
        """A worker that nobody else has meanwhile."""
        try:
            worker = self._idle.pop()  # pop and append are atomic
        except IndexError:
            worker = self._make()
        try:
            yield worker
        finally:
            self._idle.append(worker)
