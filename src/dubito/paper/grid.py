"""Running the grid: every cell is a run folder, made by the ordinary training and evaluated once on the test split.

A finished cell is skipped, and one that was stopped or killed goes on from its last checkpoint. Cells are trained by
worker processes, so that several run at once and one that dies takes none of the others with it.

    RUNS/CELL/           the run folder, with evaluation.json and, once all is done, finished.json
    RUNS/worker-N.log    what a worker's libraries had to say
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dubito.errors import DubitoError, RunError
from dubito.files import write_atomically
from dubito.harmless import say
from dubito.memory import keep_freed_memory
from dubito.paper.cells import Budget, Cell, settings, warm
from dubito.runs.config import TrainingConfig, with_defaults
from dubito.runs.run import Run

if TYPE_CHECKING:
    import pytorch_lightning as pl

    from dubito.engines import Engine

FINISHED = "finished.json"
POLL = 0.25
"""Seconds between two looks at the workers."""

Report = Callable[[str, float], None]
"""Called with what is being done to a cell and with the share of its epochs that is done."""


def is_finished(folder: Path) -> bool:
    """Whether the cell in this run folder is trained and evaluated."""
    return (folder / FINISHED).exists()


def run_cell(cell: Cell, budget: Budget, runs: Path, report: Report, deadline: float | None = None) -> None:
    """Train a cell, or go on with it, and evaluate it; one that the deadline stops can go on later.

    `deadline` is a time of `time.time()` after which no epoch is begun.
    """
    from rich.console import Console

    from dubito.evaluation import evaluate
    from dubito.training import resume, train

    folder, config = runs / cell.name, settings(cell, budget, runs)
    options: dict[str, Any] = {"console": Console(quiet=True), "callbacks": [_watch(report, deadline)]}
    if (folder / "config.yaml").exists():
        require_same_settings(Run.open(folder), config)
        run = resume(folder, **options)
    else:
        run = train(config, folder, **options)
    report("evaluating", 1.0)
    evaluate(run, samples=budget.samples, noise=(), bootstrap=budget.bootstrap).save(folder)
    seconds = sum(row["seconds"] for row in run.metrics())
    write_atomically(folder / FINISHED, json.dumps({"training_seconds": round(seconds, 1)}) + "\n")
    if budget.name == "smoke":
        (folder / "last.safetensors").unlink()  # hundreds of megabytes that a toy does not need


def _watch(report: Report, deadline: float | None) -> pl.Callback:
    """Tells how far a training is, and stops it when time is up or whoever started it is gone."""
    import pytorch_lightning as pl

    from dubito.training import InterruptedTraining
    from dubito.training.classifier import Classifier

    parent = os.getppid()

    class Watch(pl.Callback):
        def on_train_batch_end(
            self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            assert isinstance(pl_module, Classifier)
            at = pl_module.position(batch_idx + 1)
            share = (at.epoch + at.batch / max(pl_module.batches_per_epoch or 1, 1)) / pl_module.epochs
            report(f"epoch {min(at.epoch + 1, pl_module.epochs)}/{pl_module.epochs}", min(share, 1.0))
            if os.getppid() != parent:
                signal.raise_signal(signal.SIGINT)  # which the run folder's keeper turns into a checkpoint and a stop

        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            assert isinstance(pl_module, Classifier)
            last = pl_module.start.epoch + trainer.current_epoch + 1 >= pl_module.epochs
            if deadline is not None and time.time() > deadline and not last:
                raise InterruptedTraining("Time is up.")

    return Watch()


def different_settings(found: Mapping[str, Any], wanted: TrainingConfig) -> list[str]:
    """The names of the settings in use that differ from `wanted`; paths may be written differently."""
    paths, stored = ("data", "init"), with_defaults(found)
    return [name for name, value in wanted.in_force().items() if stored[name] != value and name not in paths]


def require_same_settings(run: Run, config: TrainingConfig) -> None:
    """Refuse a run folder of other settings."""
    found, wanted = run.config.to_dict(), config.to_dict()
    different = different_settings(found, config)
    if different:
        told = ", ".join(f"{name} {found[name]} instead of {wanted[name]}" for name in different)
        raise RunError(f"{run.path} was trained with other settings ({told}); remove it or choose another --runs.")


@dataclass
class State:
    """How far a cell is: ``waiting``, ``running``, ``finished``, ``stopped`` or ``failed``."""

    cell: Cell
    status: str = "waiting"
    doing: str = ""
    share: float = 0.0
    first_share: float = 0.0
    began: float = 0.0
    seconds: float = 0.0
    error: str = ""


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    state: State | None = None


@dataclass
class Grid:
    """Runs cells in their order by `jobs` processes, each with `threads` threads.

    Attributes:
        cells: to run, in this order.
        budget: decides settings and evaluation.
        runs: the folder of run folders.
        jobs: processes.
        threads: of each process.
        deadline: a time of `time.time()` after which no epoch or cell is begun.
        show: called with this grid whenever something has changed.
        engine: what trains the cells instead of processes of this machine; it sees the same folder of runs.
    """

    cells: Sequence[Cell]
    budget: Budget
    runs: Path
    jobs: int = 1
    threads: int = 1
    deadline: float | None = None
    show: Callable[[Grid], None] = lambda grid: None
    engine: Engine | None = None
    states: dict[Cell, State] = field(init=False)
    interrupted: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.states = {cell: State(cell) for cell in self.cells}
        for cell, state in self.states.items():
            if is_finished(self.runs / cell.name):
                state.status = "finished"

    def count(self, status: str) -> int:
        """How many cells have that status."""
        return sum(state.status == status for state in self.states.values())

    @property
    def out_of_time(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.time() > self.deadline

    def run(self) -> None:
        """Run all cells that are not finished; Ctrl-C stops every training with a checkpoint."""
        self.show(self)
        if self.count("waiting") == 0:
            return
        self.runs.mkdir(parents=True, exist_ok=True)
        if self.budget.name == "smoke":
            from dubito.paper.standins import write_standins

            write_standins(self.runs / "data")
        if self.engine is not None:
            self._carry(self.engine)
            return
        workers: list[_Worker] = []
        before = signal.signal(signal.SIGINT, lambda number, frame: self._interrupt(workers, number, frame))
        try:
            self._supervise(workers)
        finally:
            signal.signal(signal.SIGINT, before)
            for worker in workers:
                worker.pipe.close()
            for worker in workers:
                worker.process.join(5)
                if worker.process.is_alive():
                    worker.process.kill()

    def _carry(self, engine: Engine) -> None:
        """Let an engine's workers run the cells; how far each of them is is read from its run folder."""
        make = partial(_CellRunner, self.budget, self.runs.resolve(), self.deadline, self.threads)
        with self._watched():
            try:
                while self._next() is not None:  # again for cells that start from others, once these are finished
                    for cell, (status, text, _) in engine.map(make, self._startable(), ahead=0):
                        state = self.states[cell]
                        state.status, state.doing, state.error = status, "", text
                        state.seconds = time.time() - state.began
            except KeyboardInterrupt:
                self.interrupted = True
                for state in self.states.values():
                    state.status = "stopped" if state.status == "running" else state.status
        self.show(self)

    def _startable(self) -> Iterator[Cell]:
        """The cells that can start, as workers become free."""
        while (state := self._next()) is not None:
            state.status, state.doing, state.began = "running", "training", time.time()
            yield state.cell

    def _next(self) -> State | None:
        """The next cell that can start."""
        if self.interrupted or self.out_of_time:
            return None
        return next((s for s in self.states.values() if s.status == "waiting" and self._ready(s.cell)), None)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Inside, run folders are looked at again and again, and what they tell is shown."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(4 * POLL):
                for state in list(self.states.values()):
                    if state.status == "running":
                        epochs = settings(state.cell, self.budget, self.runs).epochs
                        done = _lines(self.runs / state.cell.name / "metrics.csv") - 1
                        state.share = min(max(done, 0) / epochs, 1.0)
                        state.doing = f"epoch {min(max(done, 0) + 1, epochs)}/{epochs}"
                        state.seconds = time.time() - state.began
                self.show(self)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()

    def _supervise(self, workers: list[_Worker]) -> None:
        while True:
            self._hand_out(workers)
            if not any(worker.state for worker in workers):
                return
            for worker in list(workers):
                self._listen(worker, workers)
            self.show(self)
            wait([worker.pipe for worker in workers], timeout=POLL)

    def _hand_out(self, workers: list[_Worker]) -> None:
        """Give each idle worker the next cell that can start."""
        while True:
            state = self._next()
            if state is None:
                return
            worker = next((worker for worker in workers if worker.state is None), None)
            if worker is None:
                if len(workers) >= self.jobs:
                    return
                worker = self._start_worker(len(workers))
                workers.append(worker)
            worker.state = state
            state.status, state.doing, state.began = "running", "starting", time.time()
            worker.pipe.send(state.cell)
            self.show(self)

    def _ready(self, cell: Cell) -> bool:
        return not warm(cell, self.budget) or is_finished(self.runs / cell.twin.name)

    def _start_worker(self, number: int) -> _Worker:
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        ours, theirs = context.Pipe()
        arguments = (theirs, self.budget, self.runs, self.deadline, self.threads, number)
        process = context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _listen(self, worker: _Worker, workers: list[_Worker]) -> None:
        """Take in what a worker has told since."""
        try:
            while worker.pipe.poll():
                self._take(worker, *worker.pipe.recv())
        except (EOFError, OSError):
            worker.process.join(5)
            if worker.state:
                reason = "its process died, perhaps for lack of memory"
                self._take(worker, "stopped" if self.interrupted else "failed", reason, 0.0)
            workers.remove(worker)

    def _take(self, worker: _Worker, kind: str, text: str, share: float) -> None:
        state = worker.state
        assert state is not None
        if kind == "progress" and state.doing == "starting":
            state.first_share, state.began = share, time.time()
        state.seconds = time.time() - state.began
        if kind == "progress":
            state.doing, state.share = text, share
            return
        state.status, state.doing, state.error = kind, "", text
        worker.state = None
        self.show(self)

    def _interrupt(self, workers: list[_Worker], number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        for worker in workers:
            if worker.state is not None and worker.process.is_alive():
                os.kill(worker.process.pid, signal.SIGINT)


class _CellRunner:
    """What a worker does, this machine's or an engine's: run the cells that it is given."""

    def __init__(self, budget: Budget, runs: Path, deadline: float | None, threads: int) -> None:
        import torch

        warnings.simplefilter("ignore")
        keep_freed_memory()
        torch.set_num_threads(threads)
        self.budget, self.runs, self.deadline = budget, runs, deadline

    def __call__(self, cell: Cell, report: Report = lambda doing, share: None) -> tuple[str, str, float]:
        """Run a cell, or go on with it; gives its status, and why it failed."""
        from dubito.training import InterruptedTraining

        try:
            run_cell(cell, self.budget, self.runs, report, self.deadline)
        except (InterruptedTraining, KeyboardInterrupt, SystemExit) as stop:
            return "stopped", str(stop), 0.0
        except Exception as error:
            say(traceback.format_exc(), err=True)
            text = " ".join(str(error).split())
            return "failed", text if isinstance(error, DubitoError) else f"{type(error).__name__}: {text}", 0.0
        return "finished", "", 1.0


def _lines(file: Path) -> int:
    try:
        return file.read_bytes().count(b"\n")
    except OSError:
        return 0


def _work(
    pipe: Connection, budget: Budget, runs: Path, deadline: float | None, threads: int, number: int
) -> None:  # pragma: no cover - in another process
    """A worker: takes cells from the pipe until it is closed, and tells how they go."""
    os.setpgid(0, 0)  # a terminal's Ctrl-C goes to the grid alone, which passes it on once
    log = (runs / f"worker-{number}.log").open("a", buffering=1, encoding="utf-8")
    sys.stdout = sys.stderr = log
    run = _CellRunner(budget, runs, deadline, threads)
    last = 0.0

    def report(doing: str, share: float) -> None:
        nonlocal last
        if time.monotonic() - last > POLL:
            last = time.monotonic()
            with suppress(OSError):  # whoever listened is gone, which ends the training in its own way
                pipe.send(("progress", doing, share))

    while True:
        try:
            cell = pipe.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        try:
            pipe.send(run(cell, report))
        except OSError:
            return
