"""Estimators: how a Bayesian layer turns its posterior and an input into an output."""

from __future__ import annotations

from dubito.estimators.base import (
    Estimator,
    Flipout,
    Local,
    Mean,
    Weight,
    drawing_layers,
    estimator,
    forced,
    make_estimator,
)

__all__ = ["Estimator", "Flipout", "Local", "Mean", "Weight", "drawing_layers", "estimator", "forced", "make_estimator"]
