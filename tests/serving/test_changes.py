"""Noise and rotation, and what is usual."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch

from dubito.data import add_pixel_noise, load, normalize
from dubito.errors import RunError
from dubito.evaluation.calibration import Conformal
from dubito.evaluation.predictions import Evaluated
from dubito.evaluation.validation import NO_IMAGES, calibrate
from dubito.prediction import Prediction
from dubito.runs.run import Run
from dubito.runs.validation import Validation
from dubito.serving.answer import verdict
from dubito.serving.images import rotate, to_bytes
from dubito.serving.model import ServedModel
from dubito.serving.validation import Usual, find_usual


def test_quarter_turns_are_exact_and_counter_clockwise() -> None:
    image = torch.randint(256, (3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for turns in range(-2, 5):
        assert torch.equal(rotate(image, 90 * turns), torch.rot90(image, turns, (1, 2)))


def test_corners_take_the_colour_of_the_border() -> None:
    image = torch.full((3, 32, 32), 200, dtype=torch.uint8)
    image[0], image[:, 10:20, 10:20] = 90, 0
    turned = rotate(image, 45)
    assert turned[:, 0, 0].tolist() == [90, 200, 200]
    assert turned.shape == image.shape


def test_noise_has_its_standard_deviation_and_is_not_clipped() -> None:
    noisy = add_pixel_noise(torch.zeros(1, 100, 100), 0.3, torch.Generator().manual_seed(1))
    assert abs(float(noisy.std()) - 0.3) < 5 * 0.3 / math.sqrt(2 * 10_000)
    assert float(noisy.min()) < 0
    assert int(to_bytes(noisy).min()) == 0


def usual_of(aleatoric: torch.Tensor, epistemic: torch.Tensor) -> Usual:
    """What is usual for a network of one class with these uncertainties."""
    ones = torch.ones(len(aleatoric), 1)
    prediction = Prediction(ones, aleatoric[:, None], epistemic[:, None], ones[:, 0], ones[:, 0], 10)
    labels = torch.zeros(len(ones), dtype=torch.long)
    fitted = calibrate(Evaluated("usual", NO_IMAGES, labels, prediction))
    return Usual(Validation(prediction, labels, NO_IMAGES, labels[:0], fitted))


def test_percentiles_are_ranks() -> None:
    usual = usual_of(torch.arange(100.0) / 100, torch.zeros(100))
    assert usual.percentile("aleatoric", -1) == 0
    assert usual.percentile("aleatoric", 2) == 1
    assert usual.percentile("aleatoric", 0.255) == pytest.approx(0.26)
    assert usual.is_unusual("aleatoric", 0.96)
    assert not usual.is_unusual("aleatoric", 0.93)


def test_a_network_that_never_doubts_is_not_always_unusual() -> None:
    """A frequentist network has epistemic uncertainty 0 for every image."""
    usual = usual_of(torch.arange(50.0), torch.zeros(50))
    assert not usual.is_unusual("epistemic", 0.0)
    assert usual.percentile("epistemic", 0.0) == 0.5


def test_one_draw_does_not_claim_that_an_image_is_familiar() -> None:
    usual = usual_of(torch.arange(50.0), torch.arange(50.0))
    assert "Neither uncertainty is unusual" in verdict(usual, 1.0, 1.0)["sentence"]
    assert "With a single draw it is not known" in verdict(usual, 1.0, 0.0)["sentence"]
    levels = [verdict(usual, *pair)["level"] for pair in ((1.0, 1.0), (60.0, 1.0), (1.0, 60.0), (60.0, 60.0))]
    assert levels == ["sure", "ambiguous", "undecided", "both"]
    assert verdict(usual, 60.0, 60.0, unfamiliar=True)["level"] == "unfamiliar"
    assert verdict(None, 1.0, 1.0)["level"] == "unknown"


def test_what_is_usual_is_the_record_of_the_run_and_made_if_it_is_missing(served_run, tmp_path, monkeypatch) -> None:
    folder = Path(shutil.copytree(served_run, tmp_path / "copy"))
    record = Run.open(folder).validation()
    made: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr("dubito.evaluation.validation.validate", lambda *given, **options: made.append(1))
        usual = find_usual(ServedModel(Run.open(folder), samples=2))
    assert not made  # nothing was predicted
    assert torch.equal(usual.record.prediction.probs, record.prediction.probs)
    assert usual.describe()["epistemic"] == record.calibration.quantiles["epistemic"]
    (folder / "calibration.json").unlink()
    again = find_usual(ServedModel(Run.open(folder), samples=2))
    assert again.calibration == record.calibration
    with pytest.raises(RunError, match="of its best weights, not of the last"):
        find_usual(ServedModel(Run.open(folder), checkpoint="last"))


def test_the_recorded_coverage_takes_the_recorded_threshold(served_run) -> None:
    found = Run.open(served_run).validation()
    usual = Usual(found)
    assert usual.conformal(found.calibration.coverage) == Conformal.of(found.calibration)
    fitted = Conformal.fit(found.prediction.probs, found.labels, found.calibration.coverage, "lac")
    assert fitted.threshold == pytest.approx(usual.conformal(found.calibration.coverage).threshold)
    assert usual.conformal(0.5).threshold < fitted.threshold


def test_conformal_sets_hold_the_truth_as_often_as_asked(served_run) -> None:
    """On the 359 test digits, within 5 standard errors of test and calibration together."""
    model = ServedModel(Run.open(served_run))
    usual = find_usual(model)
    test = load("digits", "test")
    probs = model.predictors("weights", model.samples)(normalize(test.images, model.data.mean, model.data.std)).probs
    sets = usual.conformal(0.8).sets(probs)
    covered = float(sets.gather(1, test.labels.unsqueeze(1)).double().mean())
    assert covered > 0.8 - 5 * math.sqrt(0.8 * 0.2 * (1 / 359 + 1 / 144))
