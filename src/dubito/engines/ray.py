"""The engine ``ray``: worker processes on this machine or on a cluster, by Ray's actors.

Every worker makes the function once and is given an item at a time, with one more waiting so that it is never idle. A
worker that dies, or whose machine does, is replaced; its items go to whichever worker is free first. Ray Data is not
used: it would list all of its input before it begins, and which parts are done is known by their files.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dubito.engines.base import Engine, Item, Make, Result
from dubito.errors import DubitoError, OptionError, missing

OBJECT_STORE = 128 << 20
"""Bytes of shared memory that a Ray on this machine gets: items and results are small."""
REACHED = 10
"""Seconds in which a cluster must answer."""
DYING = 10
"""Seconds in which the death of a worker is known after its partners fail."""
QUIET = {
    "RAY_memory_monitor_refresh_ms": "0",  # or a worker is killed when the machine's memory is nearly full, by whomever
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
}
"""Settings of a Ray that is started here."""
DEATHS = 3
"""How many workers an item may end before it is given up."""


def require_ray() -> Any:
    """The module `ray`; an error says what to install where it is missing."""
    try:
        import ray
    except ImportError:
        raise missing("The engine ray", "ray", "ray") from None
    return ray


class RayEngine(Engine):
    """Works in several processes, each a Ray actor.

    Args:
        workers: how many; None for one a core of this machine, or of the cluster that `address` names.
        address: of a running cluster, or ``auto`` for the one that this machine belongs to; None uses the Ray that this
            process has started, or starts one that ends with the work.
        cpus: cores of each worker.
        gpus: GPUs of each worker; a share such as 0.5 lets workers share one.
    """

    name = "ray"

    def __init__(
        self, workers: int | None = None, address: str | None = None, cpus: float = 1, gpus: float = 0
    ) -> None:
        if workers is not None and workers < 1:
            raise OptionError(f"workers is {workers}, but must be at least 1.")
        if gpus < 0 or cpus <= 0:
            raise OptionError(f"A worker has {cpus} cores and {gpus} GPUs, but needs more than 0 and at least 0.")
        self.ray = require_ray()
        self.workers, self.address, self.cpus, self.gpus = workers, address, cpus, gpus

    def map(self, make: Make[Item, Result], items: Iterable[Item], *, ahead: int = 1) -> Iterator[tuple[Item, Result]]:
        """Each item with its result, as they are finished."""
        with self.connected() as count:
            yield from _Pool(self.ray, self.actor(_Worker), make, count, ahead).map(items)

    def together(self, work: Callable[[Place], None]) -> None:
        """Run one task that all workers do together, at the same time; ends when all have ended.

        Raises:
            WorkerDiedError: if one of them died for any reason; the others are stopped.
        """
        with self.connected() as count:
            there = self.ray.cluster_resources().get("CPU", 0)
            if count * self.cpus > there:
                raise OptionError(
                    f"{count} workers that work together need {count * self.cpus:g} cores, but the cluster has "
                    f"{there:g}: give fewer --workers."
                )
            actors = [self.actor(_Partner).remote() for _ in range(count)]
            try:
                host, port = self._watched([actors[0].address.remote()])[0]
                self._watched(
                    [actor.work.remote(work, Place(rank, count, host, port)) for rank, actor in enumerate(actors)]
                )
            finally:
                for actor in actors:
                    self.ray.kill(actor)

    def _watched(self, results: list[Any]) -> list[Any]:
        """All results; if one of the workers has died, that is the error, whatever its partners then raise."""
        errors = self.ray.exceptions
        waiting, failure = list(results), None
        while waiting:
            done, waiting = self.ray.wait(waiting, timeout=None if failure is None else DYING)
            for result in done:
                try:
                    self.ray.get(result)
                except errors.RayActorError:
                    raise WorkerDiedError("A worker died, perhaps for lack of memory.") from None
                except errors.RayTaskError as error:
                    failure = failure or _cause(error)
                    if isinstance(failure, DubitoError):
                        raise failure from None
            if failure is not None and not done:
                break
        if failure is not None:
            raise failure
        return list(self.ray.get(results))

    def actor(self, kind: type) -> Any:
        """A class whose instances are Ray actors with the cores and GPUs of a worker."""
        return self.ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0)(kind)

    @contextmanager
    def connected(self) -> Iterator[int]:
        """A context in which Ray runs; gives the number of workers. A Ray that ran before keeps running."""
        own = not self.ray.is_initialized()
        if own:
            self._start()
        try:
            found = self.ray.cluster_resources().get("CPU", 1)
            yield self.workers or max(1, int(found / self.cpus))
        finally:
            if own:
                self.ray.shutdown()

    def _require_reachable(self, address: str) -> None:
        """An error within seconds if nothing answers at HOST:PORT, which Ray tries for long and with many words."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            return  # auto, or an address of another form
        try:
            socket.create_connection((host, int(port)), timeout=REACHED).close()
        except (OSError, OverflowError) as error:
            raise DubitoError(f"Ray cannot be reached at {address}: {error}.") from None

    def _start(self) -> None:
        # "local", or Ray would join a cluster that happens to run on this machine.
        options: dict[str, Any] = {"address": "local", "include_dashboard": False, "object_store_memory": OBJECT_STORE}
        if self.address is not None:
            self._require_reachable(self.address)
            options = {"address": self.address}
        elif self.workers is not None:
            options["num_cpus"] = max(1, -int(-self.workers * self.cpus // 1))
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        try:
            self.ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = f"at {self.address}" if self.address else "on this machine"
            raise DubitoError(f"Ray cannot be reached {where}: {' '.join(str(error).split())[:300]}") from None


class WorkerDiedError(DubitoError):
    """One of several workers that work together is gone."""


@dataclass(frozen=True)
class Place:
    """A worker's place among those that work together, and where the first of them is found."""

    rank: int
    count: int
    host: str
    port: int


class _Partner:
    """The actor of a work that is done together."""

    def address(self) -> tuple[str, int]:
        """Where this process can be reached, with a port that is free."""
        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def work(self, work: Callable[[Place], None], place: Place) -> None:
        """This worker's part."""
        work(place)


class _Worker:
    """The actor: one process with the function."""

    def __init__(self, make: Callable[[], Callable[[Any], Any]]) -> None:
        self.function = make()

    def ready(self) -> None:
        """Returns as soon as the function is made."""

    def work(self, item: Any) -> Any:
        """The function's result."""
        return self.function(item)


class _Pool:
    """Actors, the items that each has, and the items that lost theirs."""

    def __init__(self, ray: Any, actor: Any, make: Any, workers: int, ahead: int) -> None:
        self.ray, self.actor, self.workers, self.ahead = ray, actor, workers, ahead
        self.make = ray.put(make)
        self.starting: dict[Any, Any] = {}  # what says that an actor is ready: the actor
        self.load: dict[Any, int] = {}  # actors that are ready, and how many items each has
        self.working: dict[Any, tuple[Any, Any]] = {}  # a result to come: its actor and item
        self.lost: deque[Any] = deque()
        self.deaths: dict[int, int] = {}

    def map(self, items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Every item with its result."""
        remaining = iter(items)
        for _ in range(self.workers):
            self._begin()
        try:
            while True:
                exhausted = not self._hand_out(remaining)
                if exhausted and not self.working:
                    return
                done, _ = self.ray.wait([*self.starting, *self.working])
                for found in done:
                    if found in self.starting:
                        self._started(found)
                    else:
                        yield from self._finished(found)
        finally:
            for actor in (*self.starting.values(), *self.load):
                self.ray.kill(actor)

    def _begin(self) -> None:
        actor = self.actor.remote(self.make)
        self.starting[actor.ready.remote()] = actor

    def _hand_out(self, remaining: Iterator[Any]) -> bool:
        """Give items to the workers that are free; False if there are none left."""
        while self.load:
            actor = min(self.load, key=lambda worker: self.load[worker])
            if self.load[actor] > self.ahead:
                return True
            try:
                item = self.lost.popleft() if self.lost else next(remaining)
            except StopIteration:
                return False
            self.working[actor.work.remote(item)] = actor, item
            self.load[actor] += 1
        return True

    def _started(self, found: Any) -> None:
        actor = self.starting.pop(found)
        try:
            self.ray.get(found)
            self.load[actor] = 0
        except self.ray.exceptions.RayTaskError as error:
            raise _cause(error) from None
        except self.ray.exceptions.RayActorError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, self.ray.exceptions.RayTaskError):
                raise _cause(cause) from None
            self._mourn(id(self), "A worker died while it started")
            self._begin()

    def _finished(self, found: Any) -> Iterator[tuple[Any, Any]]:
        actor, item = self.working.pop(found)
        try:
            result = self.ray.get(found)
        except self.ray.exceptions.RayTaskError as error:
            raise _cause(error) from None
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError):
            self.lost.append(item)
            if self.load.pop(actor, None) is not None:  # the first of its items that is found lost
                self._mourn(id(item), f"Workers died of {item!r:.200}")
                self._begin()
            return
        if actor in self.load:
            self.load[actor] -= 1
        self.deaths.pop(id(item), None)
        yield item, result

    def _mourn(self, key: int, what: str) -> None:
        """Count a death; so many of one item are no accident."""
        self.deaths[key] = self.deaths.get(key, 0) + 1
        if self.deaths[key] >= DEATHS:
            raise DubitoError(f"{what} {DEATHS} times, perhaps for lack of memory: try a smaller --batch-size.")


def _cause(error: Any) -> Exception:
    """What was raised in a worker, as it would have been raised here."""
    cause = error.cause if isinstance(getattr(error, "cause", None), Exception) else error
    return cause if isinstance(cause, DubitoError) else error
