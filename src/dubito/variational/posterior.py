r"""The posterior q(w) = N(mu, sigma^2) of every weight, and how sigma is parameterised.

Two parameterisations, each with one free parameter per weight beside the mean:

- ``std``: sigma = softplus(rho).
- ``alpha``, the paper's (section 2.3.1): sigma^2 = alpha * mu^2, with log alpha learned. As mu -> 0 the weight would
  become a point mass with infinite KL, so \|mu\| is floored at 1e-8 (in float16 at its smallest normal number), below
  which the gradient with respect to mu is 0. A mean of 0, as zero-initialised biases have, cannot start with a standard
  deviation: the log alpha for it would make the weight as uncertain as a thousand at the first step that moves it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from dubito.errors import OptionError
from dubito.kernels.autograd import has_values, runs_eagerly, self_product, sum_of_squares, sums_of_squares
from dubito.kernels.noise import standard_normal_like
from dubito.softplus import at_least_single, inverse_softplus, log_softplus, softplus

__all__ = ["PAPER_STD", "Identity", "KeptPosterior", "Parameterization", "Posterior", "keep"]

PAPER_STD = math.exp(-5.0)
"""The paper's initial standard deviation: its appendix gives the logarithm of the variance as -10."""


LOG_ALPHA_OF_ZERO = 8.0
"""What a mean of 0 starts with at most; about where Molchanov et al. (2017) take a weight for noise."""


class Parameterization(str, Enum):
    """Which free parameter, beside the mean, a weight's standard deviation is made of."""

    STD = "std"
    ALPHA = "alpha"

    @property
    def parameter(self) -> str:
        """What the free parameter is called: it is part of the parameter's name in a layer."""
        return "rho" if self is Parameterization.STD else "log_alpha"

    def free(self, mean: Tensor, std: float | Tensor) -> Tensor:
        """The free parameter that gives standard deviation `std` at `mean`, or as much of it as `mean` can have.

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
        log_alpha = 2 * (target.log() - _floored_log(mean))
        return torch.where(mean.abs() > _floor(mean), log_alpha, log_alpha.clamp_max(LOG_ALPHA_OF_ZERO)).to(mean.dtype)


Identity = tuple[int, int]


def _floored_log(mean: Tensor) -> Tensor:
    return at_least_single(mean).abs().clamp_min(_floor(mean)).log()


def _floor(mean: Tensor) -> float:
    return max(1e-8, torch.finfo(mean.dtype).tiny)


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
    def identity(self) -> Identity:
        """The same for layers that share this posterior, as those of tied weights do."""
        return id(self.mean), id(self.free)

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

    @property
    def sum_variance(self) -> Tensor:
        """The sum of sigma^2 over the weights."""
        return self.variance.sum()

    @property
    def sum_log_std(self) -> Tensor:
        """The sum of log sigma over the weights."""
        return self.log_std.sum()

    @property
    def sum_squared_mean(self) -> Tensor:
        """The sum of mu^2 over the weights."""
        return sum_of_squares(self.mean)

    def draw(self, noise: Tensor | None = None, sign: int = 1, out: Tensor | None = None) -> Tensor:
        """Weights mu + sign * sigma * noise in the noise's dtype; without noise, with fresh one in at least float32.

        `out`, such as an earlier draw, is where they go.
        """
        if noise is None:
            noise = standard_normal_like(at_least_single(self.mean))
        return torch.addcmul(self.mean.to(noise.dtype), self._wide_std.to(noise.dtype), noise, value=sign, out=out)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Posterior:
        """The posterior of weights in another order or memory layout."""
        return Posterior(function(self.mean), function(self.free), self.parameterization)

    def log_prob(self, weights: Tensor) -> Tensor:
        """log q(w) of each weight, in nats."""
        log_std = self.log_std
        deviation = at_least_single(weights) - at_least_single(self.mean)
        # Where sigma underflows, as in a pruned network, the weight is its mean.
        standardized = deviation / log_std.exp().clamp_min(torch.finfo(log_std.dtype).tiny)
        return -standardized.square() / 2 - log_std - math.log(2 * math.pi) / 2

    def entropy(self) -> Tensor:
        """-E[log q(w)] of each weight, in nats."""
        return self.log_std + (math.log(2 * math.pi) + 1) / 2


class KeptPosterior(Posterior):
    """A posterior whose moments were computed once, together with those of others, for as long as its parameters stay.

    A training step needs sigma in the network and again in KL; there are as many as weights, so twice is too often.
    """

    _terms: tuple[Tensor, ...]  # sigma; then, where KL may be wanted, the sums of sigma^2, log sigma and mu^2

    @classmethod
    def of(cls, q: Posterior, *terms: Tensor) -> KeptPosterior:
        """The posterior with its moments."""
        kept = cls(q.mean, q.free, q.parameterization)
        object.__setattr__(kept, "_terms", terms)
        return kept

    @property
    def _wide_std(self) -> Tensor:
        return self._terms[0]

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Posterior:
        """The posterior of weights in another order or memory layout."""
        return KeptPosterior.of(super().mapped(function), function(self._terms[0]), *self._terms[1:])

    @property
    def sum_variance(self) -> Tensor:
        """The sum of sigma^2 over the weights."""
        return self._terms[1] if len(self._terms) > 1 else super().sum_variance

    @property
    def sum_log_std(self) -> Tensor:
        """The sum of log sigma over the weights."""
        return self._terms[2] if len(self._terms) > 1 else super().sum_log_std

    @property
    def sum_squared_mean(self) -> Tensor:
        """The sum of mu^2 over the weights."""
        return self._terms[3] if len(self._terms) > 1 else super().sum_squared_mean


SMALL = 1 << 16
"""Tensors of up to so many weights are computed together, as most of their time would go into calls; larger ones each
by itself, so that the memory of its gradient is free again before the next."""


def keep(posteriors: Sequence[Posterior]) -> list[Posterior]:
    """The same posteriors with their moments computed, those of small tensors in one go.

    Those of another parameterisation than ``std``, and those that a compiler or a transform of `torch.func` looks at,
    stay as they are.
    """
    kept = list(posteriors)
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number, q in enumerate(posteriors):
        if q.parameterization is Parameterization.STD and runs_eagerly(q.free):
            alone = number if q.free.numel() > SMALL else None
            alike[q.free.dtype, q.free.device, alone].append(number)
    for numbers in alike.values():
        free = [posteriors[number].free for number in numbers]
        if torch.is_grad_enabled():
            *stds, squares, logs = _StdTerms.apply(*free)
            # Now and not with KL: what is computed first is differentiated last, when memory is free again.
            means = sums_of_squares([posteriors[number].mean for number in numbers])
            all_terms: Iterable[tuple[Tensor, ...]] = zip(stds, squares.unbind(), logs.unbind(), means, strict=True)
        else:  # a prediction, which has no use for sums
            all_terms = ((softplus(rho),) for rho in free)
        for number, terms in zip(numbers, all_terms, strict=True):
            kept[number] = KeptPosterior.of(posteriors[number], *terms)
    return kept


class _StdTerms(torch.autograd.Function):
    """From tensors of rho: their sigma = softplus(rho), sums of sigma^2 and sums of log sigma; one gradient for all.

    log softplus(x) < x for every x, and equals it where softplus underflows. With s = sigma the gradient of the three
    is (g_1 + 2 g_2 s + g_3 / s) sigmoid(rho), whose last factor underflows together with s. Where all rho lie well
    between underflow and overflow, which one look at them tells, the plain formulas do, and take half as long.
    """

    @staticmethod
    def forward(ctx: Any, *rhos: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.sizes = [rho.numel() for rho in rhos]
        flat = torch.cat([rho.reshape(-1) for rho in rhos]) if len(rhos) > 1 else rhos[0].reshape(-1)
        ctx.moderate = _is_moderate(flat)
        if ctx.moderate:
            std = flat.exp().log1p_()
            log_std = std.log()
        else:
            std = softplus(flat)
            log_std = std.clamp_min(torch.finfo(std.dtype).tiny).log_()
            torch.minimum(log_std, flat, out=log_std)
        ctx.save_for_backward(*rhos, std)
        parts = std.split(ctx.sizes)
        return (
            *(part.view(rho.shape) for part, rho in zip(parts, rhos, strict=True)),
            torch.stack([self_product(part) for part in parts]),
            torch.stack([part.sum() for part in log_std.split(ctx.sizes)]),
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, ...]:
        *rhos, flat = ctx.saved_tensors
        *of_stds, of_squares, of_logs = gradients
        none = (None,) * len(rhos)
        parts = (
            *(rhos, flat.split(ctx.sizes), of_stds),
            *(none if sums is None else sums.unbind() for sums in (of_squares, of_logs)),
        )
        # Below this floor sigmoid(rho) and sigma are the same, and 1 / sigma must not overflow.
        floor = None if ctx.moderate else math.sqrt(torch.finfo(flat.dtype).tiny)
        return tuple(_StdTerms._gradient(floor, *part) for part in zip(*parts, strict=True))

    @staticmethod
    def _gradient(
        floor: float | None,
        rho: Tensor,
        std: Tensor,
        of_std: Tensor | None,
        of_square: Tensor | None,
        of_log: Tensor | None,
    ) -> Tensor:
        given = [gradient for gradient in (of_std, of_square, of_log) if gradient is not None]
        # A second derivative is wanted, or several gradients at once are: then nothing may be in place.
        again = torch.is_grad_enabled() or not has_values(*given)
        std = softplus(rho) if again else std.view(rho.shape)
        slope = torch.sigmoid(rho)
        total = torch.zeros_like(std) if of_log is None else of_log / (std if floor is None else std.clamp_min(floor))
        if of_square is not None:
            total = total + 2 * of_square * std if again else total.addcmul_(std, of_square, value=2)
        if of_std is not None:
            total = total + of_std if again else total.add_(of_std)
        if floor is not None:
            slope = slope.clamp_min(floor)
        return total * slope if again else total.mul_(slope)


def _is_moderate(rho: Tensor) -> bool:
    """Whether neither softplus nor its reciprocal comes near the limits of float32; not asked of other devices."""
    if rho.device.type != "cpu":
        return False
    smallest, largest = (end.item() for end in rho.aminmax())
    return smallest > -40 and largest < 80
