"""Prediction: mean probabilities of images with aleatoric and epistemic uncertainty."""

from __future__ import annotations

from dubito.heads.split import Decomposition, Prediction, Regression, decompose
from dubito.models.ensemble import Ensemble, ensemble, mc_dropout
from dubito.prediction.dropout import drawn_dropout
from dubito.prediction.pooling import pool
from dubito.prediction.predictor import Method, Predictor, predict

__all__ = [
    "Decomposition",
    "Ensemble",
    "Method",
    "Prediction",
    "Predictor",
    "Regression",
    "decompose",
    "drawn_dropout",
    "ensemble",
    "mc_dropout",
    "pool",
    "predict",
]
