"""Fitting a run's novelty on its own images, and keeping it in its folder."""

from __future__ import annotations

import torch

from dubito.data import Batches, Dataset, images_at_once
from dubito.prediction import Predictor
from dubito.prediction.novelty import FEWEST, FILE, HELD_OUT_IMAGES, TRAINING_IMAGES, Novelty
from dubito.runs.run import Run


def run_novelty(run: Run) -> Novelty | None:
    """The novelty that was fitted for a run's best weights, if any."""
    return Predictor(run, 1, "mean").novelty if (run.path / FILE).exists() else None


def fit_novelty(run: Run, training: Dataset, held_out: Dataset) -> Novelty | None:
    """Fit the novelty of a run's best weights and write it into its folder; None if there are too few images."""
    if min(len(training), len(held_out)) < FEWEST:
        return None
    predictor = Predictor(run, 1, "mean")
    novelty = predictor.fit_novelty(
        _some(run, training, TRAINING_IMAGES), _some(run, held_out, HELD_OUT_IMAGES), weights=run.fingerprint()
    )
    run.write(FILE, novelty.to_bytes())
    return novelty


def _some(run: Run, part: Dataset, most: int) -> Batches:
    """Batches of at most so many images, chosen at random."""
    chosen = torch.randperm(len(part), generator=torch.Generator().manual_seed(0))[:most].sort().values
    images, labels = part.images[chosen], part.labels[chosen]
    return Batches(images, labels, images_at_once(run.data.size), shuffle=False, mean=run.data.mean, std=run.data.std)
