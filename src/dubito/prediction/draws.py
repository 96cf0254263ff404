"""Draws of a network's outputs for a batch, by the route that is cheapest for its size.

- ``loop``: one draw after the other, by the layers' own estimators.
- ``weights``, for many images: the weights of a draw are made once and shared by all images, so that a draw costs one
  forward pass of a point-estimate network. Draws come in antithetic pairs mu + sigma eps, mu - sigma eps: half the
  noise to make, and mean probabilities whose errors cancel to first order. A layer that the network calls twice has the
  same weights both times.
- ``stacked``, for few images: as many copies of the images as there are draws make one large batch, in which ``local``
  draws every output element by itself. Layers that see the images themselves convolve them once for all draws.

``weights`` draws from the exact posterior; ``local``, in ``loop`` and ``stacked``, treats the positions of a
convolution as independent and so finds less epistemic uncertainty: to compare images with each other, predict them by
one route.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from enum import Enum
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dubito.errors import NonFiniteError, OptionError, ShapeError, not_a_tensor
from dubito.estimators.base import Estimator, Local, Weight, drawing_layers, forced
from dubito.kernels.autograd import runs_eagerly
from dubito.kernels.noise import SMALLEST, standard_normal_like
from dubito.layers.base import BayesLayer
from dubito.variational.kl import describe_non_finite
from dubito.variational.posterior import Identity, Posterior

__all__ = ["MANY", "Draws", "GivenWeights", "Route", "make_draws"]

MANY = 32
"""From so many images on it pays to draw the weights: below, drawing them costs more than a second convolution."""


class Route(str, Enum):
    """How the draws of a prediction are made."""

    AUTO = "auto"
    LOOP = "loop"
    STACKED = "stacked"
    WEIGHTS = "weights"


def make_draws(
    route: Route,
    model: nn.Module,
    samples: int,
    generator: torch.Generator | None,
    images: int,
    batch_size: int,
    own_estimators: bool,
) -> Draws:
    """The draws of a whole prediction; `images` is the size of its first batch, `batch_size` the largest to compute."""
    layers = drawing_layers(model)
    local = bool(layers) and all(layer.forced_estimator == Local() for layer in layers) and not _drops_out(model)
    if route is Route.AUTO:
        route = Route.LOOP
        if local and own_estimators:
            route = Route.WEIGHTS if images >= MANY else Route.STACKED
    if route is Route.STACKED:
        if not local:
            raise OptionError("route is 'stacked', but not all that the network draws is drawn by local; use 'auto'.")
        return StackedDraws(model, samples, generator, batch_size)
    if route is Route.WEIGHTS and layers:
        return WeightDraws(model, samples, generator)
    return LoopedDraws(model, samples, generator)


class Draws(ABC):
    """`samples` draws of the outputs of any number of batches."""

    def __init__(self, model: nn.Module, samples: int, generator: torch.Generator | None) -> None:
        device = "cpu" if generator is None else generator.device
        base = int(torch.randint(2**62, (), generator=generator, device=device))
        self.model = model
        self.samples = samples
        self._stream = torch.Generator("cpu").manual_seed(base)

    def seeds(self) -> list[int]:
        """A seed for each draw, new ones at every call."""
        return torch.randint(2**62, (self.samples,), generator=self._stream, device="cpu").tolist()

    @abstractmethod
    def of(self, batch: Tensor, random_head: bool = False) -> Generator[Tensor, None, None]:
        """Blocks of outputs (T, N, ...), whose numbers T of draws add up to `samples`; close it if some stay untaken.

        `random_head` says that what becomes of the outputs is random too.
        """

    def _outputs(self, batch: Tensor, copies: int = 1) -> Tensor:
        outputs = self.model(batch)
        _require_outputs(outputs, batch, self.model, copies)
        return outputs


class _Unchanged:
    """The same images for every draw, and for the caller, also if the network changes what it is given in place."""

    def __init__(self, batch: Tensor) -> None:
        self._batch = batch
        self._given: Tensor | None = None
        self._version = 0

    def __call__(self) -> Tensor:
        """A copy, a new one only if the last is not what it was."""
        if self._given is None or self._given._version != self._version:
            self._given = _counted_copy(self._batch)
            self._version = self._given._version
        return self._given


def _counted_copy(batch: Tensor, copies: int = 1) -> Tensor:
    """The batch so many times; changes in place are counted even where inference mode counts none."""
    with torch.inference_mode(False):
        return batch.clone() if copies == 1 else batch.repeat(copies, *(1,) * (batch.dim() - 1))


class LoopedDraws(Draws):
    """One forward pass after the other; a network that draws nothing makes only two."""

    def __init__(self, model: nn.Module, samples: int, generator: torch.Generator | None) -> None:
        super().__init__(model, samples, generator)
        # Weights do not depend on the batch, so every batch gets the same.
        alike = all(layer.forced_estimator == Weight() for layer in drawing_layers(model)) and not _drops_out(model)
        self._shared = self.seeds() if alike else None

    def of(self, batch: Tensor, random_head: bool = False) -> Generator[Tensor, None, None]:
        """One draw each."""
        first: Tensor | None = None
        images = _Unchanged(batch)
        for index, seed in enumerate(self._shared or self.seeds()):
            _seed(batch.device, seed)
            state = _random_state(batch.device)
            outputs = self._outputs(images())
            # Equal outputs alone may be chance: two dropout masks are often the same.
            nothing_drawn = torch.equal(state, _random_state(batch.device)) and not random_head
            if index == 1 and nothing_drawn and first is not None and torch.equal(first, outputs):
                return
            first = outputs if index == 0 else None
            yield outputs.unsqueeze(0)


class WeightDraws(Draws):
    """The weights of a draw once for all images, in antithetic pairs; every batch gets the same."""

    def __init__(self, model: nn.Module, samples: int, generator: torch.Generator | None) -> None:
        super().__init__(model, samples, generator)
        self._layers = drawing_layers(model)
        self._weights = _WeightsOfOneDraw(self._layers)
        self._weight_seeds = self.seeds()
        self._shared = None if _drops_out(model) else self.seeds()

    def of(self, batch: Tensor, random_head: bool = False) -> Generator[Tensor, None, None]:
        """One draw each, two with the same noise and opposite signs."""
        images = _Unchanged(batch)
        with forced(dict.fromkeys(self._layers, self._weights)):
            for index, seed in enumerate(self._shared or self.seeds()):
                if index % 2 == 0:
                    self._weights.renew(self._weight_seeds[index])
                else:
                    self._weights.mirror()
                _seed(batch.device, seed)
                yield self._outputs(images()).unsqueeze(0)


class StackedDraws(Draws):
    """Copies of the images side by side, at most `largest` at once, for ``local``."""

    def __init__(self, model: nn.Module, samples: int, generator: torch.Generator | None, largest: int) -> None:
        super().__init__(model, samples, generator)
        self._largest = largest

    def of(self, batch: Tensor, random_head: bool = False) -> Generator[Tensor, None, None]:
        """As many draws at once as fit."""
        seeds, done = self.seeds(), 0
        while done < self.samples:
            copies = max(1, min(self.samples - done, self._largest // len(batch)))
            _seed(batch.device, seeds[done])
            stack = _counted_copy(batch, copies)
            with forced(dict.fromkeys(drawing_layers(self.model), _LocalOfCopies(stack, batch, copies))):
                outputs = self._outputs(stack, copies)
            yield outputs.unflatten(0, (copies, len(batch)))
            done += copies


class GivenWeights(Estimator):
    """The linear map with weights that were drawn before, by the `id` of their layer."""

    name: ClassVar[str] = "given"

    def __init__(self, weights: dict[int, tuple[Tensor, Tensor | None]]) -> None:
        self.weights = weights

    def __call__(self, layer: BayesLayer, x: Tensor, *arguments: Any) -> Tensor:
        """F(x, w)."""
        weight, bias = self.weights[id(layer)]
        if layer.is_batched(x) and runs_eagerly(x, weight, bias):
            linear_map, x = layer.as_linear_map(x, *arguments)
            return linear_map(x, weight, bias)
        return layer.linear_map(x, weight, bias, *arguments)


class _WeightsOfOneDraw(GivenWeights):
    """Small tensors of weights, drawn together, and large ones, which a layer draws when it is first called.

    Then it is known which memory layout suits its input best. So the layout follows from the size of the layer's maps,
    and it decides which number of the noise goes to which weight: the draws of a seed are the same for all batches,
    also of other sizes. Layers that share a posterior, as those of tied weights do, share its draws.
    """

    def __init__(self, layers: list[BayesLayer]) -> None:
        super().__init__({})
        self._numbers = {id(layer): number for number, layer in enumerate(layers, start=1)}
        self._small = _SmallTensors(layers)
        self._large: dict[int, dict[str, Identity]] = {}
        self._posteriors: dict[Identity, Posterior] = {}
        self._noise: dict[Identity, Tensor] = {}
        self._drawn: dict[Identity, Tensor] = {}
        self._current: set[Identity] = set()
        self._seeds: list[int] = []
        self._sign = 1

    def renew(self, seed: int) -> None:
        """From now on the weights are mu + sigma eps with fresh eps."""
        generator = torch.Generator("cpu").manual_seed(seed)
        self._seeds = torch.randint(2**62, (1 + len(self._numbers),), generator=generator, device="cpu").tolist()
        self._sign = 1
        self._noise.clear()
        self._current.clear()
        self.weights.clear()
        self._small.renew(self._seeds[0])

    def mirror(self) -> None:
        """From now on the weights are mu - sigma eps with the same eps."""
        self._sign = -1
        self._current.clear()
        self.weights.clear()
        self._small.draw(self._sign)

    def __call__(self, layer: BayesLayer, x: Tensor, *arguments: Any) -> Tensor:
        """F(x, w)."""
        key = id(layer)
        if key not in self.weights:
            drawn = {**self._small.drawn[key], **self._draw_large(layer, x, *arguments)}
            self.weights[key] = drawn["weight"], drawn.get("bias", layer.bias_mean)
        return super().__call__(layer, x, *arguments)

    def _draw_large(self, layer: BayesLayer, x: Tensor, *arguments: Any) -> dict[str, Tensor]:
        """The layer's large tensors; those that another layer has in common with it may be drawn already."""
        key = id(layer)
        if key not in self._large:
            small, own = self._small.drawn[key], layer.posteriors()
            self._large[key] = {name: q.identity for name, q in own.items() if name not in small}
            for name, q in _arranged(layer, x, *arguments).items():
                self._posteriors.setdefault(own[name].identity, q)
        large = self._large[key]
        new = [which for which in large.values() if which not in self._noise]
        generator = _generator(x.device, self._seeds[self._numbers[key]]) if new else None
        for which in new:
            self._noise[which] = standard_normal_like(self._posteriors[which].mean, generator)
        for which in large.values():
            if which not in self._current:
                q = self._posteriors[which]
                self._drawn[which] = q.draw(self._noise[which], self._sign, self._drawn.get(which))
                self._current.add(which)
        return {name: self._drawn[which] for name, which in large.items()}


class _SmallTensors:
    """The small tensors of all layers, as one: by themselves, most of their time would go into calls.

    Attributes:
        drawn: the tensors, by the `id` of their layer and by their name.
    """

    def __init__(self, layers: list[BayesLayer]) -> None:
        found = [(id(layer), name, q) for layer in layers for name, q in layer.posteriors().items()]
        found = [(key, name, q) for key, name, q in found if q.mean.numel() < SMALLEST]
        # Those of another type or device than the first count as large.
        found = [part for part in found if _kind(part[2]) == _kind(found[0][2])]
        self.drawn: dict[int, dict[str, Tensor]] = {id(layer): {} for layer in layers}
        self._empty = not found
        if self._empty:
            return
        different = {q.identity: q for _, _, q in found}
        self._mean, self._std = (
            torch.cat([tensor.reshape(-1) for tensor in tensors])
            for tensors in zip(*((q.mean, q.std) for q in different.values()), strict=True)
        )
        self._noise, self._together = self._mean, torch.empty_like(self._mean)
        parts = self._together.split([q.mean.numel() for q in different.values()])
        of = dict(zip(different, parts, strict=True))
        for key, name, q in found:
            self.drawn[key][name] = of[q.identity].view(q.mean.shape)

    def renew(self, seed: int) -> None:
        """Draw with fresh noise."""
        if not self._empty:
            self._noise = standard_normal_like(self._mean, _generator(self._mean.device, seed))
            self.draw(1)

    def draw(self, sign: int) -> None:
        """Draw with the noise as it is."""
        if not self._empty:
            torch.addcmul(self._mean, self._std, self._noise, value=sign, out=self._together)


def _kind(q: Posterior) -> tuple[torch.dtype, torch.device]:
    return q.mean.dtype, q.mean.device


def _arranged(layer: BayesLayer, x: Tensor, *arguments: Any) -> dict[str, Posterior]:
    """The layer's posteriors, that of the weight in the memory layout that is best for such inputs."""
    posteriors = layer.posteriors()
    weight = posteriors["weight"]
    if not layer.is_batched(x) or not runs_eagerly(x, weight.mean):
        return posteriors
    linear_map, x = layer.as_linear_map(x, *arguments)
    return {**posteriors, "weight": weight.mapped(partial(linear_map.arranged, x))}


class _LocalOfCopies(Local):
    """Local reparameterisation that, where it meets the stack of copies itself, convolves only one of them."""

    def __init__(self, stack: Tensor, single: Tensor, copies: int) -> None:
        # its base class is frozen
        self.__dict__.update(stack=stack, version=stack._version, single=single, copies=copies)

    stack: Tensor
    version: int
    single: Tensor
    copies: int

    def __call__(self, layer: BayesLayer, x: Tensor, *arguments: Any) -> Tensor:
        """F(x, mu) + eps * sqrt(F(x^2, sigma^2))."""
        if x is not self.stack or x._version != self.version:  # or a layer before it has worked in place
            return super().__call__(layer, x, *arguments)
        mean, std = self.moments(layer, self.single, *arguments)
        repeats = (self.copies, *(1,) * (mean.dim() - 1))
        mean = mean.repeat(repeats)
        return mean.addcmul_(std.repeat(repeats), standard_normal_like(mean))


def _drops_out(model: nn.Module) -> bool:
    return any(isinstance(module, _DropoutNd) and module.training for module in model.modules())


def _require_outputs(outputs: Any, batch: Tensor, model: nn.Module, copies: int) -> None:
    if not isinstance(outputs, Tensor):
        raise ShapeError(not_a_tensor(outputs, "predict"))
    if outputs.dim() < 2 or outputs.shape[0] != batch.shape[0]:
        many = f" (every image {copies} times)" if copies > 1 else ""
        raise ShapeError(
            f"The model made outputs of shape {tuple(outputs.shape)} from inputs of shape {tuple(batch.shape)}{many}, "
            "but logits need a batch and a class axis: (N, C)."
        )
    if not bool(outputs.isfinite().all()):
        if batch.is_floating_point() and not bool(batch.isfinite().all()):
            raise NonFiniteError("The inputs hold NaN or infinite values, so there is nothing to predict from.")
        raise NonFiniteError(f"The model's outputs are not finite: {describe_non_finite(model)}")


def _seed(device: torch.device, seed: int) -> None:
    """Seed the global generators that layers on `device` draw from, and no others."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type not in ("cpu", "meta"):
        getattr(torch, device.type).manual_seed(seed)


def _generator(device: torch.device, seed: int) -> torch.Generator | None:
    """A generator of its own; numbers that are not there need none."""
    return None if device.type == "meta" else torch.Generator(device).manual_seed(seed)


def _random_state(device: torch.device) -> Tensor:
    """The state of the generator that layers on `device` draw from."""
    if device.type in ("cpu", "meta"):
        return torch.default_generator.get_state()
    return getattr(torch, device.type).get_rng_state(device)
