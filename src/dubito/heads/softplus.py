"""Softplus normalisation, the paper's head (section 3.2): p_c = softplus(f_c) / sum_k softplus(f_k)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dubito.errors import OptionError, ShapeError
from dubito.heads.base import ClassificationHead, with_class_axis
from dubito.softplus import at_least_single, log_softplus


def log_softplus_normalize(logits: Tensor, dim: int = -1) -> Tensor:
    """The logarithm of :func:`softplus_normalize`, finite with finite gradients for any finite logits.

    >>> log_softplus_normalize(torch.tensor([1e4, -1e4]))
    tensor([     0.0000, -10009.2100])
    """
    _require_class_axis(logits, dim)
    return torch.log_softmax(log_softplus(at_least_single(logits)), dim).to(logits.dtype)


def softplus_normalize(logits: Tensor, dim: int = -1) -> Tensor:
    """Probabilities p_c = softplus(f_c) / sum_k softplus(f_k) along the class axis `dim`.

    Computed as a softmax of log softplus(f), so that logits which are all very negative do not give 0/0.

    >>> softplus_normalize(torch.tensor([0.0, 0.0, -50.0]))
    tensor([5.0000e-01, 5.0000e-01, 1.3913e-22])
    """
    _require_class_axis(logits, dim)
    return torch.softmax(log_softplus(at_least_single(logits)), dim).to(logits.dtype)


def _require_class_axis(logits: Tensor, dim: int) -> None:
    if logits.dim() == 0 or not -logits.dim() <= dim < logits.dim() or logits.shape[dim] == 0:
        raise ShapeError(
            f"The logits have shape {tuple(logits.shape)}, but need a class axis {dim} with at least one class."
        )
    if not logits.is_floating_point():
        raise ShapeError(f"The logits are {logits.dtype}, but must be floating point: give the network's raw outputs.")


@dataclass(frozen=True)
class SoftplusHead(ClassificationHead):
    """The paper's Softplus normalisation; `beta` is that of softplus(f) = log(1 + exp(beta f)) / beta.

    Its factor 1 / beta cancels in the normalisation, so that beta only scales the logits.

    >>> SoftplusHead().probs(torch.tensor([[1e4, -1e4]]))
    tensor([[1., 0.]])
    """

    beta: float = 1.0
    name: ClassVar[str] = "softplus"

    def __post_init__(self) -> None:
        if not (self.beta > 0 and math.isfinite(self.beta)):
            raise OptionError(f"SoftplusHead got beta={self.beta}, but it must be a positive finite number.")

    def log_probs(self, outputs: Tensor) -> Tensor:
        """log p, see :func:`log_softplus_normalize`."""
        return torch.log_softmax(log_softplus(self._scaled(outputs)), 1)

    def probs(self, outputs: Tensor) -> Tensor:
        """p, see :func:`softplus_normalize`."""
        return torch.softmax(log_softplus(self._scaled(outputs)), 1)

    def _scaled(self, outputs: Tensor) -> Tensor:
        logits = with_class_axis(outputs)
        return logits if self.beta == 1 else logits * self.beta
