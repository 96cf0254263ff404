"""Ensembles on the command line: trained in one go or joined, and then used as any other run."""

from __future__ import annotations

from pathlib import Path

import torch

from dubito.data import normalize
from dubito.exporting import OnnxModel
from dubito.prediction import Predictor
from dubito.runs.run import Run
from dubito.serving.model import ServedModel

QUICK = ("--data", "digits", "--inference", "frequentist", "--epochs", 1, "--no-novelty")


def test_an_ensemble_is_trained_and_used_as_any_other_run(dubito) -> None:
    result = dubito("train", *QUICK, "--members", 2, "--out", "two")
    assert result.code == 0
    assert "Training an ensemble of 2 frequentist lenet5 on digits" in result.out
    for line in ("Member 1 of 2, seed 0", "Member 2 of 2, seed 1", "The ensemble with 2 draws: validation accuracy"):
        assert result.out.count(line) == 1
    assert result.out.count("1,294 training and 144 validation images") == 1
    assert "two is finished: all of its 2 epochs are done" in dubito("train", "--resume", "two").out

    shown = dubito("evaluate", "two", "--bootstrap", 10, "--noise", "none").out.replace("\n", " ")
    assert "two, an ensemble of 2 (frequentist lenet5)" in shown
    assert "2 draws" in shown
    assert dubito("decide", "two", "--review", 0.1).code == 0
    assert "Ensemble of 2" in _report(dubito)
    assert dubito("export", "two", "--out", "two.onnx").code == 0
    images = torch.randint(256, (3, 1, 32, 32), dtype=torch.uint8)
    served, exported = ServedModel(Run.open("two")), OnnxModel("two.onnx")
    inputs = normalize(images, served.data.mean, served.data.std)
    expected = Predictor(Run.open("two"))(inputs)
    assert bool((expected.epistemic > 0).all())
    torch.testing.assert_close(exported.predict(images).probs, expected.probs, atol=1e-5, rtol=0)
    torch.testing.assert_close(served.predictors("weights", 10)(inputs).probs, expected.probs)
    assert served.rule is not None

    refused = dubito("prune", "two", "--sparsity", 0.5)
    assert refused.code != 0
    assert "is an ensemble, but single networks are pruned" in refused.err


def _report(dubito) -> str:
    assert dubito("report", "two", "--out", "report.html").code == 0
    return Path("report.html").read_text()


def test_trained_runs_become_an_ensemble(dubito, frequentist_run: Path, own_run: Path) -> None:
    made = dubito("ensemble", frequentist_run, own_run, "--out", "both")
    assert made.code == 0
    assert made.out == "The ensemble of 2 is in both.\nNext: dubito report both\n"
    run = Run.open("both")
    assert run.calibration().images == 144
    compared = dubito("compare", "both", own_run, "--bootstrap", 10, "--out", "compared.json")
    assert compared.code == 0
    again = dubito("ensemble", frequentist_run, own_run, "--out", "both")
    assert again.code != 0
    assert "both exists already and is not empty" in again.err
    assert "at least 2 members" in dubito("ensemble", own_run, "--out", "one").err
