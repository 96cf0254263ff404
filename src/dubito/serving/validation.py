"""How uncertain the network usually is: its run's validation record, as a server uses it.

An answer compares its image with the images that training held out; conformal sets are calibrated on them, and the
page's examples are some of them. All of that is in the run folder, so a server needs no images. The record is that of
the default predictor, 10 draws of the best weights, and every method is compared with it. A record that is missing is
made if the data is on this machine; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from dubito.data import DATASETS, status
from dubito.errors import DataError, RunError
from dubito.evaluation.calibration import Conformal
from dubito.evaluation.images import shown
from dubito.evaluation.metrics import percentile
from dubito.evaluation.predictions import inputs_and_labels, predicted
from dubito.evaluation.thumbnails import data_uri
from dubito.evaluation.validation import record, validation_of
from dubito.prediction.novelty import FALSE_ALARM
from dubito.runs.run import Run
from dubito.runs.validation import Validation
from dubito.serving.model import ServedModel

QUANTILE = 95
"""An uncertainty above that of so many per cent of the validation images is unusual."""
ALARM = (100 - QUANTILE) / 100
"""The share of usual images that are called so by mistake."""


def verdict_rule(false_alarm: float = FALSE_ALARM) -> str:
    """What the sentences mean; so many usual images are called unlike the training images by mistake."""
    return (
        f"An image counts as ambiguous if its aleatoric uncertainty is larger than for {QUANTILE} % "
        "of the validation images, and the model as undecided if its epistemic uncertainty is; both "
        "can be true. An image counts as unlike the training images if its novelty is larger than "
        f"for {100 * (1 - false_alarm):.4g} % of them; then nothing else is said."
    )


class Usual:
    """What is usual: the validation record, with the questions that an answer asks of it."""

    def __init__(self, record: Validation) -> None:
        self.record = record
        self.calibration = record.calibration

    def describe(self, false_alarm: float = FALSE_ALARM) -> dict[str, Any]:
        """Quantiles 0 .. 100 % of both uncertainties, how good the predictions are, what was fitted to them, and how
        often usual images are called unusual."""
        found = self.calibration
        alarms: dict[str, float | None] = {"ambiguous": ALARM, "undecided": ALARM, "unfamiliar": false_alarm}
        return {
            **{kind: found.quantiles[kind] for kind in ("aleatoric", "epistemic")},
            "accuracy": found.accuracy,
            "images": found.images,
            "samples": self.record.prediction.samples,
            "temperature": found.temperature,
            "coverage": found.coverage,
            "alarms": alarms if self.record.prediction.novelty is not None else {**alarms, "unfamiliar": None},
        }

    @cached_property
    def _sorted(self) -> dict[str, Tensor]:
        prediction = self.record.prediction
        return {"aleatoric": prediction.aleatoric.sort().values, "epistemic": prediction.epistemic.sort().values}

    def percentile(self, kind: str, value: float) -> float:
        """The share of images with a smaller uncertainty; those with an equal one count half."""
        usual = self._sorted[kind]
        return float(percentile(usual, usual.new_tensor(value)))

    def is_unusual(self, kind: str, value: float) -> bool:
        """Whether the uncertainty is larger than that of most images."""
        return value > self.calibration.quantiles[kind][QUANTILE]

    @lru_cache(maxsize=64)  # noqa: B019  (one object lives as long as the server)
    def conformal(self, coverage: float) -> Conformal:
        """Sets of classes that hold the true one at least that often; at the record's coverage, the stored ones."""
        if coverage == self.calibration.coverage:
            return Conformal.of(self.calibration)
        return Conformal.fit(self.record.prediction.probs, self.record.labels, coverage, "lac")

    def example_list(self, class_names: tuple[str, ...]) -> list[dict[str, Any]]:
        """The examples as images in data: URLs."""
        labels = self.record.labels[self.record.example_index].tolist()
        return [
            {"id": number, "name": class_names[label], "truth": class_names[label], "image": data_uri(image)}
            for number, (image, label) in enumerate(zip(self.record.examples, labels, strict=True))
        ]


def find_usual(
    model: ServedModel, batches: Iterable[tuple[Tensor, Tensor]] | None = None, progress: bool = False
) -> Usual:
    """What is usual for the model: its run's record, or one made of batches; an error says why there is none."""
    if batches is not None:
        inputs, labels = inputs_and_labels(batches)
        predictor = model.predictors("weights", model.samples)
        part = predicted("validation", shown(inputs, model.data), labels, predictor, inputs)
        return Usual(record(part, samples=model.samples))
    run = model.run
    if run is None:
        raise RunError("a network has validation images only if they are given to dubito.serve.")
    if model.checkpoint != "best":
        raise RunError(f"the validation record of {run.path} is that of its best weights, not of the last.")
    if run.find_validation() is None:
        _require_local_data(run)
    return Usual(validation_of(run, progress=progress))


def _require_local_data(run: Run) -> None:
    name, missing = run.config.data, f"{run.path} has no validation record, and without its images none can be made"
    if name in DATASETS:
        if status(name).place == "absent":
            raise DataError(f"{missing}: {name} is not on this machine; get it with `dubito data get {name}`.")
    elif not Path(name).expanduser().exists():
        raise DataError(f"{missing}: {name} no longer exists.")
