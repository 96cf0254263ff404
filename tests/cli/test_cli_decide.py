from __future__ import annotations

import csv
import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import dubito as package
from dubito.decisions import Rule, find_rule
from dubito.errors import DubitoWarning
from dubito.evaluation.decisions import decide
from dubito.evaluation.validation import validation_of
from dubito.runs.run import Run


def test_a_rule_is_stored_and_measured_on_test_images(dubito, own_run: Path) -> None:
    result = dubito("decide", own_run, "--review", 0.2, "--false-alarm", 0)
    assert result.code == 0, result.err
    rule = Rule.load(own_run / "decision.json")
    assert rule.goal == "review"
    sentence = result.out.splitlines()[0]
    assert sentence.startswith(rule.describe().rstrip("."))
    # What it says of the test images is what the stored rule does with them.
    test = package.data.load("digits", "test")
    run = Run.open(own_run)
    images = package.data.normalize(test.images, run.data.mean, run.data.std)
    prediction = package.Predictor(own_run)(images)
    accepted = prediction.decision == "accept"
    wrong = (prediction.label != test.labels).numpy()
    error = 100 * wrong[accepted].mean()
    assert float(sentence.rsplit(": ", 1)[1].removesuffix(" %.")) == pytest.approx(error, abs=0.05 * error + 1e-9)
    rows = [line.split() for line in result.out.splitlines() if line.endswith("#") or line.split()[:1] == ["50"]]
    assert rows[0][0] == "0"


def test_without_test_images_the_sentence_says_why_nothing_was_measured(
    dubito, own_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = type("Status", (), {"place": "absent"})()
    monkeypatch.setattr("dubito.evaluation.decisions.status", lambda name: absent)
    result = dubito("decide", own_run, "--review", 0.2, "--false-alarm", 0)
    assert result.code == 0, result.err
    rule = Rule.load(own_run / "decision.json")
    why = "digits is not on this machine; `dubito data get digits` gets it."
    assert result.out.splitlines()[0] == f"{rule.describe()[:-1]}; not measured on the test images: {why}"
    assert "test images" not in result.out.split("\n", 1)[1]


def test_other_classes_end_in_advice_that_can_be_followed(dubito, own_run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.npz"
    images = np.zeros((40, 32, 32), np.uint8)
    np.savez(other, x_train=images, y_train=np.arange(40) % 3, x_test=images, y_test=np.arange(40) % 3)
    result = dubito("decide", own_run, "--review", 0.2, "--data", other)
    assert result.code == 1
    assert "3 classes, but the network" in result.err
    assert f"For images of other things there is `dubito evaluate RUN --ood {other}`." in result.err
    assert not (own_run / "decision.json").exists()


def test_predictions_then_have_decisions_and_reasons(
    dubito, own_run: Path, pictures: list[Path], tmp_path: Path
) -> None:
    assert dubito("decide", own_run, "--review", 0.5, "--false-alarm", 0).code == 0
    out = tmp_path / "predictions.csv"
    result = dubito("predict", own_run, tmp_path / "pictures", "--out", out)
    assert result.code == 0, result.err
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert {row["decision"] for row in rows} <= {"accept", "review"}
    assert all((row["reason"] == "certain enough") == (row["decision"] == "accept") for row in rows)
    assert "decision" in result.out.splitlines()[0]
    other = dubito("predict", own_run, tmp_path / "pictures", "--method", "mean", "--out", out)
    assert other.code == 0, other.err
    assert "decision" not in other.out


def test_the_same_decisions_in_any_batch(own_run: Path, dubito) -> None:
    assert dubito("decide", own_run, "--review", 0.3, "--false-alarm", 0).code == 0
    predictor = package.Predictor(own_run)
    test = package.data.load("digits", "test")
    images = package.data.normalize(test.images[:40], test.mean, test.std)
    whole, parts = predictor(images), [predictor(part) for part in images.split(7)]
    assert (np.concatenate([part.decision for part in parts]) == whole.decision).all()


def test_fewer_draws_than_the_rule_was_fitted_to_are_warned_of(own_run: Path, dubito) -> None:
    assert dubito("decide", own_run, "--review", 0.3, "--false-alarm", 0).code == 0
    images = torch.rand(2, 1, 32, 32)
    with pytest.warns(DubitoWarning, match="fitted to predictions by 10 draws; by 2, more of the accepted images"):
        assert package.Predictor(own_run, samples=2)(images).decision is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert package.Predictor(own_run, samples=30)(images).decision is not None


def test_one_draw_is_too_few_for_a_rule_that_compares_draws(own_run: Path, dubito, tmp_path: Path) -> None:
    options = ("--review", 0.3, "--false-alarm", 0, "--score", "mutual_information")
    assert dubito("decide", own_run, *options).code == 0
    told = "There are no decisions: the rule goes by mutual information, which takes at least 2 draws, not 1."
    with pytest.warns(DubitoWarning, match=told):
        assert package.Predictor(own_run, samples=1)(torch.rand(2, 1, 32, 32)).decision is None
    result = dubito("predict", own_run, "digits", "--samples", 1, "--out", tmp_path / "one.csv")
    assert result.code == 0
    assert result.err.count(told) == 1


def test_a_network_without_draws_has_a_rule_for_one(frequentist_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(frequentist_run, tmp_path / "run"))
    run = Run.open(folder)
    rule = decide(run, validation_of(run), review=0.3)
    assert rule.origin["samples"] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert package.Predictor(folder, samples=1)(torch.rand(2, 1, 32, 32)).decision is not None


def test_a_rule_for_other_weights_does_not_count(own_run: Path, dubito) -> None:
    assert dubito("decide", own_run, "--review", 0.3, "--false-alarm", 0).code == 0
    file = own_run / "decision.json"
    content = json.loads(file.read_text())
    content["origin"]["weights"] = "others"
    file.write_text(json.dumps(content))
    with pytest.warns(DubitoWarning, match="fitted to other weights"):
        assert find_rule(Run.open(own_run)) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "No goal was given"),
        (("--cost-wrong", 5), "cost_review is missing: cost_wrong and cost_review go together"),
        (("--review", 0.1, "--confidence", 95), "such as 0.95"),
        (("--review", 0.1, "--data", "nowhere"), "data set is 'nowhere'"),
        (("--max-error", 0.1, "--review", 0.1), "a rule has one goal"),
        (("--max-error", 0.00001), "1 in 100,000 cannot be promised"),
        (("--review", 2), "review is 2"),
        (("--review", 0.1, "--score", "luck"), "score is 'luck'"),
    ],
)
def test_mistakes_end_in_a_sentence_and_store_nothing(dubito, own_run: Path, options: tuple, message: str) -> None:
    result = dubito("decide", own_run, *options)
    assert result.code == 1
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert not (own_run / "decision.json").exists()
