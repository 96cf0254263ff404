"""An exported file carries the rule of its run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor, nn

import dubito
from dubito.errors import DataError
from dubito.exporting import OnnxModel, export_bytes
from dubito.exporting.description import Description, What
from dubito.runs.run import DataDescription


def rule_for(prediction: dubito.Prediction) -> dubito.decisions.Rule:
    return dubito.decisions.fit(prediction, prediction.label, review=0.5, class_names=("ant", "bee", "cat"))


def test_a_file_decides_as_the_rule_does(
    tiny: Callable[..., nn.Module], data: DataDescription, images: Callable[[int], Tensor]
) -> None:
    network = tiny(std=0.3)
    plain = OnnxModel(export_bytes(network, data, samples=4))
    before = plain.predict(images(20))
    assert before.decision is None
    rule = rule_for(before)
    after = OnnxModel(export_bytes(network, data, samples=4, rule=rule)).predict(images(20))
    assert after.decision is not None
    assert after.reason is not None
    assert after.decision.tolist() == rule(before).tolist()
    assert set(after.decision) == {"accept", "review"}
    assert after.reason.tolist() == rule.reasons(before).tolist()


def test_a_description_keeps_its_rule_and_refuses_a_damaged_one(data: DataDescription) -> None:
    probs = [[0.9, 0.05, 0.05]] * 10 + [[0.4, 0.3, 0.3]] * 10
    rule = dubito.decisions.fit(probs, [0] * 20, review=0.2)
    description = Description(What.MEAN, "softmax", data, rule=rule)
    assert Description.from_json(description.to_json()) == description
    older = json.loads(replace(description, rule=None).to_json())
    del older["rule"]  # as files had it before there were rules
    assert Description.from_json(json.dumps(older)).rule is None
    broken = json.loads(description.to_json())
    broken["rule"]["score"] = "luck"
    with pytest.raises(DataError, match="score makes no sense"):
        Description.from_json(json.dumps(broken))
