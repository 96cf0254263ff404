"""Fitting a run's rule to its validation images, and measuring it on its test images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dubito.data import DATASETS, Dataset, images_at_once, status
from dubito.decisions import FILE, Measured, Rule, fit
from dubito.decisions.stored import METHOD
from dubito.errors import DataError
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
        return predictor(
            noisy_batches(test.images, run.data, 0.0, images_at_once(run.data.size), 0, advance)
        ), test.labels
