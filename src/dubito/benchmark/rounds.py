"""Rounds: workers take turns, and every time is compared with the twin's of the same round."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dubito.benchmark.systems import Frequentist
from dubito.benchmark.work import Measure, Task, Work
from dubito.benchmark.workers import Worker, WorkerError

ENOUGH = 0.04
"""Seconds that one turn should take at least: shorter work is repeated."""
LEAST = 3
"""Rounds that quartiles need at the least."""
PAUSE = 0.005
"""Seconds between two turns, in which the threads of the last one go to sleep."""


@dataclass(frozen=True)
class Ratio:
    """A median with quartiles, and the median time behind it in seconds."""

    median: float
    low: float
    high: float
    seconds: float


def ratios(times: Sequence[float], references: Sequence[float]) -> Ratio:
    """The quotients of times of the same rounds.

    >>> ratios([2.0, 6.0, 9.0], [1.0, 2.0, 3.0])
    Ratio(median=3.0, low=2.5, high=3.0, seconds=6.0)
    """
    quotients = [a / b for a, b in zip(times, references, strict=True)]
    low = middle = high = quotients[0]
    if len(quotients) > 1:
        low, middle, high = statistics.quantiles(quotients, n=4, method="inclusive")
    return Ratio(middle, low, high, statistics.median(times))


@dataclass
class Comparison:
    """What was found, by system: versions, ratios by measure, peak memory in megabytes, and why a system failed."""

    versions: dict[str, str | None] = field(default_factory=dict)
    ratios: dict[str, dict[str, Ratio]] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries."""
        return asdict(self)


def compare(
    workers: Mapping[str, Worker],
    measures: Sequence[Measure],
    *,
    memory: bool = False,
    advance: Callable[[float], None] = lambda share: None,
) -> Comparison:
    """Measure everything.

    `memory` asks for the peak memory of the first measure that a system takes part in; the workers must be fresh for
    it. `advance` is told the share of the work done so far. A system that fails is left out from there on, with the
    reason in `failures`; without the twin there is nothing to compare with, so its failure is raised.
    """
    turns = _Turns(workers)
    found = turns.found
    found.versions.update({name: worker.version for name, worker in workers.items()})
    all_tasks = [_tasks(workers, measure) for measure in measures]
    for name in workers if memory else ():
        first = next((tasks[name] for tasks in all_tasks if name in tasks), None)
        megabytes = None if first is None else turns.ask(name, "memory", first)
        if megabytes is not None:
            found.memory[name] = megabytes
    for number, (measure, tasks) in enumerate(zip(measures, all_tasks, strict=True)):
        turns.prepare(tasks)
        rounds = turns.rounds(measure)
        times: dict[str, list[float]] = {name: [] for name in turns.repeats}
        for turn in range(rounds):
            advance((number + (turn + 1) / (rounds + 1)) / len(measures))
            for name, repeat in turns.repeats.items():
                taken = turns.ask(name, "seconds", tasks[name], repeat)
                if taken is not None:
                    times[name].append(taken)
                time.sleep(PAUSE)
        for name in [name for name in times if name not in found.failures]:
            found.ratios[name][measure.name] = ratios(times[name], times[Frequentist.name])
    advance(1.0)
    return found


def _tasks(workers: Mapping[str, Worker], measure: Measure) -> dict[str, Work]:
    """The work of each system that takes part; the twin does the reference."""
    tasks = {}
    for name, worker in workers.items():
        can = worker.kind.trains if measure.work.task is Task.STEP else worker.kind.draws
        if name == Frequentist.name:
            tasks[name] = measure.reference
        elif name in measure.only or (can and not measure.only):
            tasks[name] = measure.work
    return tasks


class _Turns:
    """Asks workers and notes who failed."""

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        self.workers = workers
        self.found = Comparison(ratios={name: {} for name in workers})
        self.repeats: dict[str, int] = {}
        self.round = 0.0

    def ask(self, name: str, verb: str, *arguments: Any) -> float | None:
        """A worker's answer, None if it fails or has failed before."""
        try:
            return float(getattr(self.workers[name], verb)(*arguments))
        except WorkerError as error:
            if name == Frequentist.name:
                raise WorkerError(
                    f"The frequentist twin failed, so there is nothing to compare with: {error}."
                ) from None
            self.found.failures[name] = str(error)
            return None

    def prepare(self, tasks: Mapping[str, Work]) -> None:
        """Find out who is able to do the work, and how often each repeats it in a turn."""
        found = {name: self.ask(name, "prepare", work) for name, work in tasks.items()}
        seconds = {name: taken for name, taken in found.items() if taken is not None}
        self.repeats = {name: max(1, math.ceil(ENOUGH / taken)) for name, taken in seconds.items()}
        self.round = sum(self.repeats[name] * taken + PAUSE for name, taken in seconds.items())

    def rounds(self, measure: Measure) -> int:
        """As many as fit, by how long the preparation took."""
        return min(measure.rounds, max(LEAST, int(min(measure.seconds / self.round, measure.rounds))))
