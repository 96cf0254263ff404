"""A server gives the decisions of its run's rule."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

import dubito
from dubito import cli
from dubito.evaluation.decisions import decide
from dubito.runs.run import Run
from dubito.serving.answer import predictions
from dubito.serving.batching import Job
from dubito.serving.model import ServedModel
from dubito.serving.request import Options
from dubito.serving.validation import Usual, verdict_rule


def test_answers_hold_the_decision_and_its_reason(own_run: Path) -> None:
    images = torch.rand(6, 1, 32, 32)
    assert ServedModel(Run.open(own_run), samples=2).describe()["decision"] is None
    assert cli.run(["decide", str(own_run), "--review", "0.4", "--false-alarm", "0"]) == 0
    model = ServedModel(Run.open(own_run))
    assert str(model.describe()["decision"]).startswith("Review ")
    jobs = [Job(model.prepare(part), "weights", 10, math.inf) for part in images.split(3)]
    predicted = model.predict(jobs)
    expected = dubito.Predictor(own_run)(model.prepare(images))
    answers = predictions(model, None, Options(), predicted)
    assert [answer["decision"] for answer in answers] == expected.decision.tolist()
    assert [answer["reason"] for answer in answers] == expected.reason.tolist()
    by_mean = model.predict([Job(model.prepare(images), "mean", 1, math.inf)])
    assert "decision" not in predictions(model, None, Options(), by_mean)[0]


def test_fewer_draws_than_the_rule_was_fitted_to_are_warned_of(own_run: Path, start: Any, digit_images: Any) -> None:
    run = Run.open(own_run)
    decide(run, run.validation(), review=0.5, score="epistemic")
    told = "The rule was fitted to predictions by 10 draws; by 2, more of the accepted images can be wrong"
    with start("--samples", "2", run=own_run) as served:
        assert served.log().count(f"Warning: {told}") == 1
        few, one, enough, mean = (
            served.predict(digit_images[0], **options).json()
            for options in ({}, {"samples": 1}, {"samples": 10}, {"method": "mean"})
        )
    assert few["warning"].startswith(told)
    assert "decision" in few["predictions"][0]
    assert one["warning"].startswith("There are no decisions: the rule goes by epistemic, which takes at least 2 draws")
    assert "decision" not in one["predictions"][0]
    assert "warning" not in enough
    assert "warning" not in mean


def test_what_is_said_of_an_image_agrees_with_its_decision(own_run: Path) -> None:
    run = Run.open(own_run)
    record = run.validation()
    rule = decide(run, record, review=0.5, false_alarm=0.2)
    model = ServedModel(run)
    assert model.false_alarm == 0.2
    assert "larger than for 80 % of them" in verdict_rule(model.false_alarm)
    assert Usual(record).describe(model.false_alarm)["alarms"] == {
        "ambiguous": 0.05,
        "undecided": 0.05,
        "unfamiliar": 0.2,
    }
    test = dubito.data.load("digits", "test")
    images = dubito.data.normalize(test.images, run.data.mean, run.data.std)
    predicted = model.predict([Job(images, "weights", 10, math.inf)])
    answers = predictions(model, Usual(record), Options(), predicted)
    found = {
        name: [one["verdict"] for one in answers if one["decision"] == name] for name in rule(predicted.prediction)
    }
    assert len(found["review"]) > 20 < len(found["unfamiliar"])
    assert {verdict["level"] for verdict in found["unfamiliar"]} == {"unfamiliar"}
    assert "unfamiliar" not in {verdict["level"] for verdict in found["review"] + found["accept"]}
    sure = [verdict["sentence"] for verdict in found["review"] if verdict["level"] == "sure"]
    assert sure
    assert set(sure) == {"Neither uncertainty is unusual, but the answer is not certain enough for the rule."}
