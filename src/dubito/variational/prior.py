"""Priors p(w) over the weights of a layer, and KL[q || p] of each in nats.

A prior is given to a layer as a number (the standard deviation of a zero-mean Gaussian), a name or an object of this
module; the layer *binds* it, which copies it and fits it to its own weights. What a bound prior needs is kept in
buffers, so it travels with the state dict, `.to()` and deepcopy.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

import torch
from torch import Tensor, nn

from dubito.errors import OptionError, ShapeError, choose
from dubito.kernels.autograd import has_values, sum_of_squares
from dubito.softplus import at_least_single, softplus
from dubito.variational.posterior import Posterior

__all__ = [
    "EmpiricalPrior",
    "FanInPrior",
    "GaussianPrior",
    "LearnedPrior",
    "LogUniformPrior",
    "Prior",
    "PriorName",
    "ScaleMixturePrior",
    "make_prior",
]


class Prior(nn.Module, ABC):
    """p(w) for all Bayesian weights of one layer."""

    def bind(self, means: Mapping[str, Tensor], fan_in: int) -> Prior:
        """A copy of this prior fitted to a layer with these weights."""
        return copy.deepcopy(self)

    @classmethod
    @abstractmethod
    def log_prob(cls, priors: Sequence[Prior], layers: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """The sum of log p(w) over the weights ``{"weight": ..., "bias": ...}`` of several layers."""

    @classmethod
    def divergence(cls, priors: Sequence[Prior], layers: Sequence[Mapping[str, Posterior]]) -> Tensor:
        """The sum of KL[q || p] over the weights of several layers, whose priors are all of this kind.

        This default is for priors without a closed form: the entropy of q is exact, the expectation of log p is
        estimated at one draw of the weights, as in Blundell et al.
        """
        posteriors = [q for layer in layers for q in layer.values()]
        # the sum of log sigma + (log 2 pi + 1) / 2
        entropy = torch.stack([q.sum_log_std for q in posteriors]).sum()
        entropy = entropy + sum(q.mean.numel() for q in posteriors) * (math.log(2 * math.pi) + 1) / 2
        return -entropy - cls.log_prob(priors, [{name: q.draw() for name, q in layer.items()} for layer in layers])


class GaussianPrior(Prior):
    r"""N(mean, std^2), with numbers or tensors that broadcast to the weights.

    KL[q || p] = sum log(std / sigma) + (sigma^2 + (mu - mean)^2) / (2 std^2) - 1/2.

    A mapping ``{"weight": ..., "bias": ...}`` gives the two tensors of a layer values of their own.

    >>> GaussianPrior(std=0.1)
    GaussianPrior(mean=0.0, std=0.1)
    """

    def __init__(
        self,
        mean: float | Tensor | Mapping[str, float | Tensor] = 0.0,
        std: float | Tensor | Mapping[str, float | Tensor] = 1.0,
    ) -> None:
        super().__init__()
        self._given: dict[str, float | Tensor | Mapping[str, float | Tensor]] = {"mean": mean, "std": std}

    def extra_repr(self) -> str:
        """The values, or the shape of what is a tensor."""
        return ", ".join(f"{what}={_describe(value)}" for what, value in (self._given or self._buffers).items())

    def bind(self, means: Mapping[str, Tensor], fan_in: int) -> GaussianPrior:
        """Lay mean and standard deviation down as buffers ``weight_mean``, ``weight_std``, ``bias_mean`` ..."""
        bound = type(self)()
        bound._given = {}  # from here on the buffers hold the truth
        for name, weights in means.items():
            for what, given in (self._given or self._bound_values()).items():
                value = _of_tensor(given, name)
                tensor = torch.as_tensor(value, dtype=weights.dtype, device=weights.device).detach().clone()
                _require_prior_fits(tensor, weights, what, name)
                bound.register_buffer(f"{name}_{what}", tensor)
        return bound

    def _bound_values(self) -> dict[str, Mapping[str, Tensor]]:
        """The values of a prior that already belongs to a layer, for another one."""
        names = dict.fromkeys(name.rsplit("_", 1)[0] for name, _ in self.named_buffers())
        return {what: {name: self.get_buffer(f"{name}_{what}") for name in names} for what in ("mean", "std")}

    @staticmethod
    def _moments_of(priors: Sequence[Prior], layers: Sequence[Mapping[str, object]]) -> list[tuple[Tensor, Tensor]]:
        """Mean and standard deviation for each tensor of weights."""
        return [
            (at_least_single(prior.get_buffer(f"{name}_mean")), at_least_single(prior.get_buffer(f"{name}_std")))
            for prior, layer in zip(priors, layers, strict=True)
            for name in layer
        ]

    @classmethod
    def log_prob(cls, priors: Sequence[Prior], layers: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """Sum of log N(w | mean, std^2)."""
        weights = [drawn for layer in layers for drawn in layer.values()]
        pairs = zip(weights, cls._moments_of(priors, layers), strict=True)
        standardized = torch.cat([((drawn - mean) / std).reshape(-1) for drawn, (mean, std) in pairs])
        log_std = cls._log_std(weights, [std for _, std in cls._moments_of(priors, layers)])
        return -(standardized.square() + math.log(2 * math.pi)).sum() / 2 - log_std

    @classmethod
    def divergence(cls, priors: Sequence[Prior], layers: Sequence[Mapping[str, Posterior]]) -> Tensor:
        """Closed form."""
        posteriors = [q for layer in layers for q in layer.values()]
        parameters = cls._moments_of(priors, layers)
        scales, second_moments = [], []
        for q, (mean, std) in zip(posteriors, parameters, strict=True):
            if std.numel() == 1:
                around = q.sum_squared_mean if _is_zero(mean) else sum_of_squares(at_least_single(q.mean) - mean)
                second_moments += [q.sum_variance, around]
                scales += [std.reshape(())] * 2
            else:
                deviation = at_least_single(q.mean) - mean
                second_moments.append(((q.variance + deviation.square()) / std.square()).sum())
                scales.append(std.new_ones(()))
        scaled = (torch.stack(second_moments) / torch.stack(scales).square()).sum()
        log_ratio = cls._log_std([q.mean for q in posteriors], [std for _, std in parameters])
        log_ratio = log_ratio - torch.stack([q.sum_log_std for q in posteriors]).sum()
        return log_ratio + (scaled - sum(q.mean.numel() for q in posteriors)) / 2

    @staticmethod
    def _log_std(weights: Sequence[Tensor], stds: Sequence[Tensor]) -> Tensor:
        """The sum over all weights of the logarithm of the prior's standard deviation."""
        counts = torch.cat(
            [std.new_full((std.numel(),), w.numel() / std.numel()) for w, std in zip(weights, stds, strict=True)]
        )
        return (torch.cat([std.reshape(-1) for std in stds]).log() * counts).sum()


def _is_zero(mean: Tensor) -> bool:
    """Whether this is the number 0, as far as it can be told without waiting for another device."""
    return mean.device.type == "cpu" and has_values(mean) and mean.numel() == 1 and bool(mean == 0)


def _of_tensor(given: float | Tensor | Mapping[str, float | Tensor], name: str) -> float | Tensor:
    if not isinstance(given, Mapping):
        return given
    if name not in given:
        raise OptionError(f"The prior has values for {', '.join(given)}, but the layer also needs one for {name}.")
    return given[name]


def _require_prior_fits(tensor: Tensor, weights: Tensor, what: str, name: str) -> None:
    try:
        fits = torch.broadcast_shapes(tensor.shape, weights.shape) == weights.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"The prior's {what} has shape {tuple(tensor.shape)}, but must be a number or broadcast to the {name}'s "
            f"shape {tuple(weights.shape)}."
        )
    if tensor.is_meta:
        return
    if not bool(tensor.isfinite().all()) or (what == "std" and not bool((tensor > 0).all())):
        expected = "positive and finite" if what == "std" else "finite"
        raise OptionError(f"The prior's {what} for the {name} is {_describe(tensor)}, but must be {expected}.")


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"tensor of shape {tuple(value.shape)}" if value.numel() > 1 or value.is_meta else f"{value.item():.4g}"
    return str(value)


class FanInPrior(Prior):
    """A Gaussian scaled to the layer: N(0, gain^2 / fan_in) for weights, N(0, gain^2) for biases (Neal 1996).

    Under it the outputs of a layer keep the scale of its inputs, however wide it is.
    """

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain

    def bind(self, means: Mapping[str, Tensor], fan_in: int) -> GaussianPrior:
        """A :class:`GaussianPrior` with the layer's scale."""
        std = {"weight": self.gain / math.sqrt(fan_in), "bias": self.gain}
        return GaussianPrior(std=std).bind(means, fan_in)

    @classmethod
    def log_prob(cls, priors: Sequence[Prior], layers: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """Only a bound prior has a density."""
        raise OptionError("A FanInPrior must be bound to a layer before it has a density.")


class EmpiricalPrior(Prior):
    """A Gaussian centred on the weights that the layer has when it is made, such as pretrained ones.

    `std` is a number, or None for the root mean square of each tensor of weights.
    """

    def __init__(self, std: float | None = None) -> None:
        super().__init__()
        self.std = std

    def bind(self, means: Mapping[str, Tensor], fan_in: int) -> GaussianPrior:
        """A :class:`GaussianPrior` with the weights as its mean."""
        mean = {name: weights.detach().clone() for name, weights in means.items()}
        std: dict[str, float | Tensor] = {
            name: self.std if self.std is not None else _root_mean_square(weights) for name, weights in mean.items()
        }
        return GaussianPrior(mean=mean, std=std).bind(means, fan_in)

    @classmethod
    def log_prob(cls, priors: Sequence[Prior], layers: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """Only a bound prior has a density."""
        raise OptionError("An EmpiricalPrior must be bound to a layer before it has a density.")


def _root_mean_square(weights: Tensor) -> Tensor:
    # A bias that starts at exactly zero has no scale of its own: give it one, or the prior would be a point.
    rms = at_least_single(weights).square().mean().sqrt()
    return torch.where(rms > 1e-6, rms, torch.ones_like(rms)).to(weights.dtype)


class LearnedPrior(Prior):
    """N(0, s^2) with one scale per layer at its best value, in closed form.

    KL is smallest at s^2 = mean(mu^2 + sigma^2) over the n weights of the layer, where it is n log s - sum log sigma.
    The gradient goes through s; by the envelope theorem it equals that at fixed s.
    """

    @staticmethod
    def scale(layers: Sequence[Mapping[str, Posterior]]) -> Tensor:
        """The best s^2 of each of several layers."""
        sums = [[s for q in layer.values() for s in (q.sum_variance, q.sum_squared_mean)] for layer in layers]
        counts = [sum(q.mean.numel() for q in layer.values()) for layer in layers]
        total = torch.stack([torch.stack(parts).sum() for parts in sums])
        return total / torch.tensor(counts, dtype=total.dtype, device=total.device)

    @classmethod
    def log_prob(cls, priors: Sequence[Prior], layers: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """The scale depends on the posterior, which drawn weights do not tell."""
        raise OptionError(
            "A learned prior has its scale from the posterior, so its KL is only available in closed form: "
            "leave out samples=."
        )

    @classmethod
    def divergence(cls, priors: Sequence[Prior], layers: Sequence[Mapping[str, Posterior]]) -> Tensor:
        """Closed form at the best scale."""
        best = cls.scale(layers)
        counts = [sum(q.mean.numel() for q in layer.values()) for layer in layers]
        log_stds = torch.stack([q.sum_log_std for layer in layers for q in layer.values()])
        return (torch.tensor(counts, dtype=best.dtype, device=best.device) * best.log()).sum() / 2 - log_stds.sum()


class ScaleMixturePrior(Prior):
    """Blundell et al.'s pi N(0, std_1^2) + (1 - pi) N(0, std_2^2); its KL is a Monte Carlo estimate."""

    def __init__(self, pi: float = 0.5, std_1: float = 1.0, std_2: float = math.exp(-6)) -> None:
        super().__init__()
        if not 0 < pi < 1:
            raise OptionError(f"The scale mixture got pi={pi}, but its weight must lie between 0 and 1.")
        if not (std_1 > 0 and std_2 > 0):
            raise OptionError(f"The scale mixture got std_1={std_1} and std_2={std_2}, but both must be positive.")
        self.register_buffer("pi", torch.tensor(pi, dtype=torch.float64))
        self.register_buffer("std_1", torch.tensor(std_1, dtype=torch.float64))
        self.register_buffer("std_2", torch.tensor(std_2, dtype=torch.float64))

    def extra_repr(self) -> str:
        """The three numbers."""
        return ", ".join(f"{name}={float(value):.4g}" for name, value in self.named_buffers())

    def bind(self, means: Mapping[str, Tensor], fan_in: int) -> Prior:
        """A copy on the device and in the dtype of the weights."""
        weights = next(iter(means.values()))
        return copy.deepcopy(self).to(dtype=weights.dtype).to(device=weights.device)

    @classmethod
    def log_prob(cls, priors: Sequence[Prior], layers: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """Sum of the logarithm of the mixture's density."""
        weights = _end_to_end(drawn for layer in layers for drawn in layer.values())
        sizes = torch.tensor(
            [sum(drawn.numel() for drawn in layer.values()) for layer in layers], device=weights.device
        )
        pi, std_1, std_2 = (
            at_least_single(torch.stack([prior.get_buffer(name) for prior in priors])).repeat_interleave(sizes)
            for name in ("pi", "std_1", "std_2")
        )
        first = pi.log() - std_1.log() - (weights / std_1).square() / 2
        second = torch.log1p(-pi) - std_2.log() - (weights / std_2).square() / 2
        return (torch.logaddexp(first, second) - math.log(2 * math.pi) / 2).sum()


def _end_to_end(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


class LogUniformPrior(Prior):
    r"""p(w) proportional to 1/\|w\| (Kingma et al. 2015), which makes KL a function of alpha = sigma^2 / mu^2 alone.

    KL is Molchanov et al.'s (2017) approximation, 0.63576 (1 - sigmoid(1.8732 + 1.48695 log alpha)) +
    log(1 + 1/alpha) / 2. The prior is improper; its constant is chosen so that KL -> 0 as alpha -> infinity.
    """

    # E log|z| - E log q at mu = 0: the constant for which KL -> 0 as alpha -> infinity
    _LOG_CONSTANT = (math.log(2 * math.pi) + 1) / 2 + (0.5772156649015329 + math.log(2)) / 2

    @classmethod
    def log_prob(cls, priors: Sequence[Prior], layers: Sequence[Mapping[str, Tensor]]) -> Tensor:
        r"""Sum of -log \|w\| up to the constant above."""
        weights = _end_to_end(drawn for layer in layers for drawn in layer.values())
        return -(weights.abs().clamp_min(torch.finfo(weights.dtype).tiny).log() + cls._LOG_CONSTANT).sum()

    @classmethod
    def divergence(cls, priors: Sequence[Prior], layers: Sequence[Mapping[str, Posterior]]) -> Tensor:
        """Molchanov et al.'s approximation."""
        posteriors = [q for layer in layers for q in layer.values()]
        # In their own dtype: the floor of `alpha` depends on it.
        means, free = _end_to_end(q.mean for q in posteriors), _end_to_end(q.free for q in posteriors)
        log_alpha = Posterior(means, free, posteriors[0].parameterization).log_alpha
        return (0.63576 * torch.sigmoid(-1.87320 - 1.48695 * log_alpha) + softplus(-log_alpha) / 2).sum()


class PriorName(str, Enum):
    """Priors that can be asked for by name."""

    STANDARD = "standard"
    FAN_IN = "fan_in"
    LEARNED = "learned"
    MIXTURE = "mixture"
    LOG_UNIFORM = "log_uniform"
    EMPIRICAL = "empirical"


_BY_NAME: dict[PriorName, type[Prior]] = {
    PriorName.STANDARD: GaussianPrior,
    PriorName.FAN_IN: FanInPrior,
    PriorName.LEARNED: LearnedPrior,
    PriorName.MIXTURE: ScaleMixturePrior,
    PriorName.LOG_UNIFORM: LogUniformPrior,
    PriorName.EMPIRICAL: EmpiricalPrior,
}


def make_prior(prior: float | str | Prior) -> Prior:
    """The prior that a number (standard deviation), a name or an object stands for.

    >>> make_prior(0.5)
    GaussianPrior(mean=0.0, std=0.5)
    >>> make_prior("uniform")
    Traceback (most recent call last):
    dubito.errors.OptionError: prior is 'uniform', but must be one of 'standard', 'fan_in', 'learned', ...
    """
    if isinstance(prior, Prior):
        return prior
    if isinstance(prior, str):
        return _BY_NAME[choose(PriorName, prior, "prior")]()
    if isinstance(prior, bool) or not isinstance(prior, (int, float)):
        raise OptionError(f"prior is {prior!r}, but must be a standard deviation, a name or a Prior.")
    if not (prior > 0 and math.isfinite(prior)):
        raise OptionError(f"prior is {prior!r}, but a standard deviation must be positive and finite.")
    return GaussianPrior(std=float(prior))
