"""Draws of a network's outputs for a batch of images: each method of prediction as a pure function of the image.

- ``weights``: the posterior itself. Each draw is a plain network with its own weights (and dropout masks), the same for
  every image.
- ``mean``: the network at the posterior mean, one draw.
- ``local``: draws of activations by the local reparameterisation trick. It treats the positions of a convolution as
  independent, so it finds less epistemic uncertainty than the posterior has, above all before global pooling. All
  images share the noise, so layers must get them along axis 0.

`moments` has a folder of its own.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from dubito.convert.copying import deep_copy, shared_copy, substitute
from dubito.convert.deterministic import Slot, fill, plain_network, to_deterministic
from dubito.errors import NonFiniteError, OptionError, ShapeError, not_a_tensor
from dubito.estimators import Local
from dubito.heads.split import Sampling
from dubito.layers import forced
from dubito.prediction.dropout import MaskedDropout, Masks, drawn_dropout
from dubito.prediction.novelty.layers import Layer, Observed, Reader
from dubito.prediction.remembering import Remembering
from dubito.prediction.weights import DrawnWeights, Weights, seeds_of
from dubito.variational.kl import describe_non_finite
from dubito.variational.posterior import one_pass, posteriors, standard_normal

FEW_IMAGES = 8
"""Up to so many images, all draws run as one batched product ..."""
SMALL_DRAW = 1 << 24
"""... if the weights of a draw take no more bytes than this. `python -m benchmarks.one_image` compares both ways: one
product is faster up to AlexNet, with 9 MB of weights, and no longer for VGG16, with 60 MB."""
PAIR_MEMORY = 1 << 30
"""Bytes that the pair of draws for novelty may take, of a method that does not draw weights."""


Worker = TypeVar("Worker")


class Workers(Generic[Worker]):
    """Idle workers; threads never share one, and never wait for each other.

    >>> workers = Workers()
    >>> with workers.one(list) as first, workers.one(list) as second:
    ...     first is second
    False
    """

    def __init__(self) -> None:
        self._idle: list[Worker] = []

    @contextmanager
    def one(self, make: Callable[[], Worker]) -> Iterator[Worker]:
        """A worker that nobody else has meanwhile; a new one if all are busy."""
        try:
            worker = self._idle.pop()  # pop and append are atomic
        except IndexError:
            worker = make()
        try:
            yield worker
        finally:
            self._idle.append(worker)


class Draws(ABC):
    """Blocks of drawn outputs for batches of images.

    Attributes:
        samples: how many draws there are; 1 for a network that draws nothing.
        sampling: how they depend on each other.
    """

    samples: int
    sampling: Sampling
    _prototype: nn.Module

    @abstractmethod
    def outputs(self, batch: Tensor) -> Iterator[Tensor]:
        """Blocks of outputs (T, N, ...), whose numbers T of draws add up to `samples`."""

    def mean_network(self) -> nn.Module:
        """The plain network at the posterior mean, in evaluation mode; nobody may change it."""
        return to_deterministic(self._prototype).eval()

    def reference(self) -> WeightDraws:
        """The draws whose features novelty is measured in: the first pair of seed 0, without dropout; of a network that
        has nothing to draw, its only pass. These are the same for every method, seed and number of draws."""
        return WeightDraws(self._prototype, 2, 0, dropout=False, memory=PAIR_MEMORY, share=True)


class WeightDraws(Draws):
    """Draws of the weights in antithetic pairs, and of dropout masks where the network draws them."""

    def __init__(
        self, model: nn.Module, samples: int, seed: int, *, dropout: bool | None, memory: int, share: bool
    ) -> None:
        found = list(posteriors(model).values())
        self._drops_out = bool(drawn_dropout(model, dropout))
        self.samples = samples if found or self._drops_out else 1
        masks_alone = Sampling.INDEPENDENT if self._drops_out else Sampling.EXACT
        self.sampling = Sampling.ANTITHETIC if found else masks_alone
        self.weights = DrawnWeights(found, self.samples, seed, memory)
        self._mask_seeds = seeds_of(seed + 1, self.samples)
        network, slots = plain_network(model, share=share)
        fill(slots, {q: q.mean.detach() for q in found})  # stand-ins: some layers of torch keep lists of their weights
        self._prototype, self._slots = _frozen(network, share), slots
        self._dropout = dropout
        self._workers: Workers[_Worker] = Workers()
        self._stacks = not self._drops_out and self.weights.stacked is not None and self.samples > 1
        self._layers: tuple[Layer, ...] = ()
        self._is_reference = not self._drops_out and (not found or (seed == 0 and samples > 1))

    def watch(self, layers: Sequence[Layer]) -> None:
        """Read features at these layers from now on, where `outputs` is asked for them."""
        self._layers, self._workers = tuple(layers), Workers()

    def outputs(self, batch: Tensor, seen: list[Observed] | None = None) -> Iterator[Tensor]:
        """All draws at once for few images of a small network, otherwise one after the other.

        `seen` gets what the first two draws made of the images, averaged: outputs, and features at the watched layers.
        """
        small = self.weights.bytes_per_draw <= SMALL_DRAW
        if self._stacks and len(batch) <= FEW_IMAGES and small:
            with self._workers.one(self._make_worker) as worker:
                stacked = worker.stacked(batch, self.weights.stacked or {}, seen)
            if stacked is not None:
                yield stacked
                return
            self._stacks = False  # something in the network cannot be batched
        with self._workers.one(self._make_worker) as worker:
            yield from worker.one_by_one(batch, self.weights, self._mask_seeds, seen)

    def observed(self, batch: Tensor) -> Observed:
        """What the draws make of a batch, without a prediction."""
        seen: list[Observed] = []
        for _ in self.outputs(batch, seen):
            pass
        return seen[0]

    def networks(self, example: Tensor | None = None) -> list[nn.Module]:
        """A plain network for each draw; dropout masks are made for an `example` image."""
        if self._drops_out and example is None:
            raise OptionError("Networks that draw dropout masks need an example image to make masks for.")
        made = []
        draws = iter(self.weights)
        for seed in self._mask_seeds:
            network, slots = _copied(self._prototype, self._slots)
            network, masks = _with_masks(network, self._dropout)
            weights = next(draws, {})
            fill(slots, {q: nn.Parameter(w.clone(), requires_grad=False) for q, w in weights.items()})
            if masks is not None and example is not None:
                masks.fix(network, example, seed)
            made.append(network)
        return made

    def mean_network(self) -> nn.Module:
        """The network that draws fill, with the means in their places."""
        return self._prototype

    def reference(self) -> WeightDraws:
        """These draws, if they begin with that pair."""
        if self._is_reference:
            return self
        pair = copy.copy(self)
        pair._dropout, pair._drops_out, pair._is_reference = False, False, True
        drawn = self.weights.bytes_per_draw > 0
        pair.sampling, pair.samples = (Sampling.ANTITHETIC, 2) if drawn else (Sampling.EXACT, 1)
        pair.weights = self.weights.first_pair() if drawn else self.weights
        pair._mask_seeds, pair._stacks = self._mask_seeds[:1] * pair.samples, drawn
        pair.watch(())
        return pair

    def _make_worker(self) -> _Worker:
        return _Worker(*_copied(self._prototype, self._slots), self._dropout, self._layers)


def own_copy(model: nn.Module, share: bool) -> nn.Module:
    """The network with its posteriors, for nobody else; if asked, its parameters are those of the model."""
    return _frozen(shared_copy(model) if share else deep_copy(model), share)


def _frozen(network: nn.Module, shared: bool) -> nn.Module:
    """The network in evaluation mode, with parameters that do not learn, unless they are shared with a model."""
    return network.eval() if shared else network.eval().requires_grad_(False)


def _copied(network: nn.Module, slots: list[Slot]) -> tuple[nn.Module, list[Slot]]:
    """The network as an object of its own that shares its parameters, with the same places for weights."""
    names = {module: name for name, module in network.named_modules()}
    copied = shared_copy(network)
    return copied, [Slot(copied.get_submodule(names[slot.module]), slot.name, slot.posterior) for slot in slots]


class _Worker:
    """A plain network that takes one draw of the weights after the other."""

    def __init__(self, network: nn.Module, slots: list[Slot], dropout: bool | None, layers: Sequence[Layer]) -> None:
        self.slots = slots
        self.network, self._masks = _with_masks(network, dropout)
        self._reader = Reader(self.network, layers)
        masked = [part for part in self.network.modules() if isinstance(part, MaskedDropout)]
        drawn = {slot.module for slot in slots} | set(masked)
        self._memory = Remembering(self.network, drawn) if drawn else None

    def one_by_one(
        self, batch: Tensor, weights: DrawnWeights, seeds: list[int], seen: list[Observed] | None
    ) -> Iterator[Tensor]:
        given = _Unchanged(batch)
        draws: Iterator[Weights] = iter(weights)
        pair: list[Observed] = []
        last = min(2, len(seeds)) - 1
        try:
            for number, seed in enumerate(seeds):
                fill(self.slots, next(draws, {}))
                if self._masks is not None:
                    self._masks.begin_draw(seed)
                if self._memory is not None:
                    self._memory.begin_draw(first=number == 0)
                self._reader.reads = seen is not None and number <= last
                outputs = checked(self.network(given()), batch, self.network)
                if self._reader.reads:
                    pair.append(Observed(outputs, self._reader.features()))
                if seen is not None and number == last:
                    seen.append(Observed.mean(pair))
                yield outputs.unsqueeze(0)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Keep neither weights nor what a batch left behind: their memory must not wait for the garbage collector."""
        for module, name, _ in self.slots:
            module._parameters[name] = None
        if self._memory is not None:
            self._memory.forget()
        self._reader.forget()

    def stacked(self, batch: Tensor, weights: Weights, seen: list[Observed] | None) -> Tensor | None:
        """All draws in one go by torch's vmap, which computes once what no draw touches; None if it cannot be done."""
        names = {module: name for name, module in self.network.named_modules()}
        drawn = {f"{names[slot.module]}.{slot.name}".lstrip("."): weights[slot.posterior] for slot in self.slots}
        fill(self.slots, {q: w[0] for q, w in weights.items()})

        def one(draw: dict[str, Tensor]) -> tuple[Tensor, ...]:
            outputs: Tensor = torch.func.functional_call(self.network, draw, (batch.clone(),), tie_weights=False)
            return (outputs, *self._reader.features())

        self._reader.reads = seen is not None
        if self._memory is not None:
            self._memory.begin_draw(first=True)
        try:
            outputs, *features = torch.func.vmap(one)(drawn)
        except (RuntimeError, TypeError, ValueError):  # changes in place, or decisions by values
            return None
        else:
            if seen is not None:
                seen.append(Observed(outputs[:2].mean(0), tuple(part[:2].mean(0) for part in features)))
            return checked(outputs.flatten(0, 1), batch, self.network, len(outputs)).unflatten(0, outputs.shape[:2])
        finally:
            self._let_go()


def _with_masks(network: nn.Module, dropout: bool | None) -> tuple[nn.Module, Masks | None]:
    """The network with the dropout that it draws replaced by masks."""
    layers = drawn_dropout(network, dropout)
    if not layers:
        return network, None
    masks = Masks()
    return substitute(network, {id(layer): masks.drawn_by(layer) for layer in layers}), masks


class MeanDraws(WeightDraws):
    """The posterior mean: one draw, without epistemic uncertainty."""

    def __init__(self, model: nn.Module, *, share: bool) -> None:
        super().__init__(model, 1, 0, dropout=False, memory=0, share=share)
        self.sampling = Sampling.EXACT
        self.weights = DrawnWeights.at_mean(list(posteriors(model).values()))
        self._is_reference = not self.weights.stacked


class LocalDraws(Draws):
    """Draws of activations by the estimator ``local``, with noise that all images share."""

    def __init__(self, model: nn.Module, samples: int, seed: int, *, dropout: bool | None, share: bool) -> None:
        draws = bool(posteriors(model)) or bool(drawn_dropout(model, dropout))
        self.samples = samples if draws else 1
        self.sampling = Sampling.INDEPENDENT if draws else Sampling.EXACT
        self._seeds = seeds_of(seed, self.samples)
        self._mask_seeds = seeds_of(seed + 1, self.samples)  # masks and noise from one seed would depend on each other
        self._prototype = own_copy(model, share)
        self._dropout = dropout
        self._workers: Workers[tuple[nn.Module, Masks | None]] = Workers()

    def outputs(self, batch: Tensor) -> Iterator[Tensor]:
        """One draw after the other."""
        given = _Unchanged(batch)
        with self._workers.one(self._make_worker) as (network, masks):
            for seed, mask_seed in zip(self._seeds, self._mask_seeds, strict=True):
                generator = torch.Generator("cpu").manual_seed(seed)
                if masks is not None:
                    masks.begin_draw(mask_seed)
                with one_pass(generator), forced(network, _SharedNoise(generator)):
                    outputs = network(given())
                yield checked(outputs, batch, network).unsqueeze(0)

    def _make_worker(self) -> tuple[nn.Module, Masks | None]:
        return _with_masks(shared_copy(self._prototype), self._dropout)


@dataclass(frozen=True)
class _SharedNoise(Local):
    """The estimator ``local`` with the same noise for every image of a batch."""

    generator: torch.Generator

    def noise(self, output: Tensor) -> Tensor:
        """eps, with the shape of one image's output."""
        shape = output.shape[1:]
        eps = standard_normal(shape.numel(), torch.float32, output.device, self.generator).view(1, *shape)
        return eps.to(output.dtype).expand(output.shape)


class _Unchanged:
    """The same images for every draw, and for the caller, also if the network changes what it is given in place."""

    def __init__(self, batch: Tensor) -> None:
        self._batch = batch
        self._given = batch.clone()
        self._version = self._given._version

    def __call__(self) -> Tensor:
        """A copy, a new one only if the last is not what it was."""
        if self._given._version != self._version:
            self._given = self._batch.clone()
            self._version = self._given._version
        return self._given


def checked(outputs: object, batch: Tensor, model: nn.Module, draws: int = 1) -> Tensor:
    """The outputs if they are finite logits for every image; an error says what they are."""
    if not isinstance(outputs, Tensor):
        raise ShapeError(not_a_tensor(outputs, "predict"))
    if outputs.dim() < 2 or outputs.shape[0] != draws * batch.shape[0]:
        raise ShapeError(
            f"The model made outputs of shape {tuple(outputs.shape)} from inputs of shape {tuple(batch.shape)}, "
            "but logits need a batch and a class axis: (N, C)."
        )
    if not bool(outputs.isfinite().all()):
        if batch.is_floating_point() and not bool(batch.isfinite().all()):
            raise NonFiniteError("The inputs hold NaN or infinite values, so there is nothing to predict from.")
        raise NonFiniteError(f"The model's outputs are not finite: {describe_non_finite(model)}")
    return outputs
