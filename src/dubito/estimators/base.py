"""Estimators: how a Bayesian layer turns its posterior and an input into an output.

With F the layer's linear map (a convolution or a matrix product) and q(w) = N(mu, sigma^2):

- ``local``, the local reparameterisation trick (paper, section 2.3.1): F(x, mu) + eps * sqrt(F(x^2, sigma^2)), with
  eps ~ N(0, 1) for each output element. The least noisy gradients. For convolutions it draws every output position
  independently, although in truth the positions share their weights; each position's distribution is exact.
- ``weight``: draws the weights themselves, F(x, mu + sigma * eps). Exact, also jointly over the positions; all images
  that share a draw are correlated. A layer that a network calls twice draws at each call.
- ``flipout`` (Wen et al. 2018): one draw for the batch, decorrelated by random signs for each example and channel.
- ``mean``: F(x, mu), deterministic. What `model.eval()` uses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from dubito.errors import OptionError, unknown
from dubito.kernels.autograd import runs_eagerly
from dubito.kernels.drawn import with_drawn_weights
from dubito.kernels.local import local_reparameterization

if TYPE_CHECKING:
    from dubito.layers.base import BayesLayer

__all__ = [
    "Estimator",
    "Flipout",
    "Local",
    "Mean",
    "Weight",
    "drawing_layers",
    "estimator",
    "forced",
    "make_estimator",
]


class Estimator(ABC):
    """Turns a layer's posterior and an input into an output."""

    name: ClassVar[str]

    @abstractmethod
    def __call__(self, layer: BayesLayer, x: Tensor, *arguments: Any) -> Tensor:
        """The layer's output for `x`; `arguments` go on to the layer's linear map."""


@dataclass(frozen=True)
class Mean(Estimator):
    """The posterior mean: deterministic."""

    name: ClassVar[str] = "mean"

    def __call__(self, layer: BayesLayer, x: Tensor, *arguments: Any) -> Tensor:
        """F(x, mu)."""
        return layer.linear_map(x, layer.weight_mean, layer.bias_mean, *arguments)


@dataclass(frozen=True)
class Local(Estimator):
    """The local reparameterisation trick: one linear map for the mean, one for the variance."""

    name: ClassVar[str] = "local"

    def __call__(self, layer: BayesLayer, x: Tensor, *arguments: Any) -> Tensor:
        """F(x, mu) + eps * sqrt(F(x^2, sigma^2))."""
        mean, std = layer.means_and_stds()
        if layer.is_batched(x) and runs_eagerly(x, *mean, *std):
            return local_reparameterization(*layer.as_linear_map(x, *arguments), mean, std)
        return self.plain(layer, x, *arguments)

    def plain(self, layer: BayesLayer, x: Tensor, *arguments: Any) -> Tensor:
        """The same with torch's own operations and their gradients."""
        mean, std = self.moments(layer, x, *arguments)
        return torch.addcmul(mean, std, torch.randn_like(mean))

    def moments(self, layer: BayesLayer, x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the output."""
        mean = layer.linear_map(x, layer.weight_mean, layer.bias_mean, *arguments)
        variance = self._variance(layer, x, *arguments)
        # An all-zero patch has variance 0, and fast convolutions may round to just below it: the root needs a floor,
        # and the floor has gradient 0, which is the right one.
        return mean, variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt().to(mean.dtype)

    @staticmethod
    def _variance(layer: BayesLayer, x: Tensor, *arguments: Any) -> Tensor:
        posteriors = layer.posteriors()
        weight = posteriors["weight"].variance
        bias = posteriors["bias"].variance if "bias" in posteriors else None
        if _compute_dtype(x) is torch.float16:
            # float16 holds neither the square of 0.0002 nor that of 300
            with nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False):
                return layer.linear_map(x.float().square(), weight, bias, *arguments)
        return layer.linear_map(x.square(), weight.to(x.dtype), None if bias is None else bias.to(x.dtype), *arguments)


def _compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype that linear maps of `x` run in, autocast included."""
    kind = x.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind) and x.dtype is not torch.float64:
        return torch.get_autocast_dtype(kind)
    return x.dtype


@dataclass(frozen=True)
class Weight(Estimator):
    """Draws of the weights: one for the whole batch, or one for each of `draws` groups of it.

    With `antithetic`, draws come in pairs mu + sigma * eps, mu - sigma * eps, whose errors cancel to first order.
    """

    draws: int = 1
    antithetic: bool = False
    name: ClassVar[str] = "weight"

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise OptionError(f"The weight estimator got draws={self.draws}, but needs at least 1.")
        if self.antithetic and self.draws % 2:
            raise OptionError(
                f"The weight estimator got draws={self.draws} with antithetic=True, but pairs need an even number."
            )

    def __call__(self, layer: BayesLayer, x: Tensor, *arguments: Any) -> Tensor:
        """F(x, mu + sigma * eps), by groups of the batch."""
        mean, std = layer.means_and_stds()
        if layer.is_batched(x) and len(x) >= self.draws and runs_eagerly(x, *mean, *std):
            return with_drawn_weights(*layer.as_linear_map(x, *arguments), mean, std, self.draws, self.antithetic)
        return self.plain(layer, x, *arguments)

    def plain(self, layer: BayesLayer, x: Tensor, *arguments: Any) -> Tensor:
        """The same with torch's own operations and their gradients."""
        groups = x.tensor_split(self.draws) if self.draws > 1 and layer.is_batched(x) and len(x) else (x,)
        outputs, noise = [], None
        for index, group in enumerate(groups):
            mirrored = self.antithetic and index % 2 == 1 and noise is not None
            noise = {k: -v for k, v in noise.items()} if mirrored and noise else layer.weight_noise()
            if len(group) or len(groups) == 1:
                outputs.append(layer.linear_map(group, *layer.draw(noise), *arguments))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


@dataclass(frozen=True)
class Flipout(Estimator):
    """One draw of the weights' deviation, flipped by a sign per example and input channel, and output channel."""

    name: ClassVar[str] = "flipout"

    def __call__(self, layer: BayesLayer, x: Tensor, *arguments: Any) -> Tensor:
        """F(x, mu) + r * F(s * x, sigma * eps), with signs s and r that are constant over an example's positions."""
        mean = layer.linear_map(x, layer.weight_mean, layer.bias_mean, *arguments)
        noise = layer.weight_noise()
        deviation = {name: q.std * noise[name] for name, q in layer.posteriors().items()}
        flipped = x * _signs(layer.sign_shape(x), x)
        perturbation = layer.linear_map(flipped, deviation["weight"], deviation.get("bias"), *arguments)
        return torch.addcmul(mean, perturbation, _signs(layer.sign_shape(mean), mean))


def _signs(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.randint(0, 2, shape, dtype=like.dtype, device=like.device).mul_(2).sub_(1)


ESTIMATORS: dict[str, type[Estimator]] = {kind.name: kind for kind in (Local, Weight, Flipout, Mean)}


def make_estimator(given: str | Estimator, **options: Any) -> Estimator:
    """The estimator of that name with these options, or the estimator itself.

    >>> make_estimator("weight", draws=4, antithetic=True)
    Weight(draws=4, antithetic=True)
    """
    if isinstance(given, Estimator):
        if options:
            raise OptionError(f"The estimator {given} is complete, but got {', '.join(options)} beside it.")
        return given
    if not isinstance(given, str) or given not in ESTIMATORS:
        raise OptionError(unknown("estimator", given, ESTIMATORS))
    try:
        return ESTIMATORS[given](**options)
    except TypeError:
        raise OptionError(f"The {given} estimator got {options}, which it has no use for.") from None


@contextmanager
def estimator(module: nn.Module, given: str | Estimator | None, **options: Any) -> Iterator[None]:
    """Inside, every Bayesian layer below `module` uses that estimator, in training and evaluation mode alike.

    None stands for each layer's own, so that a network in evaluation mode draws. What was in force before comes back
    at the end, also after an exception.

    >>> import dubito
    >>> layer, x = dubito.BayesLinear(3, 2), torch.ones(1, 3)
    >>> with dubito.estimator(layer, "mean"):
    ...     torch.equal(layer(x), layer(x))
    True
    """
    from dubito.layers.base import BayesLayer

    chosen = None if given is None else make_estimator(given, **options)
    layers = [layer for layer in module.modules() if isinstance(layer, BayesLayer)]
    with forced({layer: chosen or layer.estimator for layer in layers}):
        yield


def drawing_layers(module: nn.Module) -> list[BayesLayer]:
    """The Bayesian layers below `module` that draw in a prediction: all but those whose estimator is the mean."""
    from dubito.layers.base import BayesLayer

    layers = [layer for layer in module.modules() if isinstance(layer, BayesLayer)]
    return [layer for layer in layers if not isinstance(layer.forced_estimator or layer.estimator, Mean)]


@contextmanager
def forced(estimators: Mapping[BayesLayer, Estimator]) -> Iterator[None]:
    """Inside, each of these layers uses its estimator here, in training and evaluation mode alike."""
    before = {layer: layer.forced_estimator for layer in estimators}
    try:
        for layer, chosen in estimators.items():
            layer.forced_estimator = chosen
        yield
    finally:
        for layer, previous in before.items():
            layer.forced_estimator = previous
