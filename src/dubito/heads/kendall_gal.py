"""Kendall & Gal's head (2017): the network gives mean and variance of every logit, the comparator of section 3.1.

Of 2K outputs the first K are the means and softplus of the others the variances. The likelihood integrates the softmax
over the Gaussian logits, p = E softmax(mean + sqrt(variance) * eps). Training draws eps afresh for every example;
a prediction uses one fixed set of points for all images and all draws. So it is deterministic, and a point estimate has
no mutual information.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from dubito.errors import OptionError, ShapeError
from dubito.heads.base import ClassificationHead, Split, with_class_axis
from dubito.heads.points import gaussian_points
from dubito.heads.split import Decomposition, Prediction, RunningMean, RunningMoments
from dubito.softplus import softplus

POINTS = 256
"""Points of a prediction's integral over the logits' noise."""


@dataclass(frozen=True)
class KendallGalHead(ClassificationHead):
    """Gaussian logits with a learned variance; `samples` is the number of draws of their noise in training.

    The two uncertainties of a prediction are variances of logits, which grow with the size of the outputs: to tell
    wrong predictions from right ones take an entropy, or another head (results/reproduction/cpu/table2.md).
    """

    samples: int = 16
    name: ClassVar[str] = "kendall_gal"
    unit: ClassVar[str] = "logit"

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise OptionError(f"KendallGalHead got samples={self.samples}, but needs at least 1 draw of the logits.")

    def num_outputs(self, num_classes: int) -> int:
        """Twice the number of classes."""
        return 2 * num_classes

    def logit_moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the logits, each (N, K, ...)."""
        if outputs.dim() < 2 or outputs.shape[1] % 2 or outputs.shape[1] == 2:
            raise ShapeError(
                f"The outputs have shape {tuple(outputs.shape)}, but the kendall_gal head needs 2K channels: "
                "K means and K variances, of at least 2 classes."
            )
        mean, free = with_class_axis(outputs).chunk(2, dim=1)
        return mean, softplus(free)

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Log of the mean over drawn logits' softmax, with fresh noise for every example: for training."""
        mean, variance = self.logit_moments(outputs)
        noise = torch.randn((self.samples, *mean.shape), dtype=mean.dtype, device=mean.device)
        # variance = softplus(...) may underflow to 0, where the root has no gradient
        logits = torch.addcmul(mean, variance.clamp_min(torch.finfo(mean.dtype).tiny).sqrt(), noise)
        return torch.logsumexp(torch.log_softmax(logits, 2), 0) - math.log(self.samples)

    def probs(self, outputs: Tensor) -> Tensor:
        """The mean of the softmax over a fixed set of Gaussian logits."""
        mean, variance = self.logit_moments(outputs)
        spread = variance.clamp_min(torch.finfo(mean.dtype).tiny).sqrt()
        points = gaussian_points(POINTS, mean.shape[1]).to(mean)
        total = torch.zeros_like(mean)
        for point in points.view(POINTS, 1, -1, *(1,) * (mean.dim() - 2)):
            total = total + torch.softmax(torch.addcmul(mean, spread, point), 1)
        return total / POINTS

    def split(self, covariance: bool = False, sampling: str = "independent") -> Split:
        """The split of logits."""
        return LogitSplit(self, covariance, sampling)


class LogitSplit:
    """Kendall & Gal's split, on the logits: aleatoric = mean_t variance_t, epistemic = var_t mean_t.

    Probabilities and entropies still come from the drawn probabilities.
    """

    def __init__(self, head: KendallGalHead, covariance: bool = False, sampling: str = "independent") -> None:
        self._head = head
        self._probs = Decomposition(probs_of=head.probs)
        self._means = RunningMoments(covariance, sampling)
        self._variance = RunningMean()

    def update(self, outputs: Tensor) -> None:
        """Take in a block of draws (T, N, 2K, ...)."""
        moments = self._head.logit_moments(outputs.flatten(0, 1))
        means, variances = (moment.unflatten(0, outputs.shape[:2]) for moment in moments)
        self._probs.update(outputs)
        self._means.update(means)
        self._variance.update(variances)

    def compute(self) -> Prediction:
        """The split of all draws so far."""
        variance, means = self._variance.value, self._means
        return replace(
            self._probs.compute(),
            aleatoric_per_class=variance,
            epistemic_per_class=means.variance,
            epistemic_unbiased_per_class=means.unbiased_variance,
            aleatoric_covariance=torch.diag_embed(variance) if means.covariance else None,
            epistemic_covariance=means.matrix if means.covariance else None,
        )
