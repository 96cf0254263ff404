"""Tables, for people at a terminal and for files and pipes alike."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dubito.harmless import printable, say


@dataclass(frozen=True)
class Column:
    """A column's title, whether it holds numbers, and whether it may be folded where a terminal is narrow."""

    title: str
    number: bool = False
    fold: bool = False


def numbers(*titles: str) -> list[Column]:
    """Columns of numbers with these titles."""
    return [Column(title, number=True) for title in titles]


def examples(*commands: str, note: str = "") -> str:
    """What stands below a command's help: examples, and perhaps a note."""
    lines = [f"[bold]Example{'s' * (len(commands) > 1)}[/bold]", *(f"[cyan]{command}[/cyan]" for command in commands)]
    return "\n".join([*lines, "", note] if note else lines)


def terminal_width() -> int | None:
    """The columns of the terminal that output goes to, None if it goes elsewhere."""
    console = Console()
    return console.width if console.is_terminal else None


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: fitted to a terminal that is wide enough, else every cell in full, for whatever reads it."""
    rows = [[printable(cell) for cell in row] for row in rows]
    width = terminal_width()
    if width is None or width < _least_width(columns, rows):
        _print_plainly(columns, rows)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        justify: Any = "right" if column.number else "left"
        table.add_column(column.title, justify=justify, no_wrap=not column.fold, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # as text, a name with brackets is no markup
    Console().print(table, crop=False)


def _least_width(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    """Below it cells would be cut, and a number without its last digits is another number."""
    widths = [max(len(cell) for cell in cells) for cells in zip([c.title for c in columns], *rows, strict=True)]
    return sum(min(w, FOLDED) if c.fold else w for c, w in zip(columns, widths, strict=True)) + 2 * (len(columns) - 1)


FOLDED = 12
"""Columns that a cell which may be folded needs at least."""


def _print_plainly(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    lines = [[column.title for column in columns], *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = (
            cell.rjust(width) if column.number else cell.ljust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        )
        say("  ".join(cells).rstrip())


def quoted(path: Path) -> str:
    """A path as it is typed into a shell."""
    return shlex.quote(str(path))


def size(count: int) -> str:
    """Bytes for people.

    >>> size(170_052_171)
    '170 MB'
    """
    if not count:
        return "-"
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
