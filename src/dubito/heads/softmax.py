"""The usual head: p_c = exp(f_c) / sum_k exp(f_k), whose uncertainty Kwon et al. split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dubito.heads.base import ClassificationHead, with_class_axis


@dataclass(frozen=True)
class SoftmaxHead(ClassificationHead):
    """The exponential normalisation.

    >>> SoftmaxHead().probs(torch.tensor([[0.0, 0.0]]))
    tensor([[0.5000, 0.5000]])
    """

    name: ClassVar[str] = "softmax"

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Log p = f - logsumexp(f)."""
        return torch.log_softmax(with_class_axis(outputs), 1)

    def probs(self, outputs: Tensor) -> Tensor:
        """P = exp(f) / sum exp(f)."""
        return torch.softmax(with_class_axis(outputs), 1)
