"""The record of verdicts: a row in RESULTS/verdicts.csv, with its date, whenever the verdict on a claim has changed."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from datetime import date
from pathlib import Path

from dubito.files import write_atomically
from dubito.harmless import to_csv
from dubito.paper.claims import Judged

COLUMNS = ("date", "claim", "verdict")


def verdicts(results: Path) -> dict[str, list[tuple[str, str]]]:
    """The dates and verdicts of each claim, oldest first."""
    found: dict[str, list[tuple[str, str]]] = {}
    for day, claim, verdict in _rows(results):
        found.setdefault(claim, []).append((day, verdict))
    return found


def _rows(results: Path) -> list[tuple[str, str, str]]:
    path = results / "verdicts.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [(row["date"], row["claim"], row["verdict"]) for row in csv.DictReader(file)]


def record(results: Path, judged: Iterable[Judged]) -> None:
    """Write down the verdicts that differ from the last ones; a claim that was not tested has none."""
    last = {claim: days[-1][1] for claim, days in verdicts(results).items()}
    today = date.today().isoformat()
    found = ((one.claim.name, one.verdict) for one in judged)
    new = [(today, name, verdict) for name, verdict in found if verdict not in ("not run", last.get(name))]
    if new:
        write_atomically(results / "verdicts.csv", to_csv(COLUMNS, [*_rows(results), *new]))


def before(known: Iterable[tuple[str, str]], verdict: str) -> str:
    """What the verdict was before it became this one, and until when; empty if it has always been this.

    >>> before([("2026-01-01", "holds"), ("2026-02-01", "open")], "open")
    'holds, until 2026-02-01'
    """
    since = ""
    for day, earlier in reversed(list(known)):
        if earlier != verdict:
            return f"{earlier}, until {since}" if since else earlier
        since = day
    return ""
