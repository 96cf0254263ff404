"""Decisions: which predictions to accept, which to have reviewed, and which images to refuse as unfamiliar.

>>> import numpy, dubito.decisions
>>> sure = numpy.tile([0.98, 0.02], (900, 1)), numpy.tile([0.55, 0.45], (100, 1))    # any probabilities (N, C)
>>> labels = numpy.array([0] * 950 + [1] * 50)                           # the unsure ones are wrong every other time
>>> rule = dubito.decisions.fit(numpy.concatenate(sure), labels, max_error=0.01, confidence=0.95)
>>> rule.describe()
'Review 9 % of images; of the rest at most 1 in 100 is wrong (95 % sure).'
>>> rule([[0.98, 0.02], [0.45, 0.55]])
array(['accept', 'review'], dtype='<U10')
"""

from __future__ import annotations

from dubito.decisions.fitting import fit
from dubito.decisions.rule import ACCEPT, DECISIONS, FILE, REVIEW, UNFAMILIAR, Measured, Rule, find_rule
from dubito.scores import SCORES

__all__ = ["ACCEPT", "DECISIONS", "FILE", "REVIEW", "SCORES", "UNFAMILIAR", "Measured", "Rule", "find_rule", "fit"]
