"""Rules on synthetic images whose error is known: a doubt u in [0, 1] is wrong with probability curve(u)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import integrate

import dubito
from dubito import decisions
from dubito.errors import DataError, NonFiniteError, OptionError, ShapeError, TargetError

Floats = NDArray[np.float64]
RISING: Callable[[Floats], Floats] = lambda u: 0.5 * u**4  # noqa: E731
HUMPED: Callable[[Floats], Floats] = lambda u: 0.02 * (np.abs(u - 0.3) < 0.05) + 0.012 * (u > 0.5)  # noqa: E731


def drawn(curve: Callable[[Floats], Floats], count: int, rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
    """Probabilities (N, 2) with the doubt 1 - confidence = u / 2, and labels, half of each class."""
    doubt = rng.random(count)
    label = rng.integers(2, size=count)
    wrong = rng.random(count) < curve(doubt)
    probs = np.stack([1 - doubt / 2, doubt / 2], 1)
    probs[label == 1] = probs[label == 1, ::-1]
    return probs, np.where(wrong, 1 - label, label)


def true_error(curve: Callable[[Floats], Floats], threshold: float) -> float:
    """The error among images with a doubt of at most 2 * threshold."""
    limit = min(2 * threshold, 1.0)
    return float(integrate.quad(curve, 0, limit, points=[0.25, 0.35, 0.5], limit=200)[0] / limit) if limit > 0 else 0.0


def of_draws(count: int = 900, seed: int = 0) -> tuple[dubito.Prediction, torch.Tensor]:
    """A prediction of ten draws that is wrong more often where it is less sure, with novelty."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, 3, generator=generator) * 3
    draws = (
        logits + torch.randn(10, count, 3, generator=generator) * torch.rand(count, 1, generator=generator)
    ).softmax(2)
    labels = torch.multinomial(draws.mean(0), 1, generator=generator).squeeze(1)
    prediction = dubito.decompose(draws)
    return dubito.Prediction(**{**vars(prediction), "novelty": torch.rand(count, generator=generator)}), labels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("curve", "target", "images"), [(RISING, 0.02, 900), (HUMPED, 0.01, 1500), (RISING, 0.05, 300)]
)
def test_the_error_exceeds_the_target_no_more_often_than_promised(
    curve: Callable[[Floats], Floats], target: float, images: int
) -> None:
    rng, rounds, confidence = np.random.default_rng(1), 400, 0.9
    failures = 0
    for seed in range(rounds):
        probs, labels = drawn(curve, images, rng)
        try:
            rule = decisions.fit(probs, labels, max_error=target, confidence=confidence, score="confidence", seed=seed)
        except TargetError as error:
            rule = error.best  # the best promise has to hold as well
        assert rule.error_bound is not None
        failures += true_error(curve, rule.thresholds[0]) > rule.error_bound
    level = 1 - confidence
    assert failures <= rounds * level + 3 * math.sqrt(rounds * level * (1 - level))


@pytest.mark.slow
def test_choosing_the_score_costs_no_confidence() -> None:
    """Eight scores without any meaning: whichever is chosen, the error is that of all images, which is the target."""
    rng, rounds, target, level = np.random.default_rng(2), 300, 0.05, 0.1
    passed = 0
    for seed in range(rounds):
        doubt = rng.random((400, 3))
        probs = doubt / doubt.sum(1, keepdims=True)
        labels = np.where(rng.random(400) < target * 1.001, (probs.argmax(1) + 1) % 3, probs.argmax(1))
        try:
            decisions.fit(probs, labels, max_error=target, confidence=1 - level, seed=seed)
            passed += 1
        except TargetError:
            pass
    assert passed <= rounds * level + 3 * math.sqrt(rounds * level * (1 - level))


@pytest.mark.slow
def test_the_bounds_of_review_and_of_least_coverage_hold_as_often_as_promised() -> None:
    rng, rounds, level = np.random.default_rng(3), 200, 0.1
    wrong_bound = {"review": 0, "min_coverage": 0}
    for seed in range(rounds):
        probs, labels = drawn(RISING, 400, rng)
        for goal in wrong_bound:
            options = {goal: 0.2 if goal == "review" else 0.7}
            rule = decisions.fit(probs, labels, confidence=1 - level, seed=seed, **options)
            threshold = rule.thresholds[0]
            if rule.score != "confidence":  # of two classes, every score has the same order
                accepted = rule(probs) == "accept"
                threshold = float((1 - probs.max(1))[accepted].max())
            assert rule.error_bound is not None
            missed = goal == "min_coverage" and 2 * threshold < 0.7
            wrong_bound[goal] += missed or true_error(RISING, threshold) > rule.error_bound
    for failures in wrong_bound.values():
        assert failures <= rounds * level + 3 * math.sqrt(rounds * level * (1 - level))


def test_a_rule_accepts_what_is_below_its_threshold() -> None:
    probs, labels = drawn(RISING, 6000, np.random.default_rng(0))
    rule = decisions.fit(probs, labels, max_error=0.02, score="confidence")
    decided = rule(probs)
    assert decided.dtype.kind == "U"
    assert ((1 - probs.max(1) <= rule.thresholds[0] + 1e-12) == (decided == "accept")).all()
    assert rule.coverage == pytest.approx((decided == "accept").mean(), abs=0.02)
    # An error of 2 % is at a doubt of (5 * 0.02 / 0.5)^(1/4) = 0.67; the promise costs a little of that.
    assert 0.55 < rule.coverage < 0.67
    assert rule.describe().endswith("of the rest at most 1 in 50 is wrong (95 % sure).")


def test_tensors_arrays_and_lists_are_alike() -> None:
    probs, labels = drawn(RISING, 600, np.random.default_rng(0))
    rounded = np.round(probs * 2**20) / 2**20  # lists of numbers become single precision
    rules = [
        decisions.fit(form(rounded), labels, review=0.25) for form in (np.asarray, torch.as_tensor, np.ndarray.tolist)
    ]
    assert rules[0] == rules[1] == rules[2]
    assert (rules[0](torch.as_tensor(rounded)) == rules[0](rounded.tolist())).all()


def test_without_mistakes_every_image_is_accepted() -> None:
    probs, _ = drawn(RISING, 900, np.random.default_rng(0))
    rule = decisions.fit(probs, probs.argmax(1), max_error=0.01)
    assert rule.coverage == 1
    assert rule.describe() == "Accept every image; of them at most 1 in 100 is wrong (95 % sure)."


def test_a_target_that_cannot_be_met_says_what_can() -> None:
    probs, labels = drawn(lambda u: 0.02 + 0.2 * u, 500, np.random.default_rng(0))
    with pytest.raises(
        TargetError, match=r"^1 in 100 cannot be promised \(95 % sure\) with 500 images; the best"
    ) as caught:
        decisions.fit(probs, labels, max_error=0.01)
    best = caught.value.best
    assert isinstance(best, decisions.Rule)
    assert best.error_bound is not None
    assert 0.01 < best.error_bound < 0.2
    with pytest.raises(TargetError, match="which takes at least 449 even without a mistake; the best promise is"):
        decisions.fit(probs[:300], probs[:300].argmax(1), max_error=0.01)


def test_a_target_for_each_class_says_what_one_class_can_have() -> None:
    rng = np.random.default_rng(0)
    probs, labels = drawn(RISING, 3000, rng)
    labels[probs.argmax(1) == 1] = 0  # nothing can be promised for the second class
    with pytest.raises(
        TargetError, match=r"within each class .* the best promise for a single class is 1 in \d+\.$"
    ) as caught:
        decisions.fit(probs, labels, max_error=0.0001, per_class=True)
    single = int(str(caught.value).rsplit(" ", 1)[1].rstrip("."))
    rule = decisions.fit(probs, labels, max_error=1 / single, per_class=True)
    assert [bound is None for bound in rule.error_bounds] == [False, True]


def test_a_least_coverage_is_part_of_the_sentence() -> None:
    probs, labels = drawn(RISING, 3000, np.random.default_rng(0))
    sentence = decisions.fit(probs, labels, min_coverage=0.7).describe()
    assert "wrong, and at least 70 % of images are accepted (95 % sure)." in sentence
    prediction, truth = of_draws()
    refusing = decisions.fit(prediction, truth, min_coverage=0.7, false_alarm=0.05).describe()
    assert "and at least 70 % of the familiar images are accepted" in refusing


@pytest.mark.parametrize(
    ("labels", "message"),
    [(["cat"] * 4, "must be class numbers"), ([0.0] * 4, "must be class numbers"), ([0, 1, 2, 0], "goes from 0 to 2")],
)
def test_labels_that_are_no_classes_are_not_counted_as_mistakes(labels: list, message: str) -> None:
    rule = decisions.fit(*drawn(RISING, 900, np.random.default_rng(0)), review=0.1)
    with pytest.raises(ShapeError, match=message):
        rule.measure(np.full((4, 2), 0.5), labels)


def test_what_is_no_probability_is_told_in_its_own_shape() -> None:
    with pytest.raises(ShapeError, match=r"class axis 1 that differ from 1 by up to 1, .* of shape \(N, C\)"):
        decisions.fit(np.full((20, 2), 1.0), np.zeros(20, int), review=0.1)


def test_all_wrong_promises_nothing() -> None:
    probs, _ = drawn(RISING, 300, np.random.default_rng(0))
    with pytest.raises(TargetError, match="nor can anything else"):
        decisions.fit(probs, probs.argmin(1), max_error=0.1)


def test_ties_are_accepted_or_reviewed_together() -> None:
    rng = np.random.default_rng(0)
    sure = rng.integers(3, size=3000)
    probs = np.array([[0.99, 0.01], [0.8, 0.2], [0.6, 0.4]])[sure]
    labels = (rng.random(3000) < np.array([0.0, 0.02, 0.4])[sure]).astype(int)
    rule = decisions.fit(probs, labels, max_error=0.03)
    assert (rule(probs) == np.array(["accept", "accept", "review"])[sure]).all()
    half = decisions.fit(probs, labels, review=0.5)
    assert [np.unique(half(probs)[sure == level]).size for level in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_the_share_to_review_is_reviewed(share: float) -> None:
    probs, labels = drawn(RISING, 3000, np.random.default_rng(0))
    rule = decisions.fit(probs, labels, review=share)
    assert 1 - rule.coverage == pytest.approx(share, abs=4 * math.sqrt(0.25 / 1000))
    assert rule.error_bound is not None
    assert rule.measured.error is not None
    assert rule.measured.error < rule.error_bound


def test_each_class_keeps_its_own_promise_or_is_always_reviewed() -> None:
    rng = np.random.default_rng(0)
    probs, labels = drawn(RISING, 6000, rng)
    hopeless = probs.argmax(1) == 1
    labels[hopeless] = rng.integers(2, size=hopeless.sum())
    rule = decisions.fit(probs, labels, max_error=0.02, per_class=True, class_names=("good", "bad"))
    decided = rule(probs)
    assert (decided[hopeless] == "review").all()
    assert (decided[~hopeless] == "accept").mean() > 0.5
    assert rule.error_bounds == (0.02, None)
    assert (
        "within each class (95 % sure for each class); what is predicted as bad is always reviewed." in rule.describe()
    )
    assert set(rule.reasons(probs)[hopeless]) == {"no promise can be kept for this class"}
    with pytest.raises(ShapeError, match="3 classes, but the rule is for 2"):
        rule(np.full((1, 3), 1 / 3))


@pytest.mark.parametrize("per_class", [False, True])
def test_costs_are_the_least_of_all_thresholds(per_class: bool) -> None:
    probs, labels = drawn(RISING, 400, np.random.default_rng(0))
    rule = decisions.fit(probs, labels, cost_wrong=20, cost_review=2, per_class=per_class, score="confidence")
    predicted, doubt = probs.argmax(1), 1 - probs.max(1)

    def cost(accepted: NDArray[np.bool_]) -> float:
        return float(20 * (accepted & (predicted != labels)).sum() + 2 * (~accepted).sum())

    groups = [predicted == 0, predicted == 1] if per_class else [predicted >= 0]
    least = sum(
        min(
            20 * float((group & (doubt <= limit) & (predicted != labels)).sum())
            + 2 * float((group & (doubt > limit)).sum())
            for limit in [-1.0, *doubt, 1.0]
        )
        for group in groups
    )
    assert cost(rule(probs) == "accept") == least
    assert rule.error_bound is None
    assert "without a promise" in rule.describe()


def test_expensive_mistakes_have_everything_reviewed_and_cheap_ones_nothing() -> None:
    probs, labels = drawn(lambda u: 0.2 + 0 * u, 400, np.random.default_rng(0))
    labels[np.argmin(1 - probs.max(1))] = probs[np.argmin(1 - probs.max(1))].argmin()  # the surest one is wrong
    assert decisions.fit(probs, labels, cost_wrong=1e6, cost_review=1, score="confidence").coverage == 0
    assert decisions.fit(probs, labels, cost_wrong=1, cost_review=10).coverage == 1


def test_the_unfamiliar_are_refused_at_the_false_alarm_rate() -> None:
    prediction, labels = of_draws()
    rule = decisions.fit(prediction, labels, review=0.1, false_alarm=0.05)
    refused = rule(prediction) == "unfamiliar"
    assert refused.sum() == 900 - math.ceil(901 * 0.95)
    assert prediction.novelty is not None
    assert bool((prediction.novelty[torch.from_numpy(refused)] > rule.novelty_threshold).all())
    assert set(rule.reasons(prediction)[refused]) == {"unlike the training images"}
    assert rule.describe().startswith("Refuse 4.8 % of images as unfamiliar and review ")


def test_the_probability_of_a_false_alarm_is_at_most_the_rate() -> None:
    """Of 99 images and a rate of 0.1 the 90th novelty is the limit: exactly 1 in 10 others exceeds it on average."""
    rng, exceeded = np.random.default_rng(0), []
    prediction, labels = of_draws(99)
    for _ in range(400):
        novel = dubito.Prediction(**{**vars(prediction), "novelty": torch.from_numpy(rng.random(99))})
        rule = decisions.fit(novel, labels, review=0.1, false_alarm=0.1)
        assert rule.novelty_threshold is not None
        exceeded.append(1 - rule.novelty_threshold)
    assert np.mean(exceeded) == pytest.approx(0.1, abs=4 * math.sqrt(0.1 * 0.9 / 101 / 400))


def test_reasons_name_the_rarer_uncertainty() -> None:
    prediction, labels = of_draws()
    rule = decisions.fit(prediction, labels, review=0.5)
    agreed = dubito.decompose(torch.tensor([[[0.34, 0.33, 0.33]]]).repeat(10, 1, 1))
    torn = dubito.decompose(torch.eye(3)[torch.arange(10) % 2].unsqueeze(1))
    assert rule.reasons(agreed).tolist() == ["ambiguous"]
    assert rule.reasons(torn).tolist() == ["undecided: the draws disagree"]
    applied = rule.apply(prediction)
    assert applied.decision is not None
    assert applied.reason is not None
    assert set(applied.reason[applied.decision == "accept"]) == {"certain enough"}


def test_predictions_with_decisions_are_cut_joined_and_moved() -> None:
    prediction, labels = of_draws()
    whole = decisions.fit(prediction, labels, review=0.5).apply(prediction)
    assert whole.decision is not None
    mask = whole.label == 0
    joined = dubito.Prediction.cat([whole[:10], whole[mask], whole[3], whole[torch.tensor([1, 2])]]).to(torch.float64)
    assert joined.decision is not None
    assert joined.reason is not None
    assert len(joined) == len(joined.decision) == len(joined.reason)
    assert joined.probs.dtype == torch.float64
    assert (joined.decision[:10] == whole.decision[:10]).all()
    assert (joined.decision[10:-3] == whole.decision[mask.numpy()]).all()
    assert joined.decision[-3:].tolist() == whole.decision[[3, 1, 2]].tolist()


@pytest.mark.parametrize("options", [{"max_error": 0.3}, {"review": 0.0}, {"cost_wrong": 5, "cost_review": 1}])
@pytest.mark.parametrize("per_class", [False, True])
def test_a_rule_survives_json(options: dict[str, float], per_class: bool, tmp_path: Path) -> None:
    prediction, labels = of_draws()
    rule = decisions.fit(prediction, labels, **options, per_class=per_class, false_alarm=0.05, class_names="abc")
    rule.save(tmp_path / "decision.json")
    again = decisions.Rule.load(tmp_path / "decision.json")
    assert again == rule
    assert (again(prediction) == rule(prediction)).all()
    assert json.loads(rule.to_json())["sentence"] == rule.describe()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 9}, "format is 9"),
        ({"score": "luck"}, "score makes no sense"),
        ({"thresholds": ["nan"]}, "thresholds makes no sense"),
        ({"thresholds": [0.1, 0.2]}, "error_bounds makes no sense"),
        ({"goal": None}, "goal makes no sense"),
        ({"measured": {}}, "damaged"),
    ],
)
def test_a_damaged_rule_is_refused(change: dict[str, object], message: str) -> None:
    probs, labels = drawn(RISING, 300, np.random.default_rng(0))
    content = json.loads(decisions.fit(probs, labels, review=0.1).to_json())
    with pytest.raises(DataError, match=message):
        decisions.Rule.from_json(json.dumps({**content, **change}))
    with pytest.raises(DataError, match="it lacks 'score'"):
        decisions.Rule.from_json(json.dumps({key: value for key, value in content.items() if key != "score"}))


def test_a_score_that_a_prediction_lacks_is_refused() -> None:
    prediction, labels = of_draws()
    rule = decisions.fit(prediction, labels, review=0.1, score="epistemic")
    with pytest.raises(OptionError, match="one draw, which has no epistemic"):
        rule(prediction.probs)
    refusing = decisions.fit(prediction, labels, review=0.1, false_alarm=0.1, score="entropy")
    with pytest.raises(OptionError, match="has no novelty"):
        refusing(prediction.probs)
    with pytest.raises(OptionError, match="score is 'lick'"):
        decisions.fit(prediction, labels, review=0.1, score="lick")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "No goal was given"),
        ({"max_error": 0.1, "review": 0.1}, "max_error and review were given"),
        ({"max_error": 1.5}, "max_error is 1.5"),
        ({"max_error": 0.1, "confidence": 1.0}, "confidence is 1.0"),
        ({"cost_wrong": 5}, "cost_review is missing"),
        ({"review": 0.1, "false_alarm": 0.001}, "false_alarm is 0.001"),
        ({"max_error": "0.1"}, "max_error is '0.1', but must be a number"),
        ({"review": [0.1]}, r"review is \[0.1\], but must be a number"),
        ({"min_coverage": "half"}, "min_coverage is 'half', but must be a number"),
        ({"cost_wrong": "5", "cost_review": 1}, "cost_wrong is '5', but must be a number"),
        ({"cost_wrong": 5, "cost_review": "1"}, "cost_review is '1', but must be a number"),
        ({"review": 0.1, "false_alarm": "1 %"}, "false_alarm is '1 %', but must be a number"),
        ({"review": 0.1, "confidence": None}, "confidence is None, but must be a number"),
        ({"review": 0.1, "seed": 0.5}, "seed is 0.5, but must be a whole number"),
        ({"review": 0.1, "seed": -1}, "seed is -1, but must be a whole number, at least 0"),
    ],
)
def test_goals_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        decisions.fit(*of_draws(), **options)


def test_images_that_make_no_sense_are_refused() -> None:
    probs, labels = drawn(RISING, 300, np.random.default_rng(0))
    with pytest.raises(ShapeError, match=r"labels has shape \(299,\)"):
        decisions.fit(probs, labels[:-1], review=0.1)
    with pytest.raises(ShapeError, match="from 0 to 2"):
        decisions.fit(probs, labels * 2, review=0.1)
    with pytest.raises(ShapeError, match="at least 10"):
        decisions.fit(probs[:5], labels[:5], review=0.1)
    with pytest.raises(ShapeError, match="normalise"):
        decisions.fit(probs * 2, labels, review=0.1)
    with pytest.raises(NonFiniteError):
        decisions.fit(np.where(probs > 0.99, np.nan, probs), labels, review=0.1)
