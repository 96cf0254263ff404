"""Fitting a rule to validation images: for a largest error, a share to review, a least coverage, or least cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dubito.decisions.binomial import images_needed
from dubito.decisions.causes import Causes
from dubito.decisions.goals import Cost, Goal, Images, MaxError, MinCoverage, Review
from dubito.decisions.rule import Measured, Rule
from dubito.decisions.scores import Predicted, as_labels, as_prediction, scores
from dubito.decisions.words import percent, promise
from dubito.errors import LONGEST, OptionError, ShapeError, TargetError
from dubito.heads.split import Prediction

Mask = NDArray[np.bool_]
PLANNING = 1 / 3
"""The share of the images that plan; the others prove."""
FEWEST = 10


def fit(
    prediction: Predicted,
    labels: Any,
    max_error: float | None = None,
    confidence: float = 0.95,
    *,
    review: float | None = None,
    min_coverage: float | None = None,
    cost_wrong: float | None = None,
    cost_review: float | None = None,
    false_alarm: float | None = None,
    per_class: bool = False,
    score: str | None = None,
    seed: int = 0,
    class_names: Sequence[str] = (),
) -> Rule:
    """A rule fitted to images that training has not seen, for one of four goals.

    - `max_error`: accept as many images as possible such that the error among accepted ones is at most this, with
      `confidence`: over many sets of validation images like these, at most 5 in 100 such rules have a larger error. The
      method is fixed sequence testing with exact binomial tests, see :mod:`dubito.decisions.thresholds`. A
      TargetError says what can be promised if this cannot; its `best` is the rule for that.
    - `review`: have this share of the images reviewed, the most doubtful ones. The bound of the error among the others
      holds with `confidence`; the share itself is what to expect.
    - `min_coverage`: accept at least this share of images. This, and the bound of the error, hold together with
      `confidence`.
    - `cost_wrong` and `cost_review`: the least mean cost on the validation images, given the cost of an
      accepted mistake and of a review. This cost, and the error of the rule, are estimates, not promises.

    A third of the images, chosen by `seed`, chooses the score and the thresholds; the others prove the promise. The
    promise does not account for other choices made with the same images, such as the best epoch of a training or a
    temperature.

    Args:
        prediction: of the validation images: a :class:`dubito.Prediction`, or probabilities (N, C) of any origin.
        labels: (N,) the true classes.
        max_error: largest error among accepted images.
        confidence: of the promise.
        review: share of images to review.
        min_coverage: least share of accepted images.
        cost_wrong: cost of an accepted image with a wrong label.
        cost_review: cost of a review.
        false_alarm: also refuse images as unfamiliar, by their novelty, at this rate of false alarms: at most this
            share of images like the validation images is refused (a conformal quantile, over random validation and new
            images alike). The goals above are then about the other images.
        per_class: a threshold for each predicted class. The promise then is about each class on its own, with
            `confidence` for each; a class for which it cannot be kept is always reviewed.
        score: one of `SCORES` instead of the best.
        seed: random seed of the division of the images.
        class_names: to name classes in sentences.

    >>> import torch
    >>> probs = torch.rand(2000, 2, generator=torch.manual_seed(0)).double().softmax(1)
    >>> labels = (torch.rand(2000, generator=torch.manual_seed(1)) > probs[:, 0]).long()
    >>> rule = fit(probs, labels, review=0.5)
    >>> rule.describe()
    'Review 50 % of images; of the rest at most 39 % are wrong (95 % sure).'
    """
    costs = {"cost_wrong": cost_wrong, "cost_review": cost_review}
    shares = {"max_error": max_error, "review": review, "min_coverage": min_coverage}
    _require_numbers({**shares, "false_alarm": false_alarm, **costs}, confidence, seed)
    own = as_prediction(prediction)
    truth = _labels(own, labels)
    goal = _goal(shares, costs, confidence)
    novelty_threshold, familiar = _familiar(own, false_alarm)
    planning = planning_images(len(truth), seed) if goal.proves else np.zeros(len(truth), bool)
    label = own.label.cpu().numpy()
    groups = (label, own.probs.shape[1]) if per_class else (np.zeros_like(label), 1)
    name, promises = goal.choose(Images(label != truth, planning, familiar, *groups), scores(own, score))
    kept = any(one.kept for one in promises)
    rule = Rule(
        goal=goal.name,
        target=goal.target,
        confidence=confidence,
        score=name,
        thresholds=tuple(one.threshold if one.kept or not kept else -math.inf for one in promises),
        error_bounds=tuple(one.bound if one.kept or not kept else None for one in promises),
        measured=Measured(0, 0, 0, 0, 0),
        images=len(truth),
        false_alarm=false_alarm,
        novelty_threshold=novelty_threshold,
        causes=Causes.fit(own),
        class_names=tuple(class_names),
    )
    rule = replace(rule, measured=rule.measure(own[torch.from_numpy(~planning)], truth[~planning]))
    if kept:
        return rule
    raise _cannot(replace(rule, target=rule.error_bound or 1.0), goal.target)


def _require_numbers(given: dict[str, Any], confidence: Any, seed: Any) -> None:
    """An error if an option is something else than a number; those that were not given are None."""
    for name, value in {**given, "confidence": confidence}.items():
        if not isinstance(value, Real) and (value is not None or name == "confidence"):
            raise OptionError(f"{name} is {repr(value)[:LONGEST]}, but must be a number.")
    if not isinstance(seed, Integral) or seed < 0:
        raise OptionError(f"seed is {repr(seed)[:LONGEST]}, but must be a whole number, at least 0.")


def _labels(prediction: Prediction, labels: Any) -> NDArray[np.int64]:
    truth = as_labels(prediction, labels)
    if len(truth) < FEWEST:
        raise ShapeError(f"There are {len(truth)} validation images, but a rule needs at least {FEWEST}.")
    return truth


SHARES: dict[str, type[MaxError] | type[Review]] = {kind.name: kind for kind in (MaxError, Review, MinCoverage)}
"""The goals that ask for a share."""


def _goal(shares: dict[str, float | None], costs: dict[str, float | None], confidence: float) -> Goal:
    """The one goal that was given."""
    for name, value in {**shares, "confidence": confidence}.items():
        if value is not None and not (0 < value < 1 or (name == "review" and value == 0)):
            such = 0.95 if name == "confidence" else 0.05
            raise OptionError(f"{name} is {value}, but must be a share between 0 and 1, such as {such}.")
    given = [name for name, value in shares.items() if value is not None]
    given += ["cost_wrong and cost_review"] if any(value is not None for value in costs.values()) else []
    if len(given) != 1:
        raise OptionError(
            f"{' and '.join(given) or 'No goal'} {'were' if given else 'was'} given, but a rule has one goal: "
            "max_error, review, min_coverage, or cost_wrong with cost_review."
        )
    for name, value in shares.items():
        if value is not None:
            return SHARES[name](value, confidence)
    found = []
    for name, value in costs.items():
        if value is None:
            raise OptionError(f"{name} is missing: cost_wrong and cost_review go together.")
        if not (value > 0 and math.isfinite(value)):
            raise OptionError(f"{name} is {value}, but costs must be positive and finite.")
        found.append(value)
    return Cost(found[0] / found[1])


def planning_images(count: int, seed: int) -> Mask:
    """Which of the images plan."""
    planning = np.zeros(count, bool)
    planning[np.random.default_rng(seed).permutation(count)[: int(count * PLANNING)]] = True
    return planning


def _familiar(prediction: Prediction, false_alarm: float | None) -> tuple[float | None, Mask]:
    """The largest novelty that is not refused, and which images the other choices may rest on.

    Of n images the ceil((n + 1)(1 - false_alarm))-th smallest novelty is exceeded by another one with probability at
    most false_alarm (split conformal prediction; Vovk, Gammerman & Shafer 2005). Given that value, the images below it
    are still independent and alike, so that what is fitted to them holds for all that are not refused.
    """
    if false_alarm is None:
        return None, np.ones(len(prediction), bool)
    if not 0 < false_alarm < 1:
        raise OptionError(f"false_alarm is {false_alarm}, but must be a share between 0 and 1, such as 0.01.")
    if prediction.novelty is None:
        raise OptionError(
            "false_alarm is given, but the prediction has no novelty: call predictor.fit_novelty(batches) first, or "
            "leave it out."
        )
    novelty = np.sort(prediction.novelty.detach().cpu().double().numpy())
    rank = math.ceil(round((len(novelty) + 1) * (1 - false_alarm), 9))
    if rank > len(novelty):
        raise OptionError(
            f"false_alarm is {false_alarm:g}, but with {len(novelty)} images the smallest possible rate "
            f"is {1 / (len(novelty) + 1):.2g}: give more images or a larger rate."
        )
    threshold = float(novelty[rank - 1])
    return threshold, prediction.novelty.detach().cpu().double().numpy() < threshold


def _cannot(best: Rule, target: float) -> TargetError:
    """What to say of a target that cannot be met, with the best rule there is."""
    needed = math.ceil(images_needed(target, best.confidence) / (1 - PLANNING))
    few = f", which takes at least {needed:,} even without a mistake" if best.images < needed else ""
    within = " within each class" if best.per_class else ""
    sure = f"({percent(best.confidence)} sure)"
    cannot = f"{_odds(target)} cannot be promised{within} {sure} with {best.images:,} images{few};"
    possible = [bound for bound in best.error_bounds if bound is not None and bound < 1]
    if not possible:
        return TargetError(f"{cannot} nor can anything else.", best)
    if best.per_class:
        return TargetError(f"{cannot} the best promise for a single class is {_odds(min(possible))}.", best)
    review = percent(1 - best.coverage)
    return TargetError(f"{cannot} the best promise is {_odds(possible[0])}, reviewing {review}.", best)


def _odds(bound: float) -> str:
    """Such as `1 in 100`."""
    return promise(bound).removeprefix("at most ").rsplit(" ", 1)[0]
