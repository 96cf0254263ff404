"""What every campaign shares: its options, chance that can be repeated, a bound of time, and the table at its end."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dubito.cli.terminal import Column, print_table
from dubito.files import write_atomically
from dubito.runs.environment import environment

EXAMPLES = 20
"""Cases of each bad outcome that the result file describes."""


def options(name: str, description: str, minutes: float) -> argparse.ArgumentParser:
    """The options that all campaigns have; a campaign adds its own."""
    made = argparse.ArgumentParser(prog=f"python -m campaigns.{name}", description=description)
    made.add_argument("--seed", type=int, default=0, help="random seed: the same seed makes the same cases")
    made.add_argument("--minutes", type=float, default=minutes, help="no case begins after this many minutes")
    made.add_argument("--out", type=Path, default=Path(f"results/campaign-{name}.json"), help="the result file")
    return made


def chance(*what: object) -> random.Random:
    """Random numbers of a case by seed, kind and number, so that it can be repeated alone.

    >>> chance(0, "png", 7).random() == chance(0, "png", 7).random() != chance(0, "png", 8).random()
    True
    """
    return random.Random("/".join(str(part) for part in what))


class Deadline:
    """A bound of time, by the clock that nobody sets.

    >>> Deadline(minutes=1).over, Deadline(minutes=0).over
    (False, True)
    """

    def __init__(self, minutes: float) -> None:
        self.begun = time.monotonic()
        self.end = self.begun + 60 * minutes

    @property
    def over(self) -> bool:
        """Whether no further case may begin."""
        return time.monotonic() >= self.end

    @property
    def passed(self) -> float:
        """Seconds since the campaign began."""
        return time.monotonic() - self.begun


@dataclass
class Tally:
    """How many cases of each kind ended in which way.

    Attributes:
        good: outcomes that a campaign hopes for, in the order of the table's columns.
        bad: outcomes that it looks for. A single one makes the campaign fail.

    >>> tally = Tally(good=("read", "refused"), bad=("hung",))
    >>> tally.add("png", "read")
    >>> tally.add("png", "hung", {"seconds": 11})
    >>> tally.failed, tally.rows()
    (True, [{'kind': 'png', 'cases': 2, 'read': 1, 'refused': 0, 'hung': 1}])
    """

    good: tuple[str, ...]
    bad: tuple[str, ...]
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)
    _described: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, outcome: str, example: Mapping[str, Any] | None = None) -> None:
        """Count a case; `example` describes one that ended badly."""
        if outcome not in self.good + self.bad:
            raise ValueError(f"outcome is {outcome!r}, but must be one of {self.good + self.bad}.")
        self.counts.setdefault(kind, Counter())[outcome] += 1
        if outcome in self.bad and self._described[outcome] < EXAMPLES:
            self._described[outcome] += 1
            self.examples.append({"kind": kind, "outcome": outcome, **(example or {})})

    @property
    def cases(self) -> int:
        """All cases so far."""
        return sum(count.total() for count in self.counts.values())

    @property
    def failed(self) -> bool:
        """Whether any case ended badly."""
        return any(count[outcome] for count in self.counts.values() for outcome in self.bad)

    def rows(self) -> list[dict[str, Any]]:
        """One row a kind, with all outcomes."""
        return [
            {"kind": kind, "cases": count.total(), **{outcome: count[outcome] for outcome in self.good + self.bad}}
            for kind, count in self.counts.items()
        ]

    def print(self) -> None:
        """The table, with a row of sums."""
        rows = self.rows()
        outcomes = ("cases", *self.good, *self.bad)
        sums = {"kind": "all", **{name: sum(row[name] for row in rows) for name in outcomes}}
        columns = [Column("kind"), *(Column(name, number=True) for name in outcomes)]
        print_table(columns, [[f"{row[column.title]}" for column in columns] for row in (*rows, sums)])

    def finish(self, given: argparse.Namespace, deadline: Deadline, **more: Any) -> int:
        """Print the table and what was bad, write the result file, and give the exit code: 1 if a case ended badly."""
        self.print()
        for example in self.examples:
            print(_line(example))
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()}
        content = {
            **{"passed": not self.failed, "cases": self.cases, "seconds": round(deadline.passed, 1), **more},
            **{"settings": settings, "rows": self.rows(), "examples": self.examples},
            "environment": environment(given.seed),
        }
        write_atomically(given.out, json.dumps(content, indent=2) + "\n")
        print(f"{self.cases:,} cases in {deadline.passed:.0f} s: {'FAILED' if self.failed else 'passed'}; {given.out}")
        return int(self.failed)


def _line(example: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in example.items())


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed; 0 of no values.

    >>> quantile([3, 1, 2], 0.5), quantile([], 0.99)
    (2, 0)
    """
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0
