"""Estimators: how a posterior and an input become an output in training. Each is a page."""

from __future__ import annotations

from dubito.estimators.base import Estimator
from dubito.estimators.choice import ESTIMATORS, estimator, make_estimator
from dubito.estimators.flipout import Flipout
from dubito.estimators.in_force import DrawingModule, drawing_modules, forced
from dubito.estimators.local import Local
from dubito.estimators.mean import Mean
from dubito.estimators.weight import Weight

__all__ = [
    "ESTIMATORS",
    "DrawingModule",
    "Estimator",
    "Flipout",
    "Local",
    "Mean",
    "Weight",
    "drawing_modules",
    "estimator",
    "forced",
    "make_estimator",
]
