"""Workers: a process for each system, which waits until it is told to do a piece of work and says how long it took."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from dubito.benchmark.memory import forget_peak, peak
from dubito.benchmark.systems import Frequentist, System
from dubito.benchmark.work import PlainNetwork, Task, Work
from dubito.errors import DubitoError
from dubito.memory import keep_freed_memory
from dubito.runs.environment import version_of

Examination = Callable[[Callable[[], Any], nn.Module], Any]
"""Of an action, and the network that it uses."""
PATIENCE = 900.0
"""Seconds after which an answer is no longer waited for."""
TIMES = 3
"""How often the work is done whose peak memory is taken: the first step makes the optimiser's state, others need it."""


class WorkerError(DubitoError):
    """A system could not do what was asked of it; the message says why."""


class Worker:
    """A process that works for one system; a process that fails once is not asked again."""

    def __init__(self, kind: type[System], threads: int) -> None:
        self.kind = kind
        self.version = version_of(kind.package)
        self.failure: str | None = None
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, kind, threads), daemon=True)
        self._process.start()
        theirs.close()

    def wait_until_ready(self) -> None:
        """Until the process has imported what it needs."""
        try:
            self._answer()
        except WorkerError as error:
            self._fail(f"it cannot be imported: {error}")

    def prepare(self, work: Work) -> float:
        """Build what the work needs, do it once or, if it is quick, twice, and give the seconds of the last time."""
        return float(self._ask("prepare", work))

    def seconds(self, work: Work, repeat: int) -> float:
        """The mean time of one of `repeat` pieces of work."""
        return float(self._ask("seconds", work, repeat))

    def memory(self, work: Work) -> float:
        """Megabytes that building the network and working needs at most, beyond what there was; ask it first of all."""
        return float(self._ask("memory", work))

    def examine(self, work: Work, examined: Examination) -> Any:
        """What a function finds out about the work and its network."""
        return self._ask("examine", work, examined)

    def forget(self) -> None:
        """Give back the memory of everything built so far."""
        self._ask("forget")

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):  # it may be gone already
            self._connection.send(None)
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._connection.close()

    def _ask(self, *order: Any) -> Any:
        if self.failure is not None:
            raise WorkerError(self.failure)
        try:
            self._connection.send(order)
        except OSError:
            self._fail(self._end())
        return self._answer()

    def _answer(self) -> Any:
        if self.failure is not None:
            raise WorkerError(self.failure)
        if not self._connection.poll(PATIENCE):
            self._process.kill()
            self._fail(f"no answer within {PATIENCE:.0f} s")
        try:
            fine, value = self._connection.recv()
        except (EOFError, OSError):
            self._fail(self._end())
        if not fine:
            self._fail(value)
        return value

    def _end(self) -> str:
        self._process.join(5)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"

    def _fail(self, reason: str) -> NoReturn:
        self.failure = reason
        raise WorkerError(reason)


@contextmanager
def open_workers(kinds: Sequence[type[System]], threads: int) -> Iterator[dict[str, Worker]]:
    """A worker for each system by its name, ready; those that could not start have a `failure`."""
    workers = {kind.name: Worker(kind, threads) for kind in kinds}
    try:
        for worker in workers.values():
            with suppress(WorkerError):
                worker.wait_until_ready()
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


def _serve(connection: Connection, kind: type[System], threads: int) -> None:
    """What a worker's process does: answer orders until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends its workers
    keep_freed_memory()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    bench = _Workbench(kind)
    _reply(connection, bench.start)
    while True:
        try:
            order = connection.recv()
        except EOFError:  # the parent is gone
            return
        if order is None:
            return
        name, *arguments = order
        _reply(connection, getattr(bench, name), *arguments)


def _reply(connection: Connection, action: Callable[..., Any], *arguments: Any) -> None:
    try:
        answer = (True, action(*arguments))
    except Exception as error:
        answer = (False, " ".join(f"{type(error).__name__}: {error}".split())[:300])
    connection.send(answer)


class _Workbench:
    """The systems that a worker has built, by their network, and the work it has prepared."""

    def __init__(self, kind: type[System]) -> None:
        self._kind = kind
        self._systems: dict[Any, System] = {}
        self._actions: dict[Work, Callable[[], Any]] = {}

    def start(self) -> None:
        """Import everything, also what torch loads only when it is used."""
        for module in self._kind.modules:
            import_module(module)
        _training_step(Frequentist(PlainNetwork(4, 1).build()), *Work("", Task.STEP, 2).data())()

    def prepare(self, work: Work) -> float:
        torch.manual_seed(0)
        if work not in self._actions:
            self._actions[work] = self._action(work)
        first = self.seconds(work, 1)
        return first if first > 1 else self.seconds(work, 1)

    def seconds(self, work: Work, repeat: int) -> float:
        action = self._actions[work]
        start = time.perf_counter()
        for _ in range(repeat):
            action()
        return (time.perf_counter() - start) / repeat

    def memory(self, work: Work) -> float:
        gc.collect()
        forget_peak()
        before = peak()
        action = self._action(work)
        for _ in range(TIMES):
            action()
        self._actions[work] = action
        return peak() - before

    def examine(self, work: Work, examined: Examination) -> Any:
        self.prepare(work)
        return examined(self._actions[work], self._systems[work.network].network)

    def forget(self) -> None:
        self._systems.clear()
        self._actions.clear()
        gc.collect()

    def _action(self, work: Work) -> Callable[[], Any]:
        images, labels = work.data()
        if work.network not in self._systems:
            self._systems[work.network] = self._kind(work.build())
        system = self._systems[work.network]
        if work.task is Task.PREDICT:
            predictor = system.predictor(work.samples)
            return lambda: predictor(images)
        return _training_step(system, images, labels)


def _training_step(system: System, images: Tensor, labels: Tensor) -> Callable[[], None]:
    optimizer = system.optimizer()

    def step() -> None:
        optimizer.zero_grad()
        system.loss(images, labels).backward()
        optimizer.step()

    return step
