from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

from dubito.cli import failure
from dubito.cli.failure import guarded
from dubito.engines import ENGINES, LocalEngine
from dubito.errors import DubitoWarning


def assert_one_sentence(text: str) -> None:
    assert text.count("\n") == 1
    assert text.endswith(".\n")
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("train --model lenet6", 1, "model is 'lenet6', but must be one of 'lenet5'"),
        ("train --init=", 1, "init is empty, but must be a file of weights, a run folder, zoo:NAME or none."),
        ("train --bayesian last --inference frequentist", 1, "--bayesian is 'last', but --inference is frequentist"),
        ("train --data mnits", 1, "data set is 'mnits', but must be one of 'digits'"),
        ("train --data missing/folder", 1, "missing/folder does not exist"),
        ("train --preset fast", 1, "preset is 'fast', but must be one of 'default', 'paper'"),
        ("train --epochs 0", 1, "epochs is 0"),
        ("train --epochs many", 2, "--epochs"),
        ("train --speed 3", 2, "--speed"),
        ("train --config missing.yaml", 1, "missing.yaml does not exist"),
        ("train --resume missing", 1, "no run folder missing"),
        ("train --resume missing --epochs 3 --out there", 2, "--out and --epochs cannot be given"),
        ("train --num-nodes 2", 1, "give --out"),
        ("predict missing picture.png", 1, "no run folder missing"),
        ("predict missing", 2, "IMAGES"),
        ("predict missing picture.png --samples 0", 2, "--samples"),
        ("predict missing picture.png --out table.xlsx", 1, ".csv, .json, .jsonl, .ndjson, .parquet, or - "),
        ("predict missing picture.png --sort size", 1, "'epistemic'"),
        ("predict missing picture.png --method sample", 1, "'weights', 'local', 'moments', 'mean'"),
        ("predict missing picture.png --checkpoint first", 1, "'best', 'last'"),
        ("data get mnits", 1, "data set is 'mnits'"),
        ("data get", 2, "NAME"),
        ("models --model resnet", 1, "model is 'resnet'"),
        ("reproduce table1 --engine rya", 1, "engine is 'rya', but must be one of 'local', 'ray'"),
        ("fly", 2, "fly"),
    ],
)
def test_an_error_is_one_sentence_and_an_exit_code(dubito, tmp_path: Path, command: str, code: int, words: str) -> None:
    result = dubito(*command.split())
    assert result.code == code
    assert result.out == ""
    assert words in result.err
    assert_one_sentence(result.err)
    assert not (tmp_path / "runs").exists()


def test_a_setting_that_only_the_network_knows_is_refused_too(dubito) -> None:
    result = dubito("train", "--prior", "wide")
    assert result.code == 1
    assert "'wide'" in result.err
    assert_one_sentence(result.err)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train --model hf:/nowhere", "model is 'hf:/nowhere', but there is no such folder or file: give a folder"),
        ("train --model hf:a/b/c", "model is 'hf:a/b/c', but there is no such folder or file: give a folder"),
        ("train --model hf:", "model is 'hf:', but after hf: comes a folder with a config.json"),
        ("train --bayesian nosuch", "bayesian=nosuch picks no layer"),
    ],
)
def test_a_network_that_cannot_be_built_is_one_sentence(dubito, command: str, words: str) -> None:
    result = dubito(*command.split())
    assert result.code == 1
    assert words in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epochs: [1", "cannot be read"),
        ("- epochs", "name: value"),
        ("epoch: 3", "the nearest is 'epochs'."),
        ("data: ''", "The data set has no name"),
        ("epochs: many", "epochs is 'many'"),
        ("model: resnet", "model is 'resnet'"),
    ],
)
def test_a_bad_yaml_file_is_refused(dubito, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    result = dubito("train", "--config", "bad.yaml")
    assert result.code == 1
    assert words in result.err
    assert_one_sentence(result.err)


def test_an_existing_run_is_not_overwritten(dubito, digits_run: Path) -> None:
    result = dubito("train", "--out", digits_run)
    assert result.code == 1
    assert result.out == ""
    assert f"dubito train --resume {digits_run}" in result.err
    assert_one_sentence(result.err)


@pytest.mark.parametrize("damage", ["missing", "truncated", "no config", "bad config"])
def test_half_a_run_is_refused(dubito, digits_run: Path, tmp_path: Path, damage: str) -> None:
    run = tmp_path / "half"
    shutil.copytree(digits_run, run)
    weights = run / "best.safetensors"
    if damage == "missing":
        weights.unlink()
    elif damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:5000])
    elif damage == "no config":
        (run / "config.yaml").unlink()
    else:
        (run / "config.yaml").write_text("training: {epochs: none}")
    result = dubito("predict", run, "digits")
    assert result.code == 1
    assert str(run) in result.err
    assert_one_sentence(result.err)


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback(dubito, place: str) -> None:
    command = ["models", "--model", "resnet"]
    result = dubito(*(["--debug", *command] if place == "before" else [*command, "--debug"]))
    assert result.code == 1
    assert "Traceback" in result.err
    assert "OptionError: model is 'resnet'" in result.err


def test_a_bug_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(arguments: list[str]) -> None:
        raise KeyError("on two\nlines")

    assert guarded(broken, []) == 1
    error = capsys.readouterr().err
    assert error.startswith("KeyError: ")
    assert "this is a bug in dubito, --debug shows where." in error
    assert_one_sentence(error)


def test_ctrl_c_ends_any_command_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(arguments: list[str]) -> None:
        raise KeyboardInterrupt

    assert guarded(interrupted, []) == 130
    assert capsys.readouterr().err == "Interrupted.\n"


def test_too_little_memory_is_told_as_such() -> None:
    assert "--batch-size" in failure.sentence(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))


def test_warnings_are_sentences_too(capsys: pytest.CaptureFixture[str]) -> None:
    def warns(arguments: list[str]) -> None:
        warnings.warn("This is odd.", DubitoWarning, stacklevel=1)
        warnings.warn("This is a library's business.", DeprecationWarning, stacklevel=1)

    assert guarded(warns, []) == 0
    assert capsys.readouterr().err == "Warning: This is odd.\n"


def test_a_helper_process_does_not_tell_that_the_main_one_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")

    def fails(words: str) -> int:
        def command(arguments: list[str]) -> None:
            raise RuntimeError(words)

        return guarded(command, [])

    assert fails("[gloo] Connection closed by peer [127.0.0.1]") == 1
    assert capsys.readouterr().err == ""
    assert fails("something else") == 1
    assert capsys.readouterr().err.startswith("Process 1: RuntimeError: something else")


def test_a_training_is_refused_by_an_engine_that_only_predicts(dubito, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "mine", LocalEngine)
    result = dubito("train", "--engine", "mine")
    assert result.code == 1
    assert "engine is 'mine', but a training runs on local or ray" in result.err
    assert_one_sentence(result.err)
