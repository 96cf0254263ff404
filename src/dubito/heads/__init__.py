"""Heads: how a network's outputs become a prediction. Training and prediction use the same head.

- ``softplus``: the paper's normalisation.
- ``softmax``: the usual one.
- ``kendall_gal``: 2K outputs, means and variances of K logits.
- ``gaussian``: regression with known noise.

A new head is a new file and a line in `attached.HEADS`.
"""

from __future__ import annotations

from dubito.heads.attached import HEADS, attach_head, get_head, resolve_head
from dubito.heads.base import ClassificationHead, Head, Split
from dubito.heads.categorical import CategoricalLikelihood, balanced_class_weights, categorical_log_likelihood
from dubito.heads.gaussian import GaussianHead
from dubito.heads.kendall_gal import KendallGalHead
from dubito.heads.softmax import SoftmaxHead
from dubito.heads.softplus import SoftplusHead, log_softplus_normalize, softplus_normalize

__all__ = [
    "HEADS",
    "CategoricalLikelihood",
    "ClassificationHead",
    "GaussianHead",
    "Head",
    "KendallGalHead",
    "SoftmaxHead",
    "SoftplusHead",
    "Split",
    "attach_head",
    "balanced_class_weights",
    "categorical_log_likelihood",
    "get_head",
    "log_softplus_normalize",
    "resolve_head",
    "softplus_normalize",
]
