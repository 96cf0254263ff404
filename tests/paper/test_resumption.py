"""A grid that was killed or stopped goes on where it was; processes that are left alone stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dubito import cli
from dubito.paper.cells import BUDGETS, Cell, Experiment, chosen
from dubito.paper.grid import is_finished, run_cell
from dubito.paper.results import collect
from dubito.paper.standins import write_standins
from dubito.training import InterruptedTraining, Run

SMOKE = BUDGETS["smoke"]

# The worker imports this file too, and sets the traps: after the first epoch of a cell, signals are sent to the grid
# and to the worker. The grid itself does not train, so it goes without the slow import.
SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path

def trap():
    from dubito.training.callbacks import RunKeeper

    write = RunKeeper.save
    traps = json.loads(os.environ["TRAPS"])

    def save(self, trainer, module, at):
        write(self, trainer, module, at)
        if self.run.path.name in traps and (at.epoch, at.batch) == (1, 0):
            Path(os.environ["TRAPPED"]).write_text(str(os.getpid()))
            grid = os.getppid()
            for who, number in zip((grid, os.getpid()), traps[self.run.path.name]):
                if number:
                    os.kill(who, number)
                while who == grid == os.getppid() and number == signal.SIGKILL:
                    time.sleep(0.01)  # until it is dead

    RunKeeper.save = save

if __name__ == "__main__":
    from dubito import cli
    sys.exit(cli.run(sys.argv[1:]))
trap()
"""
VI, TWIN, DROPOUT = (f"lenet5-mnist-{inference}" for inference in ("vi", "frequentist", "dropout"))


class Trapped:
    """The command in a process of its own, with signals to the grid and to its worker in the middle of some cells."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs, self.results = folder / "runs", folder / "results"
        folder.mkdir(exist_ok=True)
        (folder / "script.py").write_text(SCRIPT)

    @property
    def arguments(self) -> list[str]:
        what = ["reproduce", "table1", "--budget", "smoke", "--only", "model=lenet5,data=mnist", "--threads", "1"]
        return [*what, "--runs", str(self.runs), "--results", str(self.results)]

    def run(self, **traps: tuple[int, int]) -> subprocess.CompletedProcess[str]:
        named = {name.replace("_", "-"): signals for name, signals in traps.items()}
        environment = {**os.environ, "TRAPS": json.dumps(named), "TRAPPED": str(self.folder / "worker")}
        command = [sys.executable, str(self.folder / "script.py"), *self.arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)

    @property
    def finished(self) -> list[str]:
        return sorted(path.parent.name for path in self.runs.glob("*/finished.json"))

    def progress(self, name: str) -> dict[str, int]:
        found: dict[str, int] = Run.open(self.runs / name).read_checkpoint("last")[1]["progress"]
        return found

    def stamps(self, *names: str) -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for name in names for path in (self.runs / name).iterdir()}

    def measured(self) -> dict[str, object]:
        rows = json.loads((self.results / "table1.json").read_text())["rows"]
        return {row["cell"]: row["measured"] for row in rows if row["measured"] is not None}


@pytest.mark.slow
def test_a_grid_that_is_stopped_and_killed_goes_on_in_mid_cell_to_the_same_numbers(tmp_path, capsys) -> None:
    grid = Trapped(tmp_path)
    # A worker is killed: its cell fails, the grid goes on. Then Ctrl-C: the grid stops, with what there is.
    first = grid.run(lenet5_mnist_vi=(0, signal.SIGKILL), lenet5_mnist_frequentist=(signal.SIGINT, 0))
    assert first.returncode == 130, first.stderr
    assert "Bayesian (VI) LeNet-5 on MNIST: failed: its process died" in first.stdout
    assert "Interrupted: 0 of 3 cells are finished, 1 failed. Run the same command again" in first.stdout
    assert "Traceback" not in first.stderr
    assert grid.finished == list(grid.measured()) == []
    assert grid.progress(VI) == {"epoch": 1, "batch": 0}
    assert grid.progress(TWIN)["epoch"] == 1
    assert not (grid.runs / DROPOUT).exists()

    # The grid itself is killed: its worker notices, and stops with a checkpoint.
    second = grid.run(lenet5_mnist_dropout=(signal.SIGKILL, 0))
    assert second.returncode == -signal.SIGKILL
    _wait_for_the_end_of(int((tmp_path / "worker").read_text()))
    done = sorted([VI, TWIN])
    assert grid.finished == done
    assert grid.progress(DROPOUT)["epoch"] == 1
    assert grid.progress(DROPOUT)["batch"] > 0
    before = grid.stamps(*done)

    # Nothing disturbs it any more.
    assert cli.run(grid.arguments) == 0
    assert capsys.readouterr().out.count("finished before") == len(done)
    assert grid.finished == sorted([VI, TWIN, DROPOUT])
    assert grid.stamps(*done) == before
    assert [row["epoch"] for row in Run.open(grid.runs / DROPOUT).metrics()] == [1, 2]

    undisturbed = Trapped(tmp_path / "undisturbed")
    write_standins(undisturbed.runs / "data")
    for cell in chosen([Experiment.TABLE1], SMOKE, "model=lenet5,data=mnist"):
        run_cell(cell, SMOKE, undisturbed.runs, lambda doing, share: None)
    collect(Experiment.TABLE1, SMOKE, undisturbed.runs, undisturbed.results)
    assert grid.measured() == undisturbed.measured()


def _wait_for_the_end_of(pid: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.1)
    raise AssertionError(f"process {pid} still runs")


@pytest.mark.parametrize("leftover", ["environment.json", ".config.yaml.abcd_123.part"])
def test_a_folder_that_was_only_begun_is_begun_again(tmp_path, leftover) -> None:
    cell = Cell("lenet5", "mnist", "frequentist")
    write_standins(tmp_path / "data")
    (tmp_path / cell.name).mkdir()
    (tmp_path / cell.name / leftover).write_text("{}")
    heard = []
    run_cell(cell, SMOKE, tmp_path, lambda doing, share: heard.append((doing, share)))
    assert is_finished(tmp_path / cell.name)
    assert heard[-1] == ("evaluating", 1.0)
    assert ("epoch 1/2", 0.125) in heard


def test_no_epoch_is_begun_after_the_deadline(tmp_path) -> None:
    cell = Cell("lenet5", "mnist", "frequentist")
    write_standins(tmp_path / "data")
    with pytest.raises(InterruptedTraining, match="Time is up"):
        run_cell(cell, SMOKE, tmp_path, lambda doing, share: None, deadline=time.time())
    assert Run.open(tmp_path / cell.name).read_checkpoint("last")[1]["progress"] == {"epoch": 1, "batch": 0}
    run_cell(cell, SMOKE, tmp_path, lambda doing, share: None)
    assert is_finished(tmp_path / cell.name)
