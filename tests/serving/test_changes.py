"""Noise and rotation, and what is usual."""

from __future__ import annotations

import math

import pytest
import torch

from dubito.data import add_pixel_noise
from dubito.serving.answer import verdict
from dubito.serving.changes import rotate, to_bytes
from dubito.serving.validation import Validation, find_validation


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


def validation(**values) -> Validation:
    empty = torch.zeros(0)
    fields = {"probs": empty, "labels": empty, "aleatoric": empty, "epistemic": empty, "examples": empty}
    return Validation(**{**fields, "example_labels": empty, **values})


def test_percentiles_are_ranks() -> None:
    usual = validation(aleatoric=torch.arange(100.0) / 100)
    assert usual.percentile("aleatoric", -1) == 0
    assert usual.percentile("aleatoric", 2) == 1
    assert usual.percentile("aleatoric", 0.255) == pytest.approx(0.26)
    assert usual.is_unusual("aleatoric", 0.96)
    assert not usual.is_unusual("aleatoric", 0.93)


def test_a_network_that_never_doubts_is_not_always_unusual() -> None:
    """A frequentist network has epistemic uncertainty 0 for every image."""
    usual = validation(epistemic=torch.zeros(50))
    assert not usual.is_unusual("epistemic", 0.0)
    assert usual.percentile("epistemic", 0.0) == 0.5


def test_one_draw_does_not_claim_that_an_image_is_familiar() -> None:
    usual = validation(aleatoric=torch.arange(50.0), epistemic=torch.arange(50.0))
    assert "Neither uncertainty is unusual" in verdict(usual, 1.0, 1.0)["sentence"]
    assert "cannot tell" in verdict(usual, 1.0, 0.0)["sentence"]
    levels = [verdict(usual, *pair)["level"] for pair in ((1.0, 1.0), (60.0, 1.0), (1.0, 60.0), (60.0, 60.0))]
    assert levels == ["sure", "ambiguous", "undecided", "both"]
    assert verdict(usual, 60.0, 60.0, unfamiliar=True)["level"] == "unfamiliar"
    assert verdict(None, 1.0, 1.0)["level"] == "unknown"


def test_validation_is_predicted_once_and_made_anew_for_other_weights(served_run, tmp_path, monkeypatch) -> None:
    import shutil

    from dubito.runs.run import Run
    from dubito.serving import validation as module
    from dubito.serving.model import ServedModel

    folder = tmp_path / "copy"
    shutil.copytree(served_run, folder, ignore=shutil.ignore_patterns("validation*"))
    model = ServedModel(Run.open(folder), samples=2)
    calls: list[int] = []
    predict = module._predict
    monkeypatch.setattr(module, "_predict", lambda *given: calls.append(1) or predict(*given))
    monkeypatch.setenv("DUBITO_CACHE", str(tmp_path / "cache"))
    first, second = (find_validation(model, "weights", 50) for _ in range(2))
    assert len(calls) == 1
    assert len(first) == 50
    assert torch.equal(first.probs, second.probs)
    assert torch.equal(first.examples, second.examples)
    shutil.copy(folder / "last.safetensors", folder / "best.safetensors")  # other bytes
    find_validation(ServedModel(Run.open(folder), samples=2), "weights", 50)
    assert len(calls) == 2
    (folder / "validation-weights.safetensors").write_bytes(b"damaged")
    find_validation(ServedModel(Run.open(folder), samples=2), "weights", 50)
    assert len(calls) == 3


def test_conformal_sets_hold_the_truth_as_often_as_asked(served_run) -> None:
    """On the 359 test digits, within 5 standard errors of test and calibration together."""
    from dubito.data import load
    from dubito.runs.run import Run
    from dubito.serving.model import ServedModel

    model = ServedModel(Run.open(served_run))
    usual = find_validation(model, "weights")
    test = load("digits", "test")
    probs = model.predictors("weights", model.samples)(model.prepare_bytes(test.images)).probs
    sets = usual.conformal(0.8).sets(probs)
    covered = float(sets.gather(1, test.labels.unsqueeze(1)).double().mean())
    assert covered > 0.8 - 5 * math.sqrt(0.8 * 0.2 * (1 / 359 + 1 / 144))
    assert bool(sets.any(1).all())
