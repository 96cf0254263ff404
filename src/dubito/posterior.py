r"""The posterior q(w) = N(mu, sigma^2) of every weight, and how sigma is parameterised.

Two parameterisations, each with one free parameter per weight beside the mean:

- ``std``: sigma = softplus(rho).
- ``alpha``, the paper's (section 2.3.1): sigma^2 = alpha * mu^2, with log alpha learned. As mu -> 0 the weight would
  become a point mass with infinite KL, so \|mu\| is floored at 1e-8 (in float16 at its smallest normal number), below
  which the gradient with respect to mu is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from dubito.errors import OptionError
from dubito.softplus import at_least_single, inverse_softplus, log_softplus, softplus

__all__ = ["PAPER_STD", "Parameterization", "Posterior"]

PAPER_STD = math.exp(-5.0)
"""The paper's initial standard deviation: its appendix gives the logarithm of the variance as -10."""


class Parameterization(str, Enum):
    """Which free parameter, beside the mean, a weight's standard deviation is made of."""

    STD = "std"
    ALPHA = "alpha"

    @property
    def parameter(self) -> str:
        """What the free parameter is called: it is part of the parameter's name in a layer."""
        return "rho" if self is Parameterization.STD else "log_alpha"

    def free(self, mean: Tensor, std: float | Tensor) -> Tensor:
        """The free parameter that gives standard deviation `std` at `mean`.

        >>> Parameterization.ALPHA.free(torch.tensor([0.5]), 0.5)
        tensor([0.])
        """
        wide = at_least_single(mean)
        target = torch.as_tensor(std, dtype=wide.dtype, device=wide.device).expand_as(wide)
        # A meta tensor has no values to look at.
        if not target.is_meta and not bool(((target > 0) & target.isfinite()).all()):
            raise OptionError(f"The standard deviation is {std!r}, but must be a positive finite number.")
        if self is Parameterization.STD:
            return inverse_softplus(target).to(mean.dtype)
        return (2 * (target.log() - _floored_log(mean))).to(mean.dtype)


def _floored_log(mean: Tensor) -> Tensor:
    floor = max(1e-8, torch.finfo(mean.dtype).tiny)
    return at_least_single(mean).abs().clamp_min(floor).log()


@dataclass(frozen=True)
class Posterior:
    """N(mean, std^2) for a tensor of weights, made of a mean and a free parameter.

    Half-precision parameters give half-precision `std`, but `variance` and `log_std` in float32: neither squares nor
    sums of logarithms survive in float16.

    >>> q = Posterior(torch.tensor([2.0]), torch.tensor([0.0]), Parameterization.ALPHA)
    >>> q.std, q.variance
    (tensor([2.]), tensor([4.]))
    """

    mean: Tensor
    free: Tensor
    parameterization: Parameterization

    @property
    def log_std(self) -> Tensor:
        """log sigma, computed without passing through sigma."""
        if self.parameterization is Parameterization.STD:
            return log_softplus(at_least_single(self.free))
        return at_least_single(self.free) / 2 + _floored_log(self.mean)

    @property
    def log_alpha(self) -> Tensor:
        """Logarithm of alpha = sigma^2 / mu^2, in either parameterisation."""
        return 2 * (self.log_std - _floored_log(self.mean))

    @property
    def _wide_std(self) -> Tensor:
        if self.parameterization is Parameterization.STD:
            return softplus(at_least_single(self.free))
        return self.log_std.exp()

    @property
    def std(self) -> Tensor:
        """sigma, in the dtype of the mean."""
        return self._wide_std.to(self.mean.dtype)

    @property
    def variance(self) -> Tensor:
        """sigma^2."""
        return self._wide_std.square()

    def draw(self, noise: Tensor | None = None) -> Tensor:
        """Weights mu + sigma * noise in the noise's dtype; without noise, with fresh one in at least float32."""
        if noise is None:
            noise = torch.randn_like(at_least_single(self.mean))
        return torch.addcmul(self.mean.to(noise.dtype), self._wide_std.to(noise.dtype), noise)

    def log_prob(self, weights: Tensor) -> Tensor:
        """log q(w) of each weight, in nats."""
        log_std = self.log_std
        standardized = (at_least_single(weights) - at_least_single(self.mean)) * torch.exp(-log_std)
        return -standardized.square() / 2 - log_std - math.log(2 * math.pi) / 2

    def entropy(self) -> Tensor:
        """-E[log q(w)] of each weight, in nats."""
        return self.log_std + (math.log(2 * math.pi) + 1) / 2
