"""A server gives the decisions of its run's rule."""

from __future__ import annotations

import math
from pathlib import Path

import torch

import dubito
from dubito import cli
from dubito.runs.run import Run
from dubito.serving.answer import predictions
from dubito.serving.batching import Job
from dubito.serving.model import ServedModel
from dubito.serving.request import Options


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
