"""Turning any network into a Bayesian one and back, what became of it, and pruning."""

from __future__ import annotations

from dubito.convert.bayesian import to_bayesian
from dubito.convert.candidates import last_layer, obstacle
from dubito.convert.copying import deep_copy
from dubito.convert.deterministic import to_deterministic
from dubito.convert.freezing import freeze_parameters, hold_statistics, patterns_of
from dubito.convert.logits import Logits
from dubito.convert.pruning import pack, prune, sparsity, unpack, weights_left
from dubito.convert.statistics import estimate_statistics
from dubito.convert.summary import Summary, summary

__all__ = [
    "Logits",
    "Summary",
    "deep_copy",
    "estimate_statistics",
    "freeze_parameters",
    "hold_statistics",
    "last_layer",
    "obstacle",
    "pack",
    "patterns_of",
    "prune",
    "sparsity",
    "summary",
    "to_bayesian",
    "to_deterministic",
    "unpack",
    "weights_left",
]
