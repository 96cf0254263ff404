"""Bayesian twins of torch's linear and convolutional layers."""

from __future__ import annotations

from dubito.layers.base import (
    BayesConv1d,
    BayesConv2d,
    BayesConv3d,
    BayesConvTranspose1d,
    BayesConvTranspose2d,
    BayesConvTranspose3d,
    BayesianOptions,
    BayesLayer,
    BayesLinear,
    posteriors_kept,
)

__all__ = [
    "BayesConv1d",
    "BayesConv2d",
    "BayesConv3d",
    "BayesConvTranspose1d",
    "BayesConvTranspose2d",
    "BayesConvTranspose3d",
    "BayesLayer",
    "BayesLinear",
    "BayesianOptions",
    "posteriors_kept",
]
