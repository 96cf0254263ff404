"""Fitting a run's rule to its validation images, and measuring it on its test images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dubito.data import DATASETS, images_at_once, status
from dubito.decisions import FILE, Measured, Rule, fit
from dubito.decisions.stored import METHOD
from dubito.errors import DubitoError
from dubito.evaluation.images import own_test_images
from dubito.evaluation.noise import noisy_batches
from dubito.prediction import Prediction, Predictor
from dubito.progress import progress_bar
from dubito.runs.run import Run
from dubito.runs.validation import Validation


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
        return predictor(
            noisy_batches(test.images, run.data, 0.0, images_at_once(run.data.size), 0, advance)
        ), test.labels
