"""Prediction without draws: means and variances of every unit in one pass, and the covariance of the logits."""

from dubito.prediction.moments.prediction import LogitMoments, Propagate, logit_moments, predict_moments, split_outputs
from dubito.prediction.moments.value import Moments

__all__ = ["LogitMoments", "Moments", "Propagate", "logit_moments", "predict_moments", "split_outputs"]
