"""Regression with known noise: y ~ N(f, std^2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito.errors import OptionError, ShapeError
from dubito.heads.base import Head, Split
from dubito.heads.split import Regression, RunningMoments
from dubito.softplus import at_least_single


@dataclass(frozen=True)
class GaussianHead(Head):
    """log N(y | f, std^2), summed over the outputs of an example.

    Its prediction has a mean, an aleatoric variance (the noise, std^2) and an epistemic one (that of f over the draws).
    """

    std: float = 1.0
    name: ClassVar[str] = "gaussian"
    classifies: ClassVar[bool] = False
    unit: ClassVar[str] = "output"

    def __post_init__(self) -> None:
        if not (self.std > 0 and math.isfinite(self.std)):
            raise OptionError(f"GaussianHead got std={self.std}, but the noise must be a positive finite number.")

    def log_likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Log-density of each example's targets, in nats."""
        if outputs.shape != targets.shape:
            raise ShapeError(
                f"The targets have shape {tuple(targets.shape)}, but must have that of the outputs, "
                f"{tuple(outputs.shape)}."
            )
        density = F.mse_loss(at_least_single(outputs), at_least_single(targets), reduction="none") / (-2 * self.std**2)
        density = density - math.log(self.std) - math.log(2 * math.pi) / 2
        return density.flatten(1).sum(1) if density.dim() > 1 else density

    def split(self, covariance: bool = False, sampling: str = "independent") -> Split:
        """Mean and variance of the outputs over the draws."""
        return GaussianSplit(self.std, covariance, sampling)


class GaussianSplit:
    """The moments of drawn outputs beside the known noise.

    >>> split = GaussianSplit(std=0.5)
    >>> split.update(torch.tensor([[[1.0]], [[3.0]]]))    # two draws of one output
    >>> found = split.compute()
    >>> found.mean, found.aleatoric, found.epistemic
    (tensor([[2.]]), tensor([[0.2500]]), tensor([[1.]]))
    """

    def __init__(self, std: float, covariance: bool = False, sampling: str = "independent") -> None:
        self.std = std
        self._outputs = RunningMoments(covariance, sampling)

    def update(self, outputs: Tensor) -> None:
        """Take in a block of draws (T, N, ...)."""
        self._outputs.update(at_least_single(outputs))

    def compute(self) -> Regression:
        """The prediction from all draws so far."""
        mean = self._outputs.mean
        return Regression(
            mean=mean,
            aleatoric=torch.full_like(mean, self.std**2),
            epistemic=self._outputs.variance,
            samples=self._outputs.samples,
            epistemic_covariance=self._outputs.matrix if self._outputs.covariance else None,
            epistemic_unbiased=self._outputs.unbiased_variance,
        )
