"""Fitting a run's rule to its validation images, and measuring it on its test images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dubito.data import DATASETS, status
from dubito.decisions import FILE, SCORES, Measured, Rule, fit
from dubito.decisions.stored import METHOD
from dubito.errors import DubitoError
from dubito.evaluation.images import own_test_images
from dubito.evaluation.noise import noisy_batches
from dubito.prediction import Prediction, Predictor
from dubito.progress import progress_bar
from dubito.runs.run import Run
from dubito.runs.validation import Validation

__all__ = ["decide", "measure_on_test", "risk_table"]

REVIEWED = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
"""The shares of reviewed images that a table of risks shows."""


def decide(run: Run, validation: Validation, **goal: Any) -> Rule:
    """The rule for a run, fitted to its validation images and kept in its folder; see :func:`dubito.decisions.fit`."""
    rule = fit(validation.prediction, validation.labels, class_names=run.data.class_names, **goal)
    made = validation.calibration
    origin = {"weights": made.weights, "method": METHOD, "samples": made.samples, "seed": made.seed}
    rule = replace(rule, origin=origin)
    rule.save(run.path / FILE)
    return rule


def measure_on_test(run: Run, rule: Rule, *, data: str | None = None, progress: bool = False) -> Measured | None:
    """What the rule does with the run's test images; None if their data set is not on this machine."""
    found = predict_test(run, data=data, samples=rule.origin.get("samples", 10), progress=progress)
    return None if found is None else rule.measure(*found)


def predict_test(
    run: Run, *, data: str | None = None, samples: int = 10, progress: bool = False
) -> tuple[Prediction, Any] | None:
    """The prediction and the labels of the run's test images; None if their data set is not on this machine."""
    name = data or run.config.data
    try:
        if name in DATASETS and status(name).place == "absent":
            return None
        test = own_test_images(run, data)
    except DubitoError:
        if data is not None:
            raise
        return None
    predictor = Predictor(run, samples)
    with progress_bar("Predicting test images", len(test), shown=progress) as advance:
        return predictor(noisy_batches(test.images, run, 0.0, 256, 0, advance)), test.labels


def risk_table(rule: Rule, prediction: Prediction, labels: Any) -> list[tuple[float, float]]:
    """Pairs of shares: so many of the images are reviewed, the most doubtful by the rule's score, and so many of the
    others are wrong."""
    doubt = SCORES[rule.score](prediction)
    assert doubt is not None
    wrong = (prediction.label != labels).cpu().numpy()[np.argsort(doubt.cpu().numpy(), kind="stable")]
    accepted = [max(len(wrong) - round(share * len(wrong)), 1) for share in REVIEWED]
    mistakes = np.cumsum(wrong)
    return [(share, float(mistakes[count - 1] / count)) for share, count in zip(REVIEWED, accepted, strict=True)]
