"""Prediction without draws: means and variances of every unit in one pass, and the covariance of the logits."""

from dubito.prediction.moments.prediction import LOGITS, LogitMoments, MomentDraws, Propagate, logit_moments
from dubito.prediction.moments.value import Moments

__all__ = ["LOGITS", "LogitMoments", "MomentDraws", "Moments", "Propagate", "logit_moments"]
