"""Workers for tests: in this process, without waiting for another to import torch; and systems that fail."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from dubito.benchmark import Frequentist, System
from dubito.benchmark.workers import WorkerError, _Workbench


class Exits(Frequentist):
    name = "exits"

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        os._exit(7)


class Raises(Frequentist):
    name = "raises"

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        raise ValueError("no loss\ntoday")


class Missing(Frequentist):
    name = "missing"
    package = "no-such-distribution"
    modules = ("no_such_module",)


class HereWorker:
    """A worker without a process."""

    version = "1.0"

    def __init__(self, kind: type[System]) -> None:
        self.kind = kind
        self._bench = _Workbench(kind)

    def __getattr__(self, verb: str) -> Any:
        def ask(*arguments: Any) -> Any:
            try:
                return getattr(self._bench, verb)(*arguments)
            except ValueError as error:
                raise WorkerError(str(error)) from None

        return ask


@contextmanager
def here(kinds: Sequence[type[System]], threads: int) -> Iterator[dict[str, HereWorker]]:
    yield {kind.name: HereWorker(kind) for kind in kinds}


class ClockWorker:
    """A worker that does nothing and tells times from a list, the one of its preparation first."""

    version = "1.0"

    def __init__(self, kind: type[System], times: list[float], log: list[str]) -> None:
        self.kind, self._times, self._log = kind, iter(times), log

    def prepare(self, work: object) -> float:
        return next(self._times)

    def seconds(self, work: object, repeat: int) -> float:
        self._log.append(self.kind.name)
        taken = next(self._times, None)
        if taken is None:
            raise WorkerError("out of time")
        return taken
