"""Novelty: how unlike the training images an image is. See :mod:`dubito.prediction.novelty.trial` for the rule."""

from __future__ import annotations

from dubito.prediction.novelty.fitting import FEWEST, HELD_OUT_IMAGES, TRAINING_IMAGES, fit
from dubito.prediction.novelty.layers import Layer, Observed, Observer, find_layers, multiplications
from dubito.prediction.novelty.novelty import FALSE_ALARM, Novelty
from dubito.prediction.novelty.scores import reference_numbers
from dubito.runs.run import NOVELTY as FILE

__all__ = [
    "FALSE_ALARM",
    "FEWEST",
    "FILE",
    "HELD_OUT_IMAGES",
    "TRAINING_IMAGES",
    "Layer",
    "Novelty",
    "Observed",
    "Observer",
    "find_layers",
    "fit",
    "multiplications",
    "reference_numbers",
]
