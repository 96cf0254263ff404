"""Copies of a network for threads to work with, one at a time each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Worker = TypeVar("Worker")


class Workers(Generic[Worker]):
    """Idle workers; threads never share one, and never wait for each other.

    >>> workers = Workers()
    >>> with workers.one(list) as first, workers.one(list) as second:
    ...     first is second
    False
    """

    def __init__(self) -> None:
        self._idle: list[Worker] = []

    @contextmanager
    def one(self, make: Callable[[], Worker]) -> Iterator[Worker]:
        """A worker that nobody else has meanwhile; a new one if all are busy."""
        try:
            worker = self._idle.pop()  # pop and append are atomic
        except IndexError:
            worker = make()
        try:
            yield worker
        finally:
            self._idle.append(worker)
