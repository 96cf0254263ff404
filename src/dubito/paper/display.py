"""What a running grid shows: cells done, running and left, and the time left; lines where there is no terminal."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dubito.paper.cells import estimated_seconds
from dubito.paper.grid import Grid, State


def duration(seconds: float) -> str:
    """Seconds as people read them.

    >>> duration(42), duration(750), duration(20000)
    ('42 s', '12 min', '5.6 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def time_left(grid: Grid) -> float:
    """Seconds until all cells are finished: first guesses, scaled by how long work done so far has taken."""
    guessed = taken = left = 0.0
    longest = 0.0
    for state in grid.states.values():
        guess = estimated_seconds(state.cell, grid.budget)
        if state.status in ("running", "finished") and state.seconds:
            guessed += guess * (max(state.share, state.status == "finished") - state.first_share)
            taken += state.seconds
        if state.status in ("running", "waiting"):
            rest = guess * (1 - state.share)
            left, longest = left + rest, max(longest, rest)
    scale = taken / guessed if guessed > 0 and taken > 20 else 1.0
    return scale * max(left / grid.jobs, longest)


class Display(AbstractContextManager["Display"]):
    """Call it with the grid whenever something has changed."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._live = Live(console=self.console, refresh_per_second=4, transient=True)
        self._seen: dict[str, str] = {}

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def __call__(self, grid: Grid) -> None:
        """Show the grid as it is now."""
        for state in grid.states.values():
            self._tell(state)
        if self.console.is_terminal:
            self._live.update(_picture(grid))

    def _tell(self, state: State) -> None:
        """A line for every cell that starts or ends."""
        known = self._seen.get(state.cell.name)
        if known == state.status:
            return
        self._seen[state.cell.name] = state.status
        what = {
            "running": "" if self.console.is_terminal else "started",
            "finished": f"finished in {duration(state.seconds)}" if known else "finished before",
            "stopped": "stopped; run the command again to continue",
            "failed": f"failed: {state.error}",
        }.get(state.status, "")
        if what:
            style = "red" if state.status == "failed" else None
            self.console.print(Text(f"{state.cell.title}: {what}", style or ""), highlight=False, soft_wrap=True)


def _picture(grid: Grid) -> Group:
    table = Table.grid(padding=(0, 2))
    for state in grid.states.values():
        if state.status == "running":
            bar = ProgressBar(total=1.0, completed=state.share, width=24)
            table.add_row(state.cell.title, bar, state.doing, duration(state.seconds))
    counts = f"{grid.count('finished')} cells done, {grid.count('running')} running, {grid.count('waiting')} left"
    ended = grid.count("failed") + grid.count("stopped")
    text = counts + (f", {ended} stopped or failed" if ended else "")
    if grid.interrupted:
        text += "; stopping after the next step"
    else:
        text += f"; about {duration(time_left(grid))} left"
    return Group(table, Text(text, "bold"))
