"""The metrics of predictions as one JSON-ready dictionary, with bootstrap confidence intervals."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito.errors import DubitoWarning
from dubito.evaluation import metrics
from dubito.evaluation.bootstrap import Ranking, bootstrap_means, interval, replicate
from dubito.evaluation.calibration import Conformal, ConformalMethod, fit_temperature, set_metrics, temper
from dubito.prediction import Prediction

if TYPE_CHECKING:
    from dubito.evaluation.evaluation import Evaluated, NoiseLevel

__all__ = ["Statistics", "noise_level", "plain", "summarize"]

CALIBRATION_ERRORS = ("ece", "ece_equal_mass")
CURVE_POINTS = 100
"""Coverages at which metrics.json has the risk."""


class Statistics:
    """Every metric of labelled predictions, of all images (`estimates`) or of many resamples at once (`replicates`).

    Mistakes are found by each uncertainty: the names are ``errors/UNCERTAINTY/auroc`` and ``.../aurc``. The bins of the
    calibration errors stay those of all images.
    """

    def __init__(self, prediction: Prediction, labels: Tensor) -> None:
        self.count = len(labels)
        self.scores = metrics.uncertainties(prediction)
        self.errors = ~metrics.hits(prediction.probs, labels)
        probs = prediction.probs
        shares = {"accuracy": ~self.errors}
        if probs.shape[1] > 5:
            shares["top5_accuracy"] = metrics.top_k_hits(probs, labels, 5)
        shares["nll"] = metrics.log_losses(probs, labels)
        shares["brier"] = metrics.squared_errors(probs, labels)
        shares |= {name: self.scores[name] for name in metrics.UNCERTAINTIES[:-1]}
        self.shares = {name: values.double() for name, values in shares.items()}
        gap = prediction.confidence.double() - (~self.errors).double()
        self._gaps = [
            F.one_hot(metrics.bin_of(prediction.confidence, equal_mass=equal), metrics.BINS) * gap.unsqueeze(1)
            for equal in (False, True)
        ]
        self._rankings = {name: Ranking(score, self.errors) for name, score in self.scores.items()}

    @property
    def names(self) -> list[str]:
        """Of all metrics, in the order of `replicates`."""
        ranked = [f"errors/{name}/{what}" for name in self.scores for what in ("auroc", "aurc")]
        return [*self.shares, *CALIBRATION_ERRORS, *ranked]

    def estimates(self) -> dict[str, float]:
        """The metrics of all images."""
        values = self._of(torch.ones(1, self.count, dtype=torch.float64)).squeeze(1).tolist()
        return dict(zip(self.names, values, strict=True))

    def replicates(self, bootstrap: int, seed: int) -> dict[str, Tensor]:
        """The metrics of each of `bootstrap` resamples; of two predictions of the same images they are paired."""
        values = replicate(self._of, self.count, bootstrap, seed)
        return dict(zip(self.names, values, strict=True))

    def _of(self, weights: Tensor) -> Tensor:
        """(metrics, B) for weights (B, N), in their precision."""
        means = torch.stack(list(self.shares.values())).to(weights.dtype) @ weights.T / self.count
        errors = [(weights @ gap.to(weights.dtype)).abs().sum(1) / self.count for gap in self._gaps]
        ranked = [value for ranking in self._rankings.values() for value in ranking.statistics(weights)]
        return torch.cat([means, torch.stack([*errors, *ranked])])


def summarize(
    test: Evaluated,
    validation: Evaluated,
    ood: Mapping[str, Evaluated],
    class_names: tuple[str, ...],
    *,
    coverage: float = 0.9,
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

    `evaluate` adds ``noise`` and ``settings``. A value that does not exist is None: the AUROC without any mistake, the
    threshold of too few images, an empty bin.
    """
    assert test.labels is not None
    prediction, labels = test.prediction, test.labels
    statistics = Statistics(prediction, labels)
    estimates = statistics.estimates()
    intervals = {
        name: interval(values, estimate=estimates[name] if name in CALIBRATION_ERRORS else None)
        for name, values in statistics.replicates(bootstrap, seed).items()
    }
    top = [name for name in statistics.names if "/" not in name]
    matrix = metrics.confusion_matrix(prediction.label, labels, len(class_names))
    return {
        **{name: estimates[name] for name in top},
        "intervals": {name: intervals[name] for name in top},
        "errors": _errors(statistics, estimates, intervals),
        "risk_coverage": _curves(statistics),
        "reliability": {
            "equal_width": vars(metrics.reliability(prediction.probs, labels)),
            "equal_mass": vars(metrics.reliability(prediction.probs, labels, equal_mass=True)),
        },
        "ood": {name: _separations(prediction, part.prediction, bootstrap, seed) for name, part in ood.items()},
        "temperature_scaling": _temperature_scaling(test, validation),
        "conformal": _conformal(test, validation, coverage, seed),
        "per_class": metrics.per_class(prediction, labels, class_names),
        "confusion": matrix,
    }


def _errors(
    statistics: Statistics, estimates: dict[str, float], intervals: dict[str, tuple[float, float]]
) -> dict[str, dict[str, Any]]:
    """How well each uncertainty finds the mistakes."""
    best = metrics.best_aurc(int(statistics.errors.sum()), statistics.count)
    found: dict[str, dict[str, Any]] = {}
    for name in statistics.scores:
        keys = {what: f"errors/{name}/{what}" for what in ("auroc", "aurc")}
        found[name] = {what: estimates[key] for what, key in keys.items()}
        found[name]["excess_aurc"] = found[name]["aurc"] - best
        found[name] |= {f"{what}_interval": intervals[key] for what, key in keys.items()}
    return found


def _curves(statistics: Statistics) -> dict[str, Tensor]:
    coverage = torch.arange(1, CURVE_POINTS + 1, dtype=torch.float64) / CURVE_POINTS
    curves = {"coverage": coverage}
    for name, score in statistics.scores.items():
        curves[name] = metrics.risk_at(metrics.risk_coverage(score, statistics.errors), coverage)
    return curves


def _separations(own: Prediction, other: Prediction, bootstrap: int, seed: int) -> dict[str, dict[str, Any]]:
    """How well each uncertainty tells another data set apart; both sets of images are resampled."""
    others = metrics.uncertainties(other)
    positive = torch.arange(len(own) + len(other)) >= len(own)
    found: dict[str, dict[str, Any]] = {}
    rankings: dict[str, Ranking] = {}
    for name, score in metrics.uncertainties(own).items():
        found[name] = metrics.separation(score, others[name])._asdict()
        rankings[name] = Ranking(torch.cat([score, others[name]]), positive)

    def of(weights: Tensor) -> Tensor:
        return torch.stack([ranking.statistics(weights)[0] for ranking in rankings.values()])

    for name, values in zip(rankings, replicate(of, len(positive), bootstrap, seed), strict=True):
        found[name]["auroc_interval"] = interval(values)
    return found


def _temperature_scaling(test: Evaluated, validation: Evaluated) -> dict[str, Any] | None:
    """The temperature that fits the validation images, and what it does to the test images."""
    assert test.labels is not None
    assert validation.labels is not None
    if not len(validation):
        warnings.warn(
            "The members of the ensemble held out no image in common, so it is not calibrated: train them with one "
            "--seed, or a larger --validation-fraction.",
            DubitoWarning,
            stacklevel=2,
        )
        return None
    temperature = fit_temperature(validation.prediction.probs, validation.labels)
    probs = test.prediction.probs
    return {
        "temperature": temperature,
        "images": len(validation),
        "before": _calibrated(probs, test.labels),
        "after": _calibrated(temper(probs, temperature), test.labels),
    }


def _calibrated(probs: Tensor, labels: Tensor) -> dict[str, float]:
    return {
        "nll": metrics.nll(probs, labels),
        "brier": metrics.brier(probs, labels),
        "ece": metrics.calibration_error(probs, labels),
        "ece_equal_mass": metrics.calibration_error(probs, labels, equal_mass=True),
    }


def _conformal(test: Evaluated, validation: Evaluated, coverage: float, seed: int) -> dict[str, Any] | None:
    assert test.labels is not None
    assert validation.labels is not None
    if not len(validation):
        return None
    found: dict[str, Any] = {"requested": coverage, "images": len(validation)}
    for method in ConformalMethod:
        fitted = Conformal.fit(validation.prediction.probs, validation.labels, coverage, method.value, seed=seed)
        sets = set_metrics(fitted.sets(test.prediction.probs), test.labels)
        found[method.value] = {"threshold": fitted.threshold, "randomized": fitted.is_randomized, **sets}
    return found


def noise_level(gamma: float, prediction: Prediction, labels: Tensor, bootstrap: int, seed: int) -> NoiseLevel:
    """Accuracy and mean uncertainties of noisy images, with intervals of the two."""
    from dubito.evaluation.evaluation import NoiseLevel

    names = metrics.UNCERTAINTIES[:-1]
    columns = torch.stack([getattr(prediction, name) for name in names], 1)
    means = dict(zip(names, columns.double().mean(0).tolist(), strict=True))
    aleatoric, epistemic = (interval(values) for values in bootstrap_means(columns[:, :2], bootstrap, seed))
    return NoiseLevel(
        gamma=gamma,
        accuracy=metrics.accuracy(prediction.probs, labels),
        **means,
        aleatoric_interval=aleatoric,
        epistemic_interval=epistemic,
    )


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
