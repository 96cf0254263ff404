"""Training: settings, run folders, and the parts to train with a Lightning Trainer of your own.

What needs Lightning is imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dubito.errors import missing
from dubito.runs.config import PRESETS, TrainingConfig, configure

if TYPE_CHECKING:
    from dubito.runs.description import DataDescription
    from dubito.runs.run import Run
    from dubito.training.callbacks import Display, InterruptedTraining, RunKeeper
    from dubito.training.classifier import Classifier
    from dubito.training.cluster import resume_on_ray, train_on_ray
    from dubito.training.fit import resume, train
    from dubito.training.images import ImageData
    from dubito.training.members import assemble

_HOME_OF = {
    "Classifier": "training.classifier",
    "DataDescription": "runs.run",
    "Display": "training.callbacks",
    "ImageData": "training.images",
    "InterruptedTraining": "training.callbacks",
    "Run": "runs.run",
    "RunKeeper": "training.callbacks",
    "assemble": "training.members",
    "resume": "training.fit",
    "resume_on_ray": "training.cluster",
    "train": "training.fit",
    "train_on_ray": "training.cluster",
}

__all__ = [
    "PRESETS",
    "Classifier",
    "DataDescription",
    "Display",
    "ImageData",
    "InterruptedTraining",
    "Run",
    "RunKeeper",
    "TrainingConfig",
    "assemble",
    "configure",
    "resume",
    "resume_on_ray",
    "train",
    "train_on_ray",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'dubito.training' has no attribute {name!r}")
    try:
        value = getattr(import_module(f"dubito.{_HOME_OF[name]}"), name)
    except ModuleNotFoundError as error:
        raise missing("Training", error.name, "train") from None
    globals()[name] = value
    return value
