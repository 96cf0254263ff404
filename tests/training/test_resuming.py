"""Stopped and killed trainings continue to the very weights that they would have reached."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import pytorch_lightning as pl
from training_runs import SMALL, assert_identical, quiet, tensors

from dubito.errors import RunError
from dubito.training import Classifier, InterruptedTraining, Run, configure, resume, train
from dubito.training.classifier import Progress

# Each scenario is a child of one process, which has imported everything once and then only forks.
KILLED = """
import json, os, signal, sys
import pytorch_lightning as pl
from rich.console import Console
from dubito.training import configure, train
import dubito.training.callbacks, dubito.training.fit

class Kill(pl.Callback):
    def __init__(self, epoch, batch, while_writing):
        self.epoch, self.batch, self.while_writing = epoch, batch, while_writing

    def on_train_batch_end(self, trainer, module, outputs, images, index):
        at = module.position(index)
        if (at.epoch, at.batch) == (self.epoch, self.batch):
            if self.while_writing:  # the file is on disk, but has not taken its place
                os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            else:
                os.kill(os.getpid(), signal.SIGKILL)

for scenario in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        kill = Kill(*scenario["at"], scenario["while_writing"])
        train(configure(**scenario["settings"]), scenario["out"], console=Console(quiet=True), callbacks=[kill])
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

SCENARIOS = {
    "before any checkpoint": {"at": (0, 0), "minutes": 5, "while_writing": False, "optimizer": "adam"},
    "in an epoch": {"at": (1, 3), "minutes": 5, "while_writing": False, "optimizer": "adam"},
    "after a checkpoint in an epoch": {"at": (1, 3), "minutes": 0, "while_writing": False, "optimizer": "adam"},
    "while a checkpoint is written": {"at": (0, 5), "minutes": 5, "while_writing": True, "optimizer": "adam"},
    "with another optimiser": {"at": (1, 3), "minutes": 0, "while_writing": False, "optimizer": "sgd"},
    "with natural gradients": {"at": (1, 3), "minutes": 0, "while_writing": False, "optimizer": "natural"},
}
SETTINGS = {
    "adam": SMALL,
    "sgd": {**SMALL, "optimizer": "sgd", "learning_rate": 0.01, "clip": 1.0},
    "natural": {**SMALL, "optimizer": "natural", "prior": "learned", "samples": 2},
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run folder of every scenario, as SIGKILL left it."""
    import json

    root = tmp_path_factory.mktemp("killed")
    folders = {name: root / str(number) for number, name in enumerate(SCENARIOS)}
    given = []
    for name, scenario in SCENARIOS.items():
        settings = {**SETTINGS[scenario["optimizer"]], "checkpoint_minutes": scenario["minutes"]}
        where = {"at": scenario["at"], "while_writing": scenario["while_writing"]}
        given.append({"settings": settings, "out": str(folders[name]), **where})
    command = [sys.executable, "-c", KILLED, json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(-signal.SIGKILL)] * len(SCENARIOS), done.stderr
    return folders


@pytest.fixture(scope="module")
def undisturbed(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of every optimiser that nothing stopped."""
    folders = {"adam": whole}
    for name in ("sgd", "natural"):
        folders[name] = tmp_path_factory.mktemp("runs") / name
        train(configure(**SETTINGS[name]), folders[name], console=quiet)
    return folders


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_killed_run_resumes_to_the_same_weights_bit_for_bit(
    name: str, undisturbed: dict[str, Path], killed: dict[str, Path]
) -> None:
    out, scenario = killed[name], SCENARIOS[name]
    reference = undisturbed[scenario["optimizer"]]
    if scenario["minutes"] == 0:
        assert Run.open(out).read_checkpoint("last")[1]["progress"] == {"epoch": 1, "batch": 4}
    resume(out, console=quiet)
    assert_identical(tensors(reference), tensors(out))
    runs = [Run.open(folder).metrics() for folder in (reference, out)]
    rows = [[{k: v for k, v in row.items() if k != "seconds"} for row in run] for run in runs]
    assert rows[0] == rows[1]
    assert [row["epoch"] for row in rows[0]] == [1, 2]


def test_control_c_stops_between_steps_with_a_checkpoint_and_says_how_to_go_on(whole: Path, tmp_path: Path) -> None:
    class PressControlC(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, module: Classifier, batch: object, index: int) -> None:
            if module.position(index) == Progress(1, 2):
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    out = tmp_path / "stopped"
    with pytest.raises(InterruptedTraining, match=rf"epoch 2. Continue with: dubito train --resume .*{out.name}"):
        train(configure(**SMALL), out, console=quiet, callbacks=[PressControlC()])
    assert Run.open(out).read_checkpoint("last")[1]["progress"] == {"epoch": 1, "batch": 3}
    assert signal.getsignal(signal.SIGINT) is before
    resume(out, console=quiet)
    assert_identical(tensors(whole), tensors(out))


def test_a_finished_run_resumes_to_itself(whole: Path) -> None:
    before = tensors(whole)
    resume(whole, console=quiet)
    assert_identical(before, tensors(whole))


def test_a_run_that_stopped_between_its_first_checkpoints_begins_again(whole: Path, tmp_path: Path) -> None:
    """The best weights were written, the state of the training was not yet."""
    for name in ("config.yaml", "environment.json", "best.safetensors"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    resume(tmp_path, console=quiet)
    assert_identical(tensors(whole), tensors(tmp_path))


def test_weights_without_the_state_of_a_training_are_not_trained_again(whole: Path, tmp_path: Path) -> None:
    for name in ("config.yaml", "environment.json", "best.safetensors", "metrics.csv"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    with pytest.raises(RunError, match="cannot be continued"):
        resume(tmp_path, console=quiet)
