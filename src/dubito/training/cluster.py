"""Training by the workers of a cluster: one network, of whose every batch each worker has its share.

Ray starts the workers and tells them where the first of them is. What they do together is Lightning's own distributed
data parallelism, as with `--devices` and `--num-nodes`, so that a step is the same step. Ray Train is not used: it
keeps checkpoints of its own beside the run folder and asks the training to report to it, for nothing that is missing
here. All workers must see the run folder and the data: on several machines both lie on storage that they share.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console

from dubito.engines import RayEngine
from dubito.engines.ray import Place, WorkerDiedError
from dubito.errors import OptionError, RunError
from dubito.progress import progress_bar
from dubito.runs.config import TrainingConfig
from dubito.runs.run import Run
from dubito.training.callbacks import Display, InterruptedTraining

ATTEMPTS = 3
"""How often a training goes on by itself after the death of a worker."""
LOOK = 0.5
"""Seconds between two looks at the run folder."""


def train_on_ray(
    engine: RayEngine, config: TrainingConfig, out: str | os.PathLike[str], *, console: Console | None = None
) -> Run:
    """Train into the new run folder `out` with all workers. If one dies, training continues from the last checkpoint.

    The run's configuration has as many nodes as there are workers, one process each.
    """
    folder = Path(out).resolve()
    with engine.connected() as workers:
        config = replace(config, devices=1, num_nodes=workers)
        return _go_on(engine, folder, config.epochs, partial(_train, config, folder), console, accept_changes=False)


def resume_on_ray(
    engine: RayEngine,
    path: str | os.PathLike[str],
    *,
    console: Console | None = None,
    accept_changes: bool = False,
) -> Run:
    """Continue a run, with as many workers as before."""
    run = Run.open(path)
    count = run.config.num_nodes
    if run.config.devices > 1 or engine.workers not in (None, count):
        wanted = f"{engine.workers} workers" if run.config.devices == 1 else "Ray, whose workers are one process each"
        raise OptionError(
            f"{run.path} was trained by {run.config.devices * count} processes (--devices {run.config.devices}, "
            f"--num-nodes {count}), so it cannot go on with {wanted}."
        )
    engine.workers = count
    folder = run.path.resolve()
    return _go_on(engine, folder, run.config.epochs, partial(_resume, folder, accept_changes), console, accept_changes)


def _go_on(
    engine: RayEngine,
    folder: Path,
    epochs: int,
    work: Callable[[Place], None],
    console: Console | None,
    accept_changes: bool,
) -> Run:
    """Do the work, and go on from the last checkpoint after a death."""
    for attempt in range(ATTEMPTS):
        try:
            with engine.connected(), _shown(folder, epochs, console or Console()):
                engine.together(work)
            return Run.open(folder)
        except KeyboardInterrupt:
            again = f"dubito train --resume {quote(str(folder))} --engine ray"
            raise InterruptedTraining(f"Stopped. Continue from the last checkpoint with: {again}") from None
        except WorkerDiedError as error:
            if attempt + 1 == ATTEMPTS:
                died = f"A worker died {ATTEMPTS} times, perhaps for lack of memory"
                raise RunError(f"{died}; what was trained so far is in {folder}.") from error
            (console or Console()).print("A worker died. All workers continue from the last checkpoint.")
            if (folder / "config.yaml").exists():
                work = partial(_resume, folder, accept_changes)
    raise AssertionError


def _train(config: TrainingConfig, folder: Path, place: Place) -> None:
    """A worker's part of a new training."""
    from dubito.training.fit import train

    with _placed(place):
        train(config, folder, console=Console(quiet=True))


def _resume(folder: Path, accept_changes: bool, place: Place) -> None:
    """A worker's part of a training that goes on."""
    from dubito.training.fit import resume

    with _placed(place):
        resume(folder, console=Console(quiet=True), accept_changes=accept_changes)


@contextmanager
def _placed(place: Place) -> Iterator[None]:
    """Inside, Lightning finds the other processes, as on machines where somebody set these variables."""
    given = {"MASTER_ADDR": place.host, "MASTER_PORT": str(place.port), "NODE_RANK": str(place.rank)}
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            os.environ.pop(name, None)


@contextmanager
def _shown(folder: Path, epochs: int, console: Console) -> Iterator[None]:
    """Inside, finished epochs are printed as the first worker writes them into the run folder, beside a bar."""
    stop = threading.Event()

    def watch() -> None:
        printed = 0
        with progress_bar("training", epochs, shown=console.is_terminal, console=console) as advance:
            while True:
                ended = stop.wait(LOOK)
                rows = _rows(folder)
                if rows and not printed:
                    console.print(Display.header(), style="bold", highlight=False)
                for row in rows[printed:]:
                    console.print(Display.line(row), highlight=False)
                    advance()
                printed = max(printed, len(rows))
                if ended:
                    return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def _rows(folder: Path) -> list[dict[str, Any]]:
    try:
        return list(Run.open(folder).metrics())
    except (RunError, OSError):
        return []  # there are none yet
