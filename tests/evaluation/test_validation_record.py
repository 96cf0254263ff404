"""A run stands on its own: what it knows of its validation images is kept in its folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation_runs import make_run

import dubito
from dubito.data import normalize, open_dataset
from dubito.errors import DubitoWarning, RunError
from dubito.evaluation import Evaluation, evaluate, metrics, validation_of
from dubito.evaluation.calibration import fit_temperature, temper
from dubito.training import Run

QUICK = {"noise": (), "bootstrap": 50}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on images of its own, and a copy of it whose images are gone, with its record."""
    folder = tmp_path_factory.mktemp("record")
    digits = open_dataset("digits").train()
    images, labels = digits.images[:, 0].numpy(), digits.labels.numpy()
    np.savez(folder / "own.npz", x_train=images[:900], y_train=labels[:900], x_test=images[900:], y_test=labels[900:])
    run = make_run(folder / "run", trained=True, data=str(folder / "own.npz"))
    validation_of(run)
    return folder


@pytest.fixture
def moved(own: Path, tmp_path: Path) -> Path:
    """The run on a machine without its images."""
    folder = Path(shutil.copytree(own / "run", tmp_path / "run"))
    file = folder / "config.yaml"
    file.write_text(file.read_text().replace(str(own / "own.npz"), str(tmp_path / "gone.npz")))
    return folder


def test_the_record_is_what_the_default_predictor_says_of_the_held_out_images(own: Path):
    run = Run.open(own / "run")
    whole = open_dataset(str(own / "own.npz")).train()
    held_out = run.split(whole)[1]
    expected = dubito.Predictor(run)(normalize(whole.images[held_out], run.data.mean, run.data.std))
    record = run.validation()
    assert torch.equal(record.labels, whole.labels[held_out])
    assert record.prediction.samples == 10
    for name in ("probs", "aleatoric", "epistemic", "entropy", "mutual_information"):
        torch.testing.assert_close(getattr(record.prediction, name), getattr(expected, name), rtol=1e-4, atol=1e-6)
    assert torch.equal(record.examples, whole.images[held_out][record.example_index])
    found = record.calibration
    assert found == run.calibration()
    assert found.accuracy == pytest.approx(metrics.accuracy(expected.probs, record.labels))
    assert found.temperature == pytest.approx(fit_temperature(expected.probs, record.labels), rel=1e-3)
    mistakes = expected.label != record.labels
    for name, score in metrics.uncertainties(expected).items():
        assert found.scores[name].auroc == pytest.approx(metrics.auroc(score, mistakes), abs=1e-3)
        low, high = found.scores[name].interval
        assert low <= found.scores[name].auroc <= high
        assert found.quantiles[name][94] == pytest.approx(float(score.double().quantile(0.94)), rel=1e-3)


def test_a_moved_run_needs_no_images(own: Path, moved: Path):
    with pytest.raises(RunError, match="cannot be opened"):
        Run.open(moved).open_data()
    before = Run.open(own / "run").validation()
    record = validation_of(Run.open(moved))
    assert torch.equal(record.prediction.probs, before.prediction.probs)
    assert record.calibration == before.calibration
    here = evaluate(own / "run", **QUICK)
    there = evaluate(moved, data=str(own / "own.npz"), **QUICK)
    for name in ("temperature_scaling", "conformal"):
        assert there.metrics[name] == here.metrics[name]


def test_other_draws_without_images_are_calibrated_by_the_record_and_say_so(own: Path, moved: Path, tmp_path: Path):
    whole = open_dataset(str(own / "own.npz"))
    train, test = whole.train(), whole.test()
    parts = {"x_test": test.images[:, 0].numpy(), "y_test": test.labels.numpy()}
    few = {"x_train": train.images[:50, 0].numpy(), "y_train": train.labels[:50].numpy()}
    np.savez(tmp_path / "test.npz", **few, **parts)  # the test images alone have come along
    with pytest.warns(DubitoWarning, match="10 draws, seed 0"):
        found = evaluate(moved, data=str(tmp_path / "test.npz"), samples=3, **QUICK)
    assert found.metrics["conformal"]["images"] == len(Run.open(moved).validation())


def test_a_missing_record_is_made_or_one_sentence_says_what_to_do(own: Path, moved: Path, tmp_path: Path):
    copy = Path(shutil.copytree(own / "run", tmp_path / "copy"))
    for folder in (copy, moved):
        (folder / "calibration.json").unlink()  # killed between the two files
        with pytest.raises(RunError, match=r"no validation record .* `dubito train --resume"):
            Run.open(folder).validation()
    assert validation_of(Run.open(copy)).calibration == Run.open(own / "run").calibration()
    assert Run.open(copy).calibration() == Run.open(own / "run").calibration()
    with pytest.raises(RunError, match="has no validation record, and without its images none can be made"):
        validation_of(Run.open(moved))


def test_the_record_of_other_weights_does_not_count(own: Path, tmp_path: Path):
    run = Run.open(shutil.copytree(own / "run", tmp_path / "run"))
    tensors, notes = run.read_checkpoint("best")
    run.write_checkpoint("best", {name: tensor * 0.5 for name, tensor in tensors.items()}, notes)
    with pytest.raises(RunError, match="no validation record"):
        run.validation()
    made = validation_of(run)
    assert not torch.equal(made.prediction.probs, Run.open(own / "run").validation().prediction.probs)


@pytest.mark.parametrize("content", ["{", "[]", '{"weights": "x"}', '{"scores": 3}'])
def test_a_damaged_record_is_one_sentence(own: Path, tmp_path: Path, content: str):
    run = Run.open(shutil.copytree(own / "run", tmp_path / "run"))
    (run.path / "calibration.json").write_text(content)
    with pytest.raises(RunError, match=r"calibration.json is damaged .* remove it"):
        run.calibration()


def test_damaged_tensors_of_a_record_are_one_sentence(own: Path, tmp_path: Path):
    run = Run.open(shutil.copytree(own / "run", tmp_path / "run"))
    (run.path / "validation.safetensors").write_bytes(b"{")
    with pytest.raises(RunError, match=r"validation.safetensors is damaged"):
        run.validation()


def test_training_writes_the_record(digits_run: Path):
    record = Run.open(digits_run).validation()
    assert len(record) == 144
    assert json.loads((digits_run / "calibration.json").read_text())["images"] == 144
    assert record.calibration.best_score in record.calibration.scores


def test_the_record_holds_novelty_where_the_run_has_it(digits_run: Path, own: Path):
    run = Run.open(digits_run)
    images = run.parts()[1].images
    expected = dubito.Predictor(run)(normalize(images, run.data.mean, run.data.std)).novelty
    torch.testing.assert_close(run.validation().prediction.novelty, expected, rtol=1e-3, atol=1e-3)
    quantiles = run.calibration().quantiles["novelty"]
    assert quantiles[50] == pytest.approx(float(expected.double().quantile(0.5)), abs=1e-3)
    assert Run.open(own / "run").validation().prediction.novelty is None


def test_calibrated_metrics_are_those_after_temperature_scaling(own: Path, tmp_path: Path):
    plain, calibrated = (evaluate(own / "run", calibrated=wanted, **QUICK) for wanted in (False, True))
    scaling = plain.metrics["temperature_scaling"]
    assert calibrated.test.temperature == pytest.approx(scaling["temperature"])
    assert scaling["after"]["nll"] != pytest.approx(scaling["before"]["nll"], rel=1e-3)
    for name, value in scaling["after"].items():
        assert calibrated.metrics[name] == pytest.approx(value, abs=1e-6)
    low, high = calibrated.metrics["intervals"]["nll"]
    assert low <= calibrated.metrics["nll"] <= high
    for name in ("accuracy", "aleatoric", "epistemic"):
        assert calibrated.metrics[name] == plain.metrics[name]
    assert calibrated.metrics["temperature_scaling"]["temperature"] == pytest.approx(1, abs=1e-3)
    left_out = calibrated.test.without([0, 1]).probs
    torch.testing.assert_close(left_out, temper(plain.test.without([0, 1]).probs, calibrated.test.temperature))
    calibrated.save(tmp_path)
    assert Evaluation.load(tmp_path, images=False).test.temperature == calibrated.test.temperature
