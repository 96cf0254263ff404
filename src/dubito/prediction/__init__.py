"""Prediction: mean probabilities of images with aleatoric and epistemic uncertainty."""

from __future__ import annotations

from dubito.heads.split import Decomposition, Prediction, Regression, decompose
from dubito.prediction.ensemble import Ensemble, ensemble, mc_dropout, pool
from dubito.prediction.predictor import PredictionMethod, Predictor, PredictsItself, drawn_dropout, predict, predictor

__all__ = [
    "Decomposition",
    "Ensemble",
    "Prediction",
    "PredictionMethod",
    "Predictor",
    "PredictsItself",
    "Regression",
    "decompose",
    "drawn_dropout",
    "ensemble",
    "mc_dropout",
    "pool",
    "predict",
    "predictor",
]
