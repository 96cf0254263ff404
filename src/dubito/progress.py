"""The progress bar of every long task: what is being done, a bar, a count and the time left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from dubito.harmless import printable

if TYPE_CHECKING:
    from rich.console import Console

Item = TypeVar("Item")


class Advance(Protocol):
    """The function that moves a bar on."""

    def __call__(self, count: int = 1, what: str | None = None, total: int | None = None) -> None:
        """Move the bar on by `count` steps; `what` replaces the text before it, `total` the number of steps."""


@contextmanager
def progress_bar(
    what: str,
    total: int | None = None,
    *,
    done: int = 0,
    shown: bool = True,
    console: Console | None = None,
    unit: str = "",
) -> Iterator[Advance]:
    """A bar on stderr that disappears when its context ends; gives the function that moves it on.

    Nothing is shown where no person is watching: in a pipe or a file.

    Args:
        what: the text before the bar.
        total: how many steps there are; None if that is not known.
        done: steps that were done before.
        shown: False for no bar at all, so that callers need no case of their own.
        console: where to show it, instead of stderr.
        unit: what the steps are, to show how many are done a second; empty shows no rate.

    >>> with progress_bar("Counting", 3) as advance:
    ...     for number in range(3):
    ...         advance()
    """
    if not shown:
        yield lambda count=1, what=None, total=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

    console = console or Console(stderr=True)
    watched = console.is_terminal or console.is_jupyter
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
    ]
    columns.append(TimeRemainingColumn())
    if unit:
        columns.append(TextColumn("{task.fields[rate]}"))
    with Progress(*columns, console=console, transient=True, disable=not watched) as bar:
        task = bar.add_task(printable(what), total=total, completed=done, rate="")

        def advance(count: int = 1, what: str | None = None, total: int | None = None) -> None:
            text = None if what is None else printable(what)
            bar.update(task, advance=count, description=text, total=total)
            if unit and bar.tasks[0].speed:
                bar.update(task, rate=f"{bar.tasks[0].speed:,.0f} {unit}/s")

        yield advance


def track(items: Iterable[Item], what: str, *, shown: bool = True) -> Iterator[Item]:
    """The items one after the other, with a bar that moves on after each; a stream has no time left.

    >>> list(track([1, 2], "Counting"))
    [1, 2]
    """
    try:
        total = len(items)  # type: ignore[arg-type]
    except TypeError:  # a stream, or a DataLoader around one
        total = None
    with progress_bar(what, total, shown=shown) as advance:
        for item in items:
            yield item
            advance()
