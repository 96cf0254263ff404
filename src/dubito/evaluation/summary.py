"""The metrics of predictions as one JSON-ready dictionary, with confidence intervals over images and draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dubito.evaluation import metrics
from dubito.evaluation.bootstrap import Separations, Statistics
from dubito.evaluation.calibration import (
    Conformal,
    ConformalMethod,
    fit_temperature,
    set_metrics,
    suitable_coverage,
    temper,
)
from dubito.evaluation.intervals import Measurement, measure
from dubito.evaluation.predictions import Evaluated

CURVE_POINTS = 100
"""Coverages at which metrics.json has the risk."""


def summarize(
    test: Evaluated,
    validation: Evaluated,
    ood: Mapping[str, Evaluated],
    class_names: tuple[str, ...],
    *,
    coverage: float | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """What metrics.json holds of predictions.

    - ``accuracy``, ``top5_accuracy`` (of more than 5 classes), ``nll``, ``brier``, ``ece``, ``ece_equal_mass``,
      ``aleatoric``, ``epistemic``, ``entropy``, ``mutual_information``; their ``intervals``
    - ``errors``: how well each uncertainty finds mistakes: ``auroc``, ``aurc``, ``excess_aurc``, ``auroc_interval``,
      ``aurc_interval``
    - ``risk_coverage``: ``coverage``, and for each uncertainty the risk at it
    - ``reliability``: ``equal_width`` and ``equal_mass``, bin by bin
    - ``ood``: for each data set and uncertainty ``auroc``, ``aupr``, ``fpr95``, ``auroc_interval``
    - ``temperature_scaling``: ``temperature``, ``before`` and ``after``; None without calibration images
    - ``conformal``: for ``lac`` and ``aps`` the threshold, achieved ``coverage``, ``mean_size``, ``empty``, and both
      by class; None without calibration images
    - ``per_class``; ``confusion``, with a row for each true class

    Intervals cover images and draws (see :mod:`dubito.evaluation.intervals`); those of predictions without draws, or
    with fewer than three, cover the images alone. `evaluate` adds ``noise`` and ``settings``. A value that does not
    exist is None: the AUROC without any mistake, the threshold of too few images, an empty bin.
    """
    prediction, labels = test.prediction, test.truth
    statistics = Statistics(prediction, labels)
    found = measured(test, bootstrap, seed)
    top = [name for name in found.names if "/" not in name]
    matrix = metrics.confusion_matrix(prediction.label, labels, len(class_names))
    return {
        **{name: found[name] for name in top},
        "intervals": {name: found.interval(name) for name in top},
        "errors": _errors(statistics, found),
        "risk_coverage": _curves(statistics),
        "reliability": {
            "equal_width": vars(metrics.reliability(prediction.probs, labels)),
            "equal_mass": vars(metrics.reliability(prediction.probs, labels, equal_mass=True)),
        },
        "ood": {name: _separations(test, part, bootstrap, seed) for name, part in ood.items()},
        "temperature_scaling": _temperature_scaling(test, validation) if len(validation) else None,
        "conformal": _conformal(test, validation, coverage, seed) if len(validation) else None,
        "per_class": metrics.per_class(prediction, labels, class_names),
        "confusion": matrix,
    }


def measured(part: Evaluated, bootstrap: int, seed: int, ranked: Sequence[str] = metrics.UNCERTAINTIES) -> Measurement:
    """Every metric of labelled images with what its interval is made of; paired with that of other networks.

    `ranked` are the uncertainties that are to find mistakes.
    """
    return measure(lambda left_out: Statistics(part.without(left_out), part.truth, ranked), part.units, bootstrap, seed)


def _errors(statistics: Statistics, measurement: Measurement) -> dict[str, dict[str, Any]]:
    """How well each uncertainty finds the mistakes."""
    best = metrics.best_aurc(int(statistics.errors.sum()), statistics.count)
    found: dict[str, dict[str, Any]] = {}
    for name in statistics.scores:
        keys = {what: f"errors/{name}/{what}" for what in ("auroc", "aurc")}
        found[name] = {what: measurement[key] for what, key in keys.items()}
        found[name]["excess_aurc"] = found[name]["aurc"] - best
        found[name] |= {f"{what}_interval": measurement.interval(key) for what, key in keys.items()}
    return found


def _curves(statistics: Statistics) -> dict[str, Tensor]:
    coverage = torch.arange(1, CURVE_POINTS + 1, dtype=torch.float64) / CURVE_POINTS
    curves = {"coverage": coverage}
    for name, score in statistics.scores.items():
        curves[name] = metrics.risk_at(metrics.risk_coverage(score, statistics.errors), coverage)
    return curves


def _separations(own: Evaluated, other: Evaluated, bootstrap: int, seed: int) -> dict[str, dict[str, Any]]:
    """How well each uncertainty tells another data set apart; intervals over both sets of images and the draws."""
    scores, others = metrics.uncertainties(own.prediction), metrics.uncertainties(other.prediction)
    measurement = measure(
        lambda left_out: Separations(own.without(left_out), other.without(left_out)), own.units, bootstrap, seed
    )
    found: dict[str, dict[str, Any]] = {}
    for name, score in scores.items():
        found[name] = metrics.separation(score, others[name])._asdict()
        found[name]["auroc_interval"] = measurement.interval(f"{name}/auroc")
    return found


def _temperature_scaling(test: Evaluated, validation: Evaluated) -> dict[str, Any]:
    """The temperature that fits the validation images, and what it does to the test images."""
    temperature = fit_temperature(validation.prediction.probs, validation.truth)
    probs = test.prediction.probs
    return {
        "temperature": temperature,
        "images": len(validation),
        "before": _calibrated(probs, test.truth),
        "after": _calibrated(temper(probs, temperature), test.truth),
    }


def _calibrated(probs: Tensor, labels: Tensor) -> dict[str, float]:
    return {
        "nll": metrics.nll(probs, labels),
        "brier": metrics.brier(probs, labels),
        "ece": metrics.calibration_error(probs, labels),
        "ece_equal_mass": metrics.calibration_error(probs, labels, equal_mass=True),
    }


def _conformal(test: Evaluated, validation: Evaluated, coverage: float | None, seed: int) -> dict[str, Any]:
    if coverage is None:
        coverage = suitable_coverage(int(validation.wrong.sum()), len(validation))
    found: dict[str, Any] = {"requested": coverage, "images": len(validation)}
    for method in ConformalMethod:
        fitted = Conformal.fit(validation.prediction.probs, validation.truth, coverage, method.value, seed=seed)
        sets = set_metrics(fitted.sets(test.prediction.probs), test.truth)
        found[method.value] = {"threshold": fitted.threshold, "randomized": fitted.is_randomized, **sets}
    return found


def about_chance(errors: Mapping[str, Mapping[str, Any]]) -> str:
    """Names each uncertainty whose interval of AUROC does not lie above one half; empty if there is none.

    `errors` is what metrics hold of finding mistakes. An uncertainty without an interval, for want of mistakes, is not
    judged.

    >>> about_chance({"epistemic": {"auroc": 0.486, "auroc_interval": [0.441, 0.53]}})
    'No better than chance at finding mistakes: epistemic (AUROC 0.486, 95 % interval 0.441 to 0.530).'
    >>> about_chance({"entropy": {"auroc": 0.9, "auroc_interval": [0.8, 0.95]}})
    ''
    """
    named = []
    for name, found in errors.items():
        low, high = found["auroc_interval"]
        if found["auroc"] is not None and low is not None and high is not None and low <= 0.5:
            words = name.replace("_", " ")
            named.append(f"{words} (AUROC {found['auroc']:.3f}, 95 % interval {low:.3f} to {high:.3f})")
    return f"No better than chance at finding mistakes: {', '.join(named)}." if named else ""


def plain(value: Any) -> Any:
    """The same as JSON has it: lists for tensors and tuples, None for numbers that are not finite.

    >>> plain({"a": torch.tensor([1, 2]), "b": (float("nan"), 0.5)})
    {'a': [1, 2], 'b': [None, 0.5]}
    """
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
