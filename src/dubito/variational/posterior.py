r"""Posteriors q(w): the distribution of one parameter's weights, and what every family of them can do.

A posterior is a module that owns its parameters (a mean and whatever describes the spread) and its prior. It belongs to
a parameter of a layer, not to a type of layer; parameters that are tied share one posterior. A family is a file in
`families/` and a line in its table.

A forward pass sees one draw of every posterior, the same wherever it is read in that pass. A pass is a call of the
objective or of a network that `to_bayesian` made. Within it, the first reading of a posterior draws, and later ones, by
the same layer or by others that share the posterior, get the same weights. Outside of a pass every reading is a fresh
draw. Passes belong to their thread.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from dubito.errors import OptionError
from dubito.kernels import runs_eagerly
from dubito.softplus import at_least_single
from dubito.variational.prior import Prior, make_prior

PAPER_STD = math.exp(-5.0)
"""The paper's initial standard deviation: its appendix gives the logarithm of the variance as -10."""

ENTROPY = (math.log(2 * math.pi) + 1) / 2
"""Entropy of a standard normal variable, in nats."""


class Posterior(nn.Module, ABC):
    """q(w) of a tensor of weights.

    Args:
        mean: the weights that the posterior is centred on; this very parameter becomes its `mean`.
        std: the standard deviation that every weight starts with.
        prior: a standard deviation, a name or a :class:`~dubito.variational.prior.Prior`.
        fan_in: how many inputs each output of the layer sums over; 1 for a bias.

    Attributes:
        name: of the family.
        independent: whether the weights are independent, as ``local``, ``flipout`` and moments take them to be.
        erased: the values of the family's parameters at which a weight is exactly 0 in every draw.
    """

    name: ClassVar[str]
    independent: ClassVar[bool]
    erased: ClassVar[dict[str, float]]
    mean: nn.Parameter
    prior: Prior

    def __init__(
        self, mean: nn.Parameter, std: float = PAPER_STD, prior: float | str | Prior = "standard", fan_in: int = 1
    ) -> None:
        super().__init__()
        self.mean = mean
        self.initial_std = std
        self.fan_in = fan_in
        self._given_prior = (prior,)  # in a tuple, which makes it no submodule
        self._make_parameters()
        self.reset()

    @abstractmethod
    def _make_parameters(self) -> None:
        """Register the parameters beside the mean, with the mean's shape, dtype and device."""

    def reset(self) -> None:
        """Restore the initial standard deviation and the given prior, around the current mean."""
        self.set_std(self.initial_std)
        self.bind_prior()

    def bind_prior(self) -> None:
        """Fit the prior, as it was given, to the mean as it is now."""
        self.prior = make_prior(self._given_prior[0]).bind(self.mean, self.fan_in)

    @abstractmethod
    def set_std(self, std: float | Tensor) -> None:
        """Give every weight this standard deviation, independently of the others, and keep the mean."""

    @property
    @abstractmethod
    def std(self) -> Tensor:
        """The standard deviation of each weight, in the dtype of the mean."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The variance of each weight, in at least float32."""

    @property
    @abstractmethod
    def log_std(self) -> Tensor:
        """The logarithm of the standard deviation of each weight, in at least float32."""

    @property
    def noise_size(self) -> int:
        """How many standard normal numbers a draw takes."""
        return self.mean.numel()

    @abstractmethod
    def draw(self, noise: Tensor | None = None) -> Tensor:
        """Weights from standard normal noise of shape (noise_size,); without noise, from fresh one.

        The weights have the dtype of the mean. Noise of the opposite sign gives the antithetic draw.
        """

    def fresh_noise(self, generator: torch.Generator | None = None) -> Tensor:
        """The noise of one draw, in at least float32."""
        wide = at_least_single(self.mean)
        return standard_normal(self.noise_size, wide.dtype, wide.device, generator)

    @abstractmethod
    def log_prob(self, weights: Tensor) -> Tensor:
        """log q(w) of the whole tensor, a scalar in nats."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """-E[log q(w)] of the whole tensor, a scalar in nats."""

    def kl_divergence(self) -> Tensor:
        """KL[q || p], summed over the weights, in nats; one draw estimates it where the prior has no closed form."""
        return self.prior.divergence(self)

    @classmethod
    def divergences(cls, found: Sequence[Self]) -> list[Tensor]:
        """Scalars whose sum is KL[q || p] of all these posteriors; a family may compute some of them together."""
        return [q.kl_divergence() for q in found]

    @torch.no_grad()
    def erase(self, where: Tensor) -> None:
        """Make the weights in this mask exactly 0 in every draw."""
        for name, value in self.erased.items():
            self.get_parameter(name)[where] = value

    def frozen_like_mean(self) -> None:
        """Let the other parameters learn only if the mean does."""
        for parameter in self.parameters(recurse=False):
            parameter.requires_grad_(self.mean.requires_grad)

    def extra_repr(self) -> str:
        """Shape and initial standard deviation."""
        return f"{tuple(self.mean.shape)}, initial_std={self.initial_std:.4g}"


class DiagonalPosterior(Posterior):
    """Independent Gaussians N(mu, sigma^2); a family says what sigma is made of.

    Half-precision parameters give half-precision `std`, but `variance` and `log_std` in float32: neither squares nor
    sums of logarithms survive in float16.
    """

    independent = True

    @property
    def _wide_std(self) -> Tensor:
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
        """mu + sigma * noise."""
        noise = self.fresh_noise() if noise is None else noise
        noise = noise.view(self.mean.shape)
        return torch.addcmul(self.mean.to(noise.dtype), self._wide_std.to(noise.dtype), noise).to(self.mean.dtype)

    def log_prob(self, weights: Tensor) -> Tensor:
        """The sum of log N(w | mu, sigma^2)."""
        log_std = self.log_std
        deviation = at_least_single(weights) - at_least_single(self.mean)
        # Where sigma underflows, as in a pruned network, the weight is its mean.
        standardized = deviation / log_std.exp().clamp_min(torch.finfo(log_std.dtype).tiny)
        return (-standardized.square() / 2 - log_std - math.log(2 * math.pi) / 2).sum()

    def entropy(self) -> Tensor:
        """The sum of log sigma + (log 2 pi + 1) / 2."""
        return self.log_std.sum() + self.mean.numel() * ENTROPY


def posteriors(module: nn.Module) -> dict[str, Posterior]:
    """Every posterior below `module`, each once, by its name in the module tree."""
    return {name: part for name, part in module.named_modules() if isinstance(part, Posterior)}


def require_std(std: float | Tensor, like: Tensor) -> Tensor:
    """A standard deviation for each weight of `like`, in at least float32; an error unless positive and finite."""
    wide = at_least_single(like)
    target = torch.as_tensor(std, dtype=wide.dtype, device=wide.device).expand_as(wide)
    # A meta tensor has no values to look at.
    if not target.is_meta and not bool(((target > 0) & target.isfinite()).all()):
        raise OptionError(f"The standard deviation is {std!r}, but must be a positive finite number.")
    return target


def standard_normal(
    size: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None = None
) -> Tensor:
    """A vector of independent N(0, 1) numbers; with a generator of the CPU it is the same on every device.

    >>> generator = torch.Generator().manual_seed(0)
    >>> standard_normal(3, torch.float32, torch.device("cpu"), generator).shape
    torch.Size([3])
    """
    source = device if generator is None else generator.device
    return torch.randn(size, dtype=dtype, device=source, generator=generator).to(device)


class Pass:
    """The draws of one forward pass.

    Args:
        generator: what the noise comes from; None for torch's global one.
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self._generator = generator
        self._weights: dict[tuple[Posterior, int, bool], list[Tensor]] = {}
        self._computed: dict[tuple[Posterior, bool], tuple[Tensor, int, Tensor]] = {}

    def groups(self, posterior: Posterior, count: int, antithetic: bool) -> list[Tensor]:
        """`count` draws of a posterior, in pairs of opposite noise if `antithetic`; the same ones at every call."""
        key = (posterior, count, antithetic)
        if key not in self._weights:
            self._weights[key] = _draw_groups(posterior, count, antithetic, self._generator)
        return self._weights[key]

    def computed(self, posterior: Posterior, source: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """What `make` computes of a posterior's tensor, with its gradient; once, as long as the tensor is the same."""
        key = (posterior, torch.is_grad_enabled())
        known = self._computed.get(key)
        if known is None or known[0] is not source or known[1] != source._version:
            known = self._computed[key] = (source, source._version, make(source))
        return known[2]


class _Local(threading.local):
    """What is under way in this thread; attributes of the object itself, which compilers can follow."""

    def __init__(self) -> None:
        self.current: Pass | None = None
        self.owner: nn.Module | None = None
        self.depth = 0  # of calls of the owner inside each other


_thread = _Local()


@contextmanager
def one_pass(generator: torch.Generator | None = None) -> Iterator[Pass]:
    """Inside, every posterior has one draw; a pass inside a pass is the same pass, unless it has its own generator."""
    outer = _thread.current
    if outer is not None and generator is None:
        yield outer
        return
    _thread.current = Pass(generator)
    try:
        yield _thread.current
    finally:
        _thread.current = outer


def open_pass(module: nn.Module, inputs: object) -> None:
    """A forward pre-hook: a call of `module` is a pass, unless it is part of one."""
    if _thread.current is None:
        _thread.current, _thread.owner, _thread.depth = Pass(), module, 1
    elif _thread.owner is module:
        _thread.depth += 1


def close_pass(module: nn.Module, inputs: object, output: object) -> None:
    """The forward hook that ends what :func:`open_pass` began."""
    if _thread.owner is not module:
        return
    _thread.depth -= 1
    if _thread.depth == 0:
        _thread.current = _thread.owner = None


def computed_once(posterior: Posterior, source: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
    """What `make` computes of a posterior's tensor, once in the pass under way."""
    current = _thread.current
    if current is None or not runs_eagerly(source) or source.is_inference():
        return make(source)
    return current.computed(posterior, source, make)


def drawn(posterior: Posterior) -> Tensor:
    """The weights that the pass under way sees."""
    return drawn_groups(posterior, 1, False)[0]


def drawn_groups(posterior: Posterior, count: int, antithetic: bool) -> list[Tensor]:
    """The weights that the groups of a batch see in the pass under way."""
    if _thread.current is None:
        return _draw_groups(posterior, count, antithetic, None)
    return _thread.current.groups(posterior, count, antithetic)


def _draw_groups(posterior: Posterior, count: int, antithetic: bool, generator: torch.Generator | None) -> list[Tensor]:
    weights = []
    noise = posterior.fresh_noise(generator)
    for index in range(count):
        if index:
            noise = -noise if antithetic and index % 2 else posterior.fresh_noise(generator)
        weights.append(posterior.draw(noise))
    return weights
