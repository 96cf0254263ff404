"""Heads: how a network's outputs become probabilities, one and the same in training and prediction."""

from __future__ import annotations

from dubito.heads.base import (
    HEADS,
    ClassificationHead,
    GaussianHead,
    Head,
    KendallGalHead,
    SoftmaxHead,
    SoftplusHead,
    attach_head,
    categorical_log_likelihood,
    get_head,
    log_softplus_normalize,
    resolve_head,
    softplus_normalize,
)

__all__ = [
    "HEADS",
    "ClassificationHead",
    "GaussianHead",
    "Head",
    "KendallGalHead",
    "SoftmaxHead",
    "SoftplusHead",
    "attach_head",
    "categorical_log_likelihood",
    "get_head",
    "log_softplus_normalize",
    "resolve_head",
    "softplus_normalize",
]
