"""A run is claimed, written and finished atomically: by one process, in a folder that stays, with its own settings."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
import yaml
from training_runs import SMALL, assert_identical, quiet, tensors

from dubito import files
from dubito.errors import DubitoWarning, RunError
from dubito.evaluation.novelty import fit_novelty
from dubito.files import new_folder, write_atomically
from dubito.runs.claim import claimed
from dubito.threads import same_threads
from dubito.training import Run, configure, resume, train

ONE_EPOCH = {**SMALL, "epochs": 1}


def unfinished(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if files.is_unfinished(path.name)]


class AtFirstBatch(pl.Callback):
    """Does something to the run folder in mid-training."""

    def __init__(self, work) -> None:
        self.work = work

    def on_train_batch_end(self, trainer, module, outputs, batch, index) -> None:
        if index == 0:
            self.work()


def left_behind(folder: Path, name: str = ".last.safetensors.abcd_123.part") -> Path:
    """A temporary file as SIGKILL leaves it: nobody holds its lock."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"half")
    return folder / name


def test_a_training_that_was_killed_before_it_began_starts_again(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "run"
    left_behind(out, ".config.yaml.abcd_123.part")
    (out / "environment.json").write_text("{}")
    with pytest.raises(RunError, match="Start it again with the same command"):
        resume(out, console=quiet)
    train(configure(**SMALL), out, console=quiet)
    assert_identical(tensors(whole), tensors(out))
    assert not unfinished(out)


def test_other_files_in_a_folder_are_never_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty"), claimed(tmp_path, new=True):
        pass
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_second_training_and_a_second_resume_are_refused_while_the_first_runs(tmp_path: Path) -> None:
    out, told = tmp_path / "run", []

    def others() -> None:
        for second in (lambda: train(configure(**ONE_EPOCH), out, console=quiet), lambda: resume(out, console=quiet)):
            with pytest.raises(RunError) as error:
                second()
            told.append(str(error.value))

    train(configure(**ONE_EPOCH), out, console=quiet, callbacks=[AtFirstBatch(others)])
    assert "continue it with" in told[0]
    assert "Another process is training into" in told[1]
    assert Run.open(out).find_validation() is not None


def test_two_trainings_that_begin_at_once_do_not_mix(tmp_path: Path) -> None:
    with claimed(tmp_path / "run", new=True):
        with pytest.raises(RunError, match=r"Another process is training into .*choose another --out"):
            train(configure(**ONE_EPOCH), tmp_path / "run", console=quiet)
        assert not list((tmp_path / "run").iterdir())


def test_a_claim_dies_with_its_process(tmp_path: Path) -> None:
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with claimed(tmp_path / "run", new=True):
            os.write(tell, b"!")
            os.kill(os.getpid(), 9)
    os.read(ready, 1)
    os.waitpid(child, 0)
    with claimed(tmp_path / "run", new=True) as claim:
        assert claim.is_in_place()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_that_is_deleted_in_mid_run_is_an_error(tmp_path: Path, replaced: bool) -> None:
    out = tmp_path / "run"

    def remove() -> None:
        shutil.rmtree(out)
        if replaced:
            out.mkdir()

    with pytest.raises(RunError, match="removed or replaced during the training"):
        train(configure(**ONE_EPOCH), out, console=quiet, callbacks=[AtFirstBatch(remove)])
    assert not out.exists() or not list(out.iterdir())


def test_edited_settings_are_named_and_refused_unless_accepted(whole: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "edited"))
    content = yaml.safe_load((out / "config.yaml").read_text())
    content["training"] |= {"epochs": 3, "learning_rate": 0.5}
    (out / "config.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(RunError, match=r"epochs is 3, but was 2; learning_rate is 0\.5.*--accept-changes"):
        resume(out, console=quiet)
    resume(out, console=quiet, accept_changes=True)
    assert len(Run.open(out).metrics()) == 3
    resume(out, console=quiet)  # they are the run's settings now


def test_a_resumed_training_has_as_many_threads_as_before() -> None:
    now = torch.get_num_threads()
    with same_threads({"threads": now + 1}):
        assert torch.get_num_threads() == now + 1
    assert torch.get_num_threads() == now
    with (
        pytest.warns(DubitoWarning, match=r"not be bit-identical.*torch 0\.1 then"),
        same_threads({"versions": {"torch": "0.1"}}),
    ):
        pass


def test_the_next_write_removes_what_a_kill_left_but_nothing_that_is_being_written(tmp_path: Path) -> None:
    stale, living = left_behind(tmp_path), left_behind(tmp_path, ".other.json.abcd_124.part")
    left_behind(tmp_path / ".pruned.abcd_123.part", "best.safetensors")
    with living.open() as held:
        assert files.try_lock(held.fileno())
        write_atomically(tmp_path / "note.txt", "text")
        assert sorted(os.listdir(tmp_path)) == [living.name, "note.txt"]
    assert not stale.exists()


def test_a_new_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), new_folder(tmp_path / "new") as folder:
        (folder / "half" / "written").write_text("")
    assert not list(tmp_path.iterdir())
    with pytest.raises(RunError, match="created by another process in the meantime"), new_folder(tmp_path / "new"):
        left_behind(tmp_path / "new", "theirs")
    assert os.listdir(tmp_path) == ["new"]


def test_what_was_fitted_to_another_novelty_is_recognised(own_run: Path) -> None:
    from dubito.decisions import find_rule
    from dubito.evaluation.decisions import decide
    from dubito.evaluation.validation import validation_of
    from dubito.prediction.novelty import FILE

    run = Run.open(own_run)
    record = run.validation()
    with_novelty = decide(run, record, review=0.1, false_alarm=0.05)
    assert find_rule(run) == with_novelty
    file = own_run / FILE
    assert file.exists()
    parts = run.parts()
    fit_novelty(run, parts[0].part(torch.arange(len(parts[0])) % 2 == 0), parts[1])
    assert run.find_calibration() is None
    with pytest.warns(DubitoWarning, match="fitted to another novelty.*dubito decide"):
        assert find_rule(run) is None
    again = validation_of(run)
    assert not torch.equal(again.prediction.novelty, record.prediction.novelty)
    without = decide(run, again, review=0.1)
    fit_novelty(run, *parts)
    assert not without.needs_novelty
    assert find_rule(run) == without
