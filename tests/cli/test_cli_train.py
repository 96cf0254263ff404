from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dubito.cli.train import _names, _warmup
from dubito.errors import DubitoError
from dubito.training import Run, configure

PROGRAM = [sys.executable, "-c", "from dubito.cli import main; main()"]
QUICK = ["--validation-samples", "1"]


def run_of(folder: Path) -> Run:
    return Run.open(folder)


def test_training_says_what_it_does_and_what_comes_next(dubito, tmp_path: Path) -> None:
    result = dubito("train", "--epochs", 1, "--out", "runs/first", *QUICK)
    assert result.code == 0
    assert "Training a Bayesian lenet5 on digits (preset default, seed 0)." in result.out
    assert (
        "1,294 training and 144 validation images of 10 classes, 32 x 32 pixels in gray; 123,412 parameters."
        in result.out
    )
    reached = "reached over 2 epochs, but the training has only 1"
    assert f"Temperature 0.05 (1 would be the exact free energy), {reached}, prior learned." in result.out
    assert "Best epoch 1 of 1: validation accuracy " in result.out
    assert result.out.endswith(
        "The run is in runs/first.\nNext: dubito report runs/first, or dubito predict runs/first IMAGES...\n"
    )
    assert len(run_of(tmp_path / "runs/first").metrics()) == 1


def test_it_says_over_how_many_epochs_kl_rises() -> None:
    assert _warmup(configure(epochs=2)) == ", reached over 2 epochs"
    assert _warmup(configure(warmup_epochs=0)) == _warmup(configure(kl_schedule="uniform")) == ""


def test_flags_override_the_file_which_overrides_the_preset(dubito, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("epochs: 7\nbatch_size: 64\nsamples: 1\n")
    command = "train --config settings.yaml --preset paper --epochs 1 --no-augment --inference frequentist --out run"
    assert dubito(*command.split()).code == 0
    config = run_of(tmp_path / "run").config
    assert (config.epochs, config.batch_size, config.samples, config.learning_rate) == (1, 64, 1, 0.001)
    assert not config.augment
    assert config.inference == "frequentist"


def test_a_run_without_a_name_gets_a_free_one(dubito, tmp_path: Path) -> None:
    (tmp_path / "runs" / "digits-lenet5-frequentist-3").mkdir(parents=True)
    result = dubito("train", "--epochs", 1, "--inference", "frequentist", "--seed", 3)
    assert "The run is in runs/digits-lenet5-frequentist-3-2." in result.out
    names = _names(configure(data="some/where/flowers.npz", model="vgg16", seed=2))
    assert [str(next(names)) for _ in range(3)] == [f"runs/flowers-vgg16-vi-2{end}" for end in ("", "-2", "-3")]


def test_resuming_a_finished_run_says_so(dubito, digits_run: Path) -> None:
    before = (digits_run / "last.safetensors").read_bytes()
    result = dubito("train", "--resume", digits_run)
    assert result.code == 0
    assert "is finished: all of its 5 epochs are done" in result.out
    assert (digits_run / "last.safetensors").read_bytes() == before


def test_resuming_a_finished_run_makes_a_missing_validation_record(dubito, own_run: Path, digits_run: Path) -> None:
    (own_run / "calibration.json").unlink()
    result = dubito("train", "--resume", own_run)
    assert result.code == 0
    assert "all epochs done, the validation record is missing" in result.out
    for name in ("calibration.json", "validation.safetensors"):
        assert (own_run / name).read_bytes() == (digits_run / name).read_bytes()


def test_ctrl_c_stops_with_a_checkpoint_from_which_resume_goes_on(dubito, tmp_path: Path) -> None:
    arguments = ["train", "--epochs", "8", "--inference", "frequentist", "--out", "stopped"]
    with subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        for line in process.stdout:
            if line.split()[:1] == ["1"]:
                break
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        error = process.stderr.read()
    assert process.returncode == 130
    assert "Continue with: dubito train --resume stopped" in error
    assert error.count("\n") == 1
    assert len(run_of(tmp_path / "stopped").metrics()) < 8
    result = dubito("train", "--resume", "stopped")
    assert result.code == 0
    assert "Resuming stopped: lenet5 on digits," in result.out
    assert [row["epoch"] for row in run_of(tmp_path / "stopped").metrics()] == list(range(1, 9))


def test_a_second_ctrl_c_still_says_how_to_go_on(dubito, monkeypatch: pytest.MonkeyPatch) -> None:
    from dubito import training

    def stopped(*arguments: object, **options: object) -> None:
        sys.exit(1)  # as Lightning does it

    monkeypatch.setattr(training, "train", stopped)
    result = dubito("train", "--out", "my runs/first")
    assert result.code == 130
    assert "dubito train --resume 'my runs/first'" in result.err


@pytest.mark.slow
def test_two_processes_train_one_run_and_only_one_of_them_talks(tmp_path: Path) -> None:
    np.savez("few.npz", images=np.zeros((80, 32, 32), dtype=np.uint8), labels=np.arange(80) % 2)
    program = Path(sys.executable).with_name("dubito")
    arguments = ["train", "--data", "few.npz", "--devices", "2", "--epochs", "1", "--optimizer", "natural", *QUICK]
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Training a Bayesian lenet5") == 1
    assert done.stdout.count("The run is in runs/few-lenet5-vi-0.") == 1
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["few-lenet5-vi-0"]
    assert len(run_of(tmp_path / "runs/few-lenet5-vi-0").metrics()) == 1


def test_a_machine_that_waits_for_others_says_so(dubito, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise DubitoError("Here it would wait.")

    monkeypatch.setattr("dubito.training.train", stop)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.7")
    monkeypatch.delenv("MASTER_PORT", raising=False)
    result = dubito("train", "--num-nodes", 2, "--out", "run")
    assert "Waiting at 10.0.0.7:MASTER_PORT for all 2 machines." in result.out
    assert result.err == "Here it would wait.\n"


def test_a_loss_that_exploded_is_told_with_what_helps(dubito) -> None:
    options = ("--inference", "frequentist", "--epochs", 2, *QUICK)
    result = dubito("train", *options, "--learning-rate", 0.3, "--seed", 0, "--out", "wild")
    assert result.code == 0, result.err
    first, last = (float(row["train_nll"]) for row in run_of(Path("wild")).metrics())
    assert last > 2 * first
    assert "The training diverged" in result.out
    assert "--clip 3 or a smaller --learning-rate." in result.out
    assert "exploded" not in dubito("train", *options, "--out", "tame").out
