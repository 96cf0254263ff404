"""What a run's rule decides about its test images, for a report."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dubito.decisions import DECISIONS, SCORES, Measured, Rule, find_rule
from dubito.evaluation.evaluation import Evaluation
from dubito.evaluation.metrics import risk_coverage, uncertainties
from dubito.prediction import Prediction


@dataclass(frozen=True)
class Decided:
    """A rule and what it did.

    Attributes:
        rule: of the run.
        prediction: of the test images, with a decision and a reason for each.
        measured: how many of them were accepted, reviewed, refused.
        counts: for each decision, how many images have it and how many of these are predicted wrong.
    """

    rule: Rule
    prediction: Prediction
    measured: Measured
    counts: dict[str, tuple[int, int]]


def decided(evaluation: Evaluation) -> Decided | None:
    """What the rule of a single run does with the test images; None if there is no rule for such predictions."""
    test, settings = evaluation.test, evaluation.metrics["settings"]
    if len(evaluation.runs) != 1 or test.labels is None or test.temperature != 1:
        return None
    rule = find_rule(evaluation.runs[0], settings.get("method", "weights"), settings["checkpoint"])
    if rule is None or not rule.suits(test.prediction):
        return None
    prediction = rule.apply(test.prediction)
    assert prediction.decision is not None
    wrong = (prediction.label != test.labels).cpu().numpy()
    counts = {name: prediction.decision == name for name in DECISIONS}
    return Decided(
        rule,
        prediction,
        rule.measure(test.prediction, test.labels),
        {name: (int(mask.sum()), int((mask & wrong).sum())) for name, mask in counts.items()},
    )


def finds_mistakes(evaluation: Evaluation) -> str:
    """The uncertainty with the smallest AURC on validation images; without them, the lack of confidence."""
    held_out = evaluation.validation
    if not len(held_out):
        return "confidence"
    assert held_out.labels is not None
    wrong = held_out.prediction.label != held_out.labels
    scores = uncertainties(held_out.prediction)
    return min(reversed(scores), key=lambda name: risk_coverage(scores[name], wrong).area)


def doubt_of(evaluation: Evaluation, rule: Rule | None) -> tuple[str, Tensor]:
    """The score by which images are doubted, the rule's or else the one that finds mistakes best; and its values."""
    name = finds_mistakes(evaluation) if rule is None else rule.score
    values = SCORES[name](evaluation.test.prediction)
    assert values is not None
    return name, values
