"""Priors p(w) over the weights of one parameter, and KL[q || p] in nats.

A prior is given as a number (the standard deviation of a zero-mean Gaussian), a name or an object of this module; a
posterior *binds* it, which copies it and fits it to its own weights. What a bound prior needs is kept in buffers, so it
travels with the state dict, `.to()` and deepcopy.

Every prior here is a product over the weights, so KL[q || p] = -H[q] - sum_i E[log p(w_i)] needs of a posterior only
its entropy and the distribution of each weight.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor, nn

from dubito.errors import OptionError, ShapeError, unknown
from dubito.softplus import at_least_single, softplus


class Distribution(Protocol):
    """What a prior asks of a posterior."""

    mean: nn.Parameter

    @property
    def variance(self) -> Tensor:
        """Of each weight."""

    @property
    def log_std(self) -> Tensor:
        """Of each weight."""

    def entropy(self) -> Tensor:
        """Of the whole tensor."""

    def draw(self) -> Tensor:
        """Weights."""


class Prior(nn.Module, ABC):
    """p(w) for the weights of one parameter."""

    def bind(self, weights: Tensor, fan_in: int) -> Prior:
        """A copy of this prior fitted to these weights."""
        return copy.deepcopy(self)

    @abstractmethod
    def log_prob(self, weights: Tensor) -> Tensor:
        """log p(w), summed over the weights."""

    def expected_log_prob(self, q: Distribution) -> Tensor:
        """E[log p(w)] under q, summed over the weights; by default estimated at one draw, as in Blundell et al."""
        return self.log_prob(q.draw())

    def divergence(self, q: Distribution) -> Tensor:
        """KL[q || p] in nats."""
        return -q.entropy() - self.expected_log_prob(q)

    def gaussian(self, q: Distribution) -> tuple[Tensor, Tensor]:
        """Mean and variance of the Gaussian that this prior is for q, numbers or as many as weights."""
        raise OptionError(
            f"The prior is a {type(self).__name__}, but the natural gradient needs a Gaussian one: standard, fan_in, "
            "learned, empirical or a standard deviation."
        )


class GaussianPrior(Prior):
    r"""N(mean, std^2), with numbers or tensors that broadcast to the weights.

    KL[q || p] = sum log(std / sigma) + (sigma^2 + (mu - mean)^2) / (2 std^2) - 1/2.

    >>> GaussianPrior(std=0.1)
    GaussianPrior(mean=0, std=0.1)
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float | Tensor = 0.0, std: float | Tensor = 1.0) -> None:
        super().__init__()
        for name, value in (("mean", mean), ("std", std)):
            wide = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
            self.register_buffer(name, wide.detach().clone())

    def extra_repr(self) -> str:
        """The values, or the shape of what is a tensor."""
        return f"mean={_describe(self.mean)}, std={_describe(self.std)}"

    def bind(self, weights: Tensor, fan_in: int) -> GaussianPrior:
        """The same values in the weights' dtype, on their device."""
        values = {name: value.to(weights.device, weights.dtype) for name, value in self.named_buffers()}
        for name, value in values.items():
            _require_prior_fits(value, weights, name)
        return GaussianPrior(**values)

    def log_prob(self, weights: Tensor) -> Tensor:
        """Sum of log N(w | mean, std^2)."""
        mean, std = at_least_single(self.mean), at_least_single(self.std)
        return self._sum(((at_least_single(weights) - mean) / std).square())

    def expected_log_prob(self, q: Distribution) -> Tensor:
        """In closed form."""
        mean, std = at_least_single(self.mean), at_least_single(self.std)
        return self._sum((q.variance + (at_least_single(q.mean) - mean).square()) / std.square())

    def gaussian(self, q: Distribution) -> tuple[Tensor, Tensor]:
        """As it is."""
        return self.mean, self.std.square()

    def _sum(self, squares: Tensor) -> Tensor:
        log_std = at_least_single(self.std).log().expand_as(squares).sum()
        return -squares.sum() / 2 - log_std - squares.numel() * math.log(2 * math.pi) / 2


def _require_prior_fits(tensor: Tensor, weights: Tensor, what: str) -> None:
    try:
        fits = torch.broadcast_shapes(tensor.shape, weights.shape) == weights.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"The prior's {what} has shape {tuple(tensor.shape)}, but must be a number or broadcast to the weights' "
            f"shape {tuple(weights.shape)}."
        )
    if tensor.is_meta:
        return
    if not bool(tensor.isfinite().all()) or (what == "std" and not bool((tensor > 0).all())):
        expected = "positive and finite" if what == "std" else "finite"
        raise OptionError(f"The prior's {what} is {_describe(tensor)}, but must be {expected}.")


def _describe(value: Tensor) -> str:
    return f"tensor of shape {tuple(value.shape)}" if value.numel() > 1 or value.is_meta else f"{value.item():.4g}"


class _FittedPrior(Prior):
    """A prior that becomes a Gaussian when it is bound."""

    @abstractmethod
    def bind(self, weights: Tensor, fan_in: int) -> GaussianPrior:
        """The Gaussian for these weights."""

    def log_prob(self, weights: Tensor) -> Tensor:
        """Only a bound prior has a density."""
        raise OptionError(f"{type(self).__name__} must be bound to weights before it has a density.")


class FanInPrior(_FittedPrior):
    """A Gaussian scaled to the layer: N(0, gain^2 / fan_in) for weights, N(0, gain^2) for biases (Neal 1996).

    Under it the outputs of a layer keep the scale of its inputs, however wide it is.
    """

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain

    def bind(self, weights: Tensor, fan_in: int) -> GaussianPrior:
        """N(0, gain^2 / fan_in)."""
        return GaussianPrior(std=self.gain / math.sqrt(fan_in)).bind(weights, fan_in)


class EmpiricalPrior(_FittedPrior):
    """A Gaussian centred on the weights as they are when it is bound, such as pretrained ones.

    `std` is a number, or None for the root mean square of the weights.
    """

    def __init__(self, std: float | None = None) -> None:
        super().__init__()
        self.std = std

    def bind(self, weights: Tensor, fan_in: int) -> GaussianPrior:
        """N(weights, std^2)."""
        std = _root_mean_square(weights) if self.std is None else self.std
        return GaussianPrior(weights.detach(), std).bind(weights, fan_in)


def _root_mean_square(weights: Tensor) -> Tensor:
    # A bias that starts at exactly zero has no scale of its own: give it one, or the prior would be a point.
    rms = at_least_single(weights.detach()).square().mean().sqrt()
    return torch.where(rms > 1e-6, rms, torch.ones_like(rms))


class LearnedPrior(Prior):
    """N(0, s^2) with one scale for the parameter at its best value, in closed form.

    KL is smallest at s^2 = mean(mu^2 + sigma^2) over the n weights, where E[log p] = -n (log(2 pi s^2) + 1) / 2. The
    gradient goes through s; by the envelope theorem it equals that at fixed s.
    """

    @staticmethod
    def scale(q: Distribution) -> Tensor:
        """The best s^2."""
        return (q.variance + at_least_single(q.mean).square()).mean()

    def log_prob(self, weights: Tensor) -> Tensor:
        """The scale depends on the posterior, which drawn weights do not tell."""
        raise OptionError(
            "A learned prior has its scale from the posterior, so its KL is only available in closed form: "
            "leave out samples=."
        )

    def expected_log_prob(self, q: Distribution) -> Tensor:
        """At the best scale."""
        return -q.mean.numel() * (self.scale(q).log() + math.log(2 * math.pi) + 1) / 2

    def gaussian(self, q: Distribution) -> tuple[Tensor, Tensor]:
        """At the best scale."""
        return q.mean.new_zeros(()), self.scale(q)


class ScaleMixturePrior(Prior):
    """Blundell et al.'s pi N(0, std_1^2) + (1 - pi) N(0, std_2^2); its KL is a Monte Carlo estimate."""

    pi: Tensor
    std_1: Tensor
    std_2: Tensor

    def __init__(self, pi: float = 0.5, std_1: float = 1.0, std_2: float = math.exp(-6)) -> None:
        super().__init__()
        if not 0 < pi < 1:
            raise OptionError(f"The scale mixture got pi={pi}, but its weight must lie between 0 and 1.")
        if not (std_1 > 0 and std_2 > 0):
            raise OptionError(f"The scale mixture got std_1={std_1} and std_2={std_2}, but both must be positive.")
        for name, value in (("pi", pi), ("std_1", std_1), ("std_2", std_2)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    def extra_repr(self) -> str:
        """The three numbers."""
        return ", ".join(f"{name}={float(value):.4g}" for name, value in self.named_buffers())

    def bind(self, weights: Tensor, fan_in: int) -> Prior:
        """A copy on the device and in the dtype of the weights."""
        return copy.deepcopy(self).to(device=weights.device, dtype=weights.dtype)

    def log_prob(self, weights: Tensor) -> Tensor:
        """Sum of the logarithm of the mixture's density."""
        weights = at_least_single(weights)
        pi, std_1, std_2 = (at_least_single(value) for value in (self.pi, self.std_1, self.std_2))
        first = pi.log() - std_1.log() - (weights / std_1).square() / 2
        second = torch.log1p(-pi) - std_2.log() - (weights / std_2).square() / 2
        return (torch.logaddexp(first, second) - math.log(2 * math.pi) / 2).sum()


class LogUniformPrior(Prior):
    r"""p(w) proportional to 1/\|w\| (Kingma et al. 2015), which makes KL a function of alpha = sigma^2 / mu^2 alone.

    KL is Molchanov et al.'s (2017) approximation, 0.63576 (1 - sigmoid(1.8732 + 1.48695 log alpha)) +
    log(1 + 1/alpha) / 2. The prior is improper; its constant is chosen so that KL -> 0 as alpha -> infinity.
    """

    # E log|z| - E log q at mu = 0: the constant for which KL -> 0 as alpha -> infinity
    _LOG_CONSTANT = (math.log(2 * math.pi) + 1) / 2 + (0.5772156649015329 + math.log(2)) / 2

    def log_prob(self, weights: Tensor) -> Tensor:
        r"""Sum of -log \|w\| up to the constant above."""
        weights = at_least_single(weights)
        return -(weights.abs().clamp_min(torch.finfo(weights.dtype).tiny).log() + self._LOG_CONSTANT).sum()

    def divergence(self, q: Distribution) -> Tensor:
        """Molchanov et al.'s approximation for each weight, and what their dependence adds."""
        floor = max(1e-8, torch.finfo(q.mean.dtype).tiny)
        log_std = q.log_std
        log_alpha = 2 * (log_std - at_least_single(q.mean).abs().clamp_min(floor).log())
        alone = (0.63576 * torch.sigmoid(-1.87320 - 1.48695 * log_alpha) + softplus(-log_alpha) / 2).sum()
        entropies = log_std.sum() + q.mean.numel() * (math.log(2 * math.pi) + 1) / 2
        return alone + (entropies - q.entropy())


PRIORS: dict[str, type[Prior]] = {
    "standard": GaussianPrior,
    "fan_in": FanInPrior,
    "learned": LearnedPrior,
    "mixture": ScaleMixturePrior,
    "log_uniform": LogUniformPrior,
    "empirical": EmpiricalPrior,
}
"""Priors that can be asked for by name."""


def make_prior(prior: float | str | Prior) -> Prior:
    """The prior that a number (standard deviation), a name or an object stands for.

    >>> make_prior(0.5)
    GaussianPrior(mean=0, std=0.5)
    >>> make_prior("uniform")
    Traceback (most recent call last):
    dubito.errors.OptionError: prior is 'uniform', but must be one of 'standard', 'fan_in', 'learned', ...
    """
    if isinstance(prior, Prior):
        return prior
    if isinstance(prior, str):
        if prior not in PRIORS:
            raise OptionError(unknown("prior", prior, PRIORS))
        return PRIORS[prior]()
    if isinstance(prior, bool) or not isinstance(prior, (int, float)):
        raise OptionError(f"prior is {prior!r}, but must be a standard deviation, a name or a Prior.")
    if not (prior > 0 and math.isfinite(prior)):
        raise OptionError(f"prior is {prior!r}, but a standard deviation must be positive and finite.")
    return GaussianPrior(std=float(prior))
