"""Folders of dubito.save where a run is expected, and folders of strangers whose network is a function."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import yaml

import dubito as library
from dubito.evaluation.decisions import decide
from dubito.training import Run


@pytest.fixture
def saved(own_run: Path, tmp_path: Path) -> Path:
    """The network of a run as dubito.save keeps it, with novelty, rule and calibration."""
    run = Run.open(own_run)
    decide(run, run.validation(), review=0.1, false_alarm=0.05)
    predictor = library.Predictor(own_run, calibrated=True)
    return library.save(run.load(), tmp_path / "saved", predictor=predictor)


def test_a_saved_network_predicts_as_its_run(dubito, own_run: Path, saved: Path, pictures: list[Path]) -> None:
    for options in ((), ("--calibrated",)):
        for name, folder in (("run", own_run), ("saved", saved)):
            told = dubito("predict", folder, *pictures, *options, "--sort", "given", "--out", f"{name}.csv")
            assert told.code == 0, told.err
        assert Path("run.csv").read_text() == Path("saved.csv").read_text()
    assert "unfamiliar" in Path("run.csv").read_text() or "accept" in Path("run.csv").read_text()


def test_what_a_saved_network_has_not_is_said_in_a_sentence(dubito, saved: Path, pictures: list[Path]) -> None:
    for command, words in {
        ("predict", saved, pictures[0], "--conformal"): "is a saved network without a validation record",
        ("predict", saved, pictures[0], "--checkpoint", "last"): "which has only one set of weights",
        ("evaluate", saved): "is a saved network, not a run",
        ("decide", saved, "--review", 0.1): "is a saved network, not a run",
    }.items():
        told = dubito(*command)
        assert told.code == 1
        assert words in told.err
        assert len(told.err.splitlines()) == 1


def test_a_saved_network_is_served_with_its_novelty_and_its_rule(own_run: Path, saved: Path) -> None:
    from dubito.serving.model import ServedModel

    of_run, of_saved = ServedModel(Run.open(own_run), 4), ServedModel(library.load(saved), 4, fitted=saved)
    assert of_saved.rule == of_run.rule
    assert of_saved.novelty is not None
    assert torch.equal(of_saved.novelty.held_out, of_run.novelty.held_out)


def test_a_saved_network_is_exported_with_what_was_saved(own_run: Path, saved: Path) -> None:
    from dubito.cli.export import _fitted, _saved_fitted

    of_run = _fitted(Run.open(own_run), "best", True, False)
    of_saved = _saved_fitted(saved, library.load(saved), True, False)
    assert of_saved["rule"] == of_run["rule"]
    assert torch.equal(of_saved["novelty"].held_out, of_run["novelty"].held_out)
    calibrated = _saved_fitted(saved, library.load(saved), True, True)
    assert calibrated["temperature"] == _fitted(Run.open(own_run), "best", True, True)["temperature"]


def test_a_strangers_function_is_run_only_with_trust(dubito, own_run: Path, pictures: list[Path]) -> None:
    content = yaml.safe_load((own_run / "config.yaml").read_text())
    content["training"]["model"] = "strange:network"
    (own_run / "config.yaml").write_text(yaml.safe_dump(content))
    ran = "open('ran', 'w').close()\nimport dubito\n"
    Path("strange.py").write_text(
        f"{ran}def network(plan):\n    return dubito.models.registry.registered('lenet5').build(plan)\n"
    )
    for command in (("predict", own_run, pictures[0]), ("export", own_run, "--out", "x.onnx"), ("evaluate", own_run)):
        told = dubito(*command)
        assert told.code == 1
        assert "opening it runs the function strange:network, which builds its network: give --trust" in told.err
        assert not os.path.exists("ran")
    told = dubito("predict", own_run, pictures[0], "--trust")
    assert told.code == 0, told.err
    assert os.path.exists("ran")
    assert dubito("predict", own_run, pictures[0]).code == 1  # it was trusted once
