"""Prediction: mean probabilities of images with aleatoric and epistemic uncertainty."""

from __future__ import annotations

from dubito.heads.split import Decomposition, Prediction, decompose, decompose_logits
from dubito.prediction.ensemble import Ensemble, ensemble, mc_dropout, pool
from dubito.prediction.predictor import PredictionMethod, Predictor, PredictsItself, drawn_dropout, predict, predictor

__all__ = [
    "Decomposition",
    "Ensemble",
    "Prediction",
    "PredictionMethod",
    "Predictor",
    "PredictsItself",
    "decompose",
    "decompose_logits",
    "drawn_dropout",
    "ensemble",
    "mc_dropout",
    "pool",
    "predict",
    "predictor",
]
