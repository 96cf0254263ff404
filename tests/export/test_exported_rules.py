"""An exported file carries what was fitted: the rule of its run, its novelty and its conformal sets."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import dubito
from dubito.data import normalize
from dubito.errors import DataError, DubitoWarning, OptionError
from dubito.exporting import OnnxModel, export_bytes
from dubito.exporting.description import Description, What
from dubito.runs.description import DataDescription
from dubito.runs.validation import Calibration


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


def fitted_predictor(network: nn.Module, data: DataDescription, samples: int) -> dubito.Predictor:
    """A predictor with novelty, and a rule that accepts, reviews and refuses."""
    pixels = torch.Generator().manual_seed(3)
    familiar = torch.randint(100, (260, 1, 32, 32), dtype=torch.uint8, generator=pixels)
    inputs = normalize(familiar, data.mean, data.std)
    predictor = dubito.Predictor(network, samples)
    predictor.fit_novelty(inputs[:130], inputs[130:])
    prediction = predictor(inputs[130:])
    predictor.rule = dubito.decisions.fit(prediction, prediction.label, review=0.5, false_alarm=0.2)
    return predictor


CALIBRATION = Calibration("", 9, 4, 0, 0.9, temperature=2.0, coverage=0.9, threshold=0.66, scores={}, quantiles={})


@pytest.mark.parametrize("kind", ["bayesian", "dropout", "point"])
def test_novelty_decisions_and_sets_of_a_file_are_those_of_the_predictor(
    tiny: Callable[..., nn.Module], data: DataDescription, images: Callable[[int], Tensor], kind: str
) -> None:
    network = tiny(nn.Dropout(0.3), bayesian=kind == "bayesian", std=0.3)
    network.draws_dropout = kind == "dropout"
    predictor = fitted_predictor(network, data, 4)
    options = {"samples": 4, "novelty": predictor.novelty, "calibration": CALIBRATION}
    model = OnnxModel(export_bytes(network, data, rule=predictor.rule, **options))
    assert model.description.fitted == ("novelty", "decision", "conformal")
    generator = torch.Generator().manual_seed(5)
    dark = torch.randint(100, (40, 1, 32, 32), dtype=torch.uint8, generator=generator)
    for count in (1, 40):
        pictures = torch.cat([dark, images(40)])[-count - 20 :]
        expected = predictor(normalize(pictures, data.mean, data.std))
        found, outputs = model.predict(pictures), model.run(pictures)
        torch.testing.assert_close(found.novelty, expected.novelty, rtol=1e-3, atol=1e-3)
        assert outputs["decision"].dtype == torch.int64
        names = [("accept", "review", "unfamiliar")[number] for number in outputs["decision"].tolist()]
        assert names == expected.decision.tolist() == found.decision.tolist()
        assert found.reason.tolist() == expected.reason.tolist()
        assert torch.equal(outputs["conformal"], 1 - expected.probs.double() <= 0.66)
    assert set(names) == {"accept", "review", "unfamiliar"}
    assert 0 < int(outputs["conformal"].sum()) < outputs["conformal"].numel()


def test_sets_are_of_probabilities_as_they_are_in_a_calibrated_file(
    tiny: Callable[..., nn.Module], data: DataDescription, images: Callable[[int], Tensor]
) -> None:
    network = tiny(bayesian=False)
    plain = dubito.Predictor(network)(normalize(images(9), data.mean, data.std))
    model = OnnxModel(export_bytes(network, data, temperature=2.0, calibration=CALIBRATION))
    outputs = model.run(images(9))
    assert torch.equal(outputs["conformal"], 1 - plain.probs.double() <= 0.66)
    assert float((outputs["probabilities"] - plain.probs).abs().max()) > 0.01


def test_thresholds_of_classes_decide_in_a_file(
    tiny: Callable[..., nn.Module], data: DataDescription, images: Callable[[int], Tensor]
) -> None:
    network = tiny(bayesian=False)
    prediction = dubito.Predictor(network)(normalize(images(60), data.mean, data.std))
    rule = dubito.decisions.fit(prediction, prediction.label, review=0.3, per_class=True)
    model = OnnxModel(export_bytes(network, data, rule=rule))
    names = [("accept", "review")[number] for number in model.run(images(60))["decision"].tolist()]
    assert names == rule(prediction).tolist()
    assert len(set(names)) == 2


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_fewer_draws_than_the_rule_was_fitted_to_are_warned_of_once(
    tiny: Callable[..., nn.Module], data: DataDescription, images: Callable[[int], Tensor], format: str
) -> None:
    network = tiny(std=0.3)
    rule = rule_for(dubito.Predictor(network, 4)(normalize(images(20), data.mean, data.std)))
    rule = replace(rule, score="entropy", origin={"samples": 4})
    with pytest.warns(DubitoWarning, match="fitted to predictions by 4 draws; by 2, more") as told:
        content = export_bytes(network, data, format, samples=2, rule=rule)
    assert sum(one.category is DubitoWarning for one in told) == 1
    if format == "onnx":
        assert OnnxModel(content).description.rule == rule
    with warnings.catch_warnings():
        warnings.simplefilter("error", DubitoWarning)
        export_bytes(network, data, format, samples=4, rule=rule)
        export_bytes(network, data, format, "moments", rule=replace(rule, origin={"samples": 10_000}))


def test_a_file_with_one_draw_does_not_accept_everything_by_a_rule_that_compares_draws(
    tiny: Callable[..., nn.Module], data: DataDescription, images: Callable[[int], Tensor]
) -> None:
    network = tiny(std=0.3)
    prediction = dubito.Predictor(network, 4)(normalize(images(20), data.mean, data.std))
    rule = dubito.decisions.fit(prediction, prediction.label, review=0.5, score="epistemic")
    with pytest.warns(DubitoWarning, match="no decisions: the rule goes by epistemic, which takes at least 2 draws"):
        model = OnnxModel(export_bytes(network, data, samples=1, rule=rule))
    assert model.description.rule is None
    assert "decision" not in model.run(images(3))
    assert model.predict(images(3)).decision is None


def test_a_rule_that_needs_novelty_is_not_exported_without_it(
    tiny: Callable[..., nn.Module], data: DataDescription
) -> None:
    network = tiny()
    rule = fitted_predictor(network, data, 4).rule
    with pytest.raises(OptionError, match="give novelty too"):
        export_bytes(network, data, samples=4, rule=rule)
