"""Decisions: a run's rule is fitted to its validation images and measured on its test images, and what review buys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from dubito.data import DATASETS, Dataset, images_at_once, status
from dubito.decisions import DECISIONS, FILE, SCORES, Measured, Rule, find_rule, fit
from dubito.decisions.binomial import upper_bound
from dubito.decisions.rule import METHOD
from dubito.errors import DataError
from dubito.evaluation.evaluation import Evaluation
from dubito.evaluation.images import own_test_images
from dubito.evaluation.metrics import risk_coverage, uncertainties
from dubito.evaluation.noise import noisy_batches
from dubito.prediction import Prediction, Predictor
from dubito.progress import progress_bar
from dubito.runs.run import Run
from dubito.runs.validation import Validation

REVIEWED = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
"""The shares of reviewed images that a table shows."""


def decide(run: Run, validation: Validation, **goal: Any) -> Rule:
    """The rule for a run, fitted to its validation images and kept in its folder; see :func:`dubito.decisions.fit`."""
    rule = rule_for(run, validation, **goal)
    rule.save(run.path / FILE)
    return rule


def rule_for(run: Run, validation: Validation, **goal: Any) -> Rule:
    """The same, but not kept."""
    rule = fit(validation.prediction, validation.labels, class_names=run.data.class_names, **goal)
    made = validation.calibration
    origin = {**made.origin, "method": METHOD, "samples": validation.prediction.samples, "seed": made.seed}
    if not rule.needs_novelty:
        origin.pop("novelty", None)  # it holds whatever becomes of that
    return replace(rule, origin=origin)


def open_test(run: Run, data: str | None = None) -> Dataset:
    """The run's test images, `data` if they were moved; an error says why there are none. Nothing is downloaded."""
    name = data or run.config.data
    if name in DATASETS and status(name).place == "absent":
        raise DataError(f"{name} is not on this machine; `dubito data get {name}` gets it.")
    return own_test_images(run, data)


def measure_on_test(run: Run, rule: Rule, test: Dataset, *, progress: bool = False) -> Measured:
    """What the rule does with the run's test images."""
    return rule.measure(*predict_test(run, test, samples=rule.origin.get("samples", 10), progress=progress))


def predict_test(run: Run, test: Dataset, *, samples: int = 10, progress: bool = False) -> tuple[Prediction, Any]:
    """The prediction and the labels of the run's test images."""
    predictor = Predictor(run, samples)
    with progress_bar("Predicting test images", len(test), shown=progress) as advance:
        batches = noisy_batches(test.images, run.data, 0.0, images_at_once(run.data.size), 0, advance)
        return predictor(batches), test.labels


# ---- what a rule and review do to test images ---------------------------------------------------------------------


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
    test = evaluation.test
    if len(evaluation.runs) != 1 or test.labels is None or test.temperature != 1:
        return None
    rule = find_rule(evaluation.runs[0], checkpoint=evaluation.metrics["settings"]["checkpoint"])
    if rule is None or not rule.suits(test.prediction):
        return None
    prediction = rule.apply(test.prediction)
    assert prediction.decision is not None
    wrong = test.wrong.cpu().numpy()
    counts = {name: prediction.decision == name for name in DECISIONS}
    return Decided(
        rule,
        prediction,
        rule.measure(test.prediction, test.truth),
        {name: (int(mask.sum()), int((mask & wrong).sum())) for name, mask in counts.items()},
    )


def finds_mistakes(evaluation: Evaluation) -> str:
    """The uncertainty with the smallest AURC on validation images; without them, the lack of confidence."""
    held_out = evaluation.validation
    if not len(held_out):
        return "confidence"
    scores = uncertainties(held_out.prediction)
    return min(reversed(scores), key=lambda name: risk_coverage(scores[name], held_out.wrong).area)


def doubt_of(evaluation: Evaluation, rule: Rule | None) -> tuple[str, Tensor]:
    """The score by which images are doubted, the rule's or else the one that finds mistakes best; and its values."""
    name = finds_mistakes(evaluation) if rule is None else rule.score
    values = SCORES[name](evaluation.test.prediction)
    assert values is not None
    return name, values


@dataclass(frozen=True)
class Reviewed:
    """A share of the images is reviewed: how many are left to the network, and how many of these are wrong."""

    share: float
    left: int
    mistakes: int

    @property
    def error(self) -> float:
        """The share of mistakes among the images that are left."""
        return self.mistakes / self.left

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Of the error, over images: the exact one of Clopper & Pearson, which is honest about 0 mistakes too.

        >>> [round(edge, 4) for edge in Reviewed(0.1, 90, 0).interval()]        # 1 - 0.025^(1/90)
        [0.0, 0.0402]
        """
        side = (1 + level) / 2
        right = self.left - self.mistakes
        low = 1 - float(upper_bound(right, self.left, side)) if self.mistakes else 0.0
        return low, float(upper_bound(self.mistakes, self.left, side))


def review(doubt: Tensor, wrong: Tensor, shares: tuple[float, ...] = REVIEWED) -> list[Reviewed]:
    """What is left when those `shares` of the images with the largest `doubt` are reviewed; at least one is left.

    >>> import torch
    >>> [row.error for row in review(torch.tensor([0.1, 0.9, 0.2, 0.8]), torch.tensor([0, 1, 0, 1]).bool(), (0, 0.25))]
    [0.5, 0.3333333333333333]
    """
    mistakes = wrong.cpu()[doubt.cpu().argsort(stable=True)].cumsum(0)
    lefts = [max(len(wrong) - round(share * len(wrong)), 1) for share in shares]
    return [Reviewed(share, left, int(mistakes[left - 1])) for share, left in zip(shares, lefts, strict=True)]
