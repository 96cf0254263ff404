"""Making the validation record of a run: predictions of the images that training held out, and what they calibrate.

The predictor is the default one: 10 draws of the best weights with seed 0. See :mod:`dubito.runs.validation`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dubito.data import Dataset, images_at_once, in_memory
from dubito.errors import DubitoError, RunError
from dubito.evaluation import metrics
from dubito.evaluation.calibration import Conformal, fit_temperature, suitable_coverage
from dubito.evaluation.images import held_out_images
from dubito.evaluation.noise import noisy_batches
from dubito.evaluation.predictions import Evaluated, predicted
from dubito.evaluation.storage import if_writable
from dubito.evaluation.summary import measured
from dubito.prediction import Prediction, Predictor
from dubito.progress import progress_bar
from dubito.runs.run import Run
from dubito.runs.validation import Calibration, Score, Validation

SAMPLES, SEED = 10, 0
"""Of the predictor whose predictions are recorded."""
MOST_PROBABILITIES = 5_000_000
"""Numbers of images times classes that are recorded at most; of more images, some are chosen at random."""
BOOTSTRAP = 1000
NO_IMAGES = torch.zeros(0, dtype=torch.uint8)
"""Validation images are not kept: only what was predicted for them."""
EXAMPLES = 12


def validation_of(run: Run, *, moved: str | None = None, progress: bool = False) -> Validation:
    """The validation record of a run, read from its folder. If it is missing, it is made from the images and stored.

    `moved` is where the data are now, if they were moved.
    """
    found = run.find_validation()
    if found is not None:
        return found
    try:
        held_out = held_out_images([run], moved)
    except DubitoError as error:
        raise RunError(
            f"{run.path} has no validation record, and without its images none can be made: {error}"
        ) from None
    return validate(run, held_out, progress=progress)


def validate(run: Run, held_out: Dataset, *, progress: bool = False) -> Validation:
    """Make the record from the images that training held out, and keep it in the run folder."""
    if not len(held_out):
        raise RunError(f"{run.path} has no validation images.")
    most = max(1, MOST_PROBABILITIES // len(held_out.class_names))
    chosen = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(SEED))[:most].sort().values
    images, labels = held_out.images[chosen], held_out.labels[chosen]
    origin: dict[str, Any] = run.origin()
    with progress_bar("Predicting validation images", len(images), shown=progress) as advance:
        predictor = Predictor(run.load(), SAMPLES, seed=SEED)
        predictor.use_novelty(run)  # but no rule: the run's is fitted to what is made here
        batches = noisy_batches(images, run.data, 0.0, images_at_once(run.data.size), SEED, advance)
        part = predicted(f"{held_out.name}/validation", images, labels, predictor, batches)
    made = record(part)
    made = replace(made, calibration=replace(made.calibration, **origin))
    with if_writable(run.path, "validation record"):
        run.write_validation(made)
    return made


def record(part: Evaluated, samples: int = SAMPLES) -> Validation:
    """The record of predictions of labelled images that training has not seen, by so many draws."""
    shown = _examples(part.prediction, part.truth)
    examples = in_memory(part.images[shown])
    return Validation(part.prediction, part.truth, examples, shown, calibrate(part, samples))


def recorded(run: Run, validation: Validation) -> Evaluated:
    """The record as a part of an evaluation, without images."""
    return Evaluated(f"{run.config.data}/validation", NO_IMAGES, validation.labels, validation.prediction)


def calibrate(part: Evaluated, samples: int = SAMPLES) -> Calibration:
    """What is fitted to predictions of labelled images that training has not seen."""
    prediction, labels = part.prediction, part.truth
    mistakes = int((~metrics.hits(prediction.probs, labels)).sum())
    coverage = suitable_coverage(mistakes, len(part))
    threshold = Conformal.fit(prediction.probs, labels, coverage, "lac").threshold
    places = torch.linspace(0, 1, 101, dtype=torch.float64)
    kept = metrics.uncertainties(prediction)
    kept |= {} if prediction.novelty is None else {"novelty": prediction.novelty}
    return Calibration(
        weights="",
        images=len(part),
        samples=samples,
        seed=SEED,
        accuracy=1 - mistakes / len(part),
        temperature=fit_temperature(prediction.probs, labels),
        coverage=coverage,
        threshold=_finite(threshold),
        scores=_scores(part),
        quantiles={name: score.double().quantile(places).tolist() for name, score in kept.items()},
    )


def _scores(part: Evaluated) -> dict[str, Score]:
    """How well each uncertainty finds the mistakes."""
    found = measured(part, BOOTSTRAP, SEED)
    names = {name: f"errors/{name}/auroc" for name in metrics.uncertainties(part.prediction)}
    return {
        name: Score(_finite(found[key]), tuple(map(_finite, found.interval(key))))  # type: ignore[arg-type]
        for name, key in names.items()
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _examples(prediction: Prediction, labels: Tensor) -> Tensor:
    """Which images to show: half are certain and of different classes, a quarter has each kind of uncertainty."""
    doubt = prediction.aleatoric + prediction.epistemic
    sure: list[int] = []
    for number in doubt.argsort().tolist():
        if len(sure) < EXAMPLES // 2 and labels[number] not in labels[sure]:
            sure.append(number)
    doubtful: list[int] = []
    # The share of epistemic uncertainty tells the two apart: the absolute ones are both large for the same images.
    unsure = doubt.argsort(descending=True, stable=True)[: max(len(doubt) // 25, EXAMPLES)]
    share = (prediction.epistemic / doubt.clamp_min(1e-12))[unsure]
    for order in (share.argsort(stable=True), share.argsort(descending=True, stable=True)):
        doubtful += [number for number in unsure[order].tolist() if number not in sure + doubtful][: EXAMPLES // 4]
    return torch.tensor(sure + doubtful)
