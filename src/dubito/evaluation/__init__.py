"""Evaluation: metrics, post-hoc calibration, the evaluation of runs and ensembles, and their comparison.

Nothing here needs Lightning; matplotlib is imported when used.
"""

from __future__ import annotations

from dubito.evaluation.comparison import Comparison, compare
from dubito.evaluation.evaluation import Evaluation, evaluate
from dubito.evaluation.noise import NoiseLevel
from dubito.evaluation.predictions import Evaluated
from dubito.evaluation.validation import validation_of

__all__ = ["Comparison", "Evaluated", "Evaluation", "NoiseLevel", "compare", "evaluate", "validation_of"]
