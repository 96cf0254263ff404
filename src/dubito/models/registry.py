"""The registry of networks: a name, and a function that builds the network.

A new network is one file with one function:

    @register("mine")
    def mine(plan: Plan) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(plan.in_channels * plan.image_size**2, plan.num_outputs))

It may return a network of plain torch layers: :func:`dubito.models.build` makes the Bayesian twin of it and attaches
the head. The command line, the documentation and the tests read :func:`names`.

A network that can have another nonlinearity or normalisation says which ones it has unless asked:
``@register("mine", activation="relu", norm="batch")``. Without, asking for another one is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from torch import nn

from dubito.errors import OptionError, choose, unknown
from dubito.heads import Head
from dubito.layers import BayesianOptions
from dubito.models.parts import Activation, Norm


class Inference(str, Enum):
    """How a network is trained."""

    VI = "vi"
    FREQUENTIST = "frequentist"
    DROPOUT = "dropout"


@dataclass(frozen=True)
class Plan:
    """What a network is to be built for.

    Attributes:
        num_classes: the number of classes.
        num_outputs: the width of the last layer; the head decides it.
        in_channels: 1 for gray images, 3 for colour.
        image_size: height and width of the images.
        inference: how the network will be trained.
        activation: the nonlinearity; ``own`` for a network that has no choice of it.
        head: how outputs become probabilities.
        dropout: the probability of dropping a unit, with inference ``dropout``.
        bayesian: options of the Bayesian layers, with inference ``vi``.
        norm: how channels are normalised; ``own`` for a network that has no choice of it.
    """

    num_classes: int
    num_outputs: int
    in_channels: int
    image_size: int
    inference: Inference
    activation: Activation
    head: Head
    dropout: float
    bayesian: BayesianOptions = field(default_factory=lambda: BayesianOptions())
    norm: Norm = Norm.OWN


Builder = Callable[[Plan], nn.Module]


@dataclass(frozen=True)
class Entry:
    """How a network is built.

    Attributes:
        build: makes it for a plan.
        activation: the nonlinearity that it has unless asked, None if there is no choice.
        norm: the normalisation that it has unless asked, None if there is no choice.
        image_size: the size of images that it is usually used for.
        chooses: whether `build` itself looks at nonlinearity and normalisation, and refuses what it does not have.
        channels_last: whether training is faster with images in that memory format.
    """

    build: Builder
    activation: Activation | None = None
    norm: Norm | None = None
    image_size: int = 32
    chooses: bool = False
    channels_last: bool = False


_ENTRIES: dict[str, Entry] = {}


def register(
    name: str,
    *,
    activation: str | None = None,
    norm: str | None = None,
    image_size: int = 32,
    channels_last: bool = False,
) -> Callable[[Builder], Builder]:
    """Register the decorated function as the builder of the network `name`; see :class:`Entry` for the options.

    >>> @register("one layer")
    ... def one_layer(plan: Plan) -> nn.Module:
    ...     return nn.Sequential(nn.Flatten(), nn.Linear(plan.in_channels * plan.image_size**2, plan.num_outputs))
    >>> "one layer" in names()
    True
    >>> del _ENTRIES["one layer"]
    """

    def keep(build: Builder) -> Builder:
        if name in _ENTRIES:
            raise OptionError(f"There is a network {name!r} already; choose another name.")
        own_activation = None if activation is None else choose(Activation, activation, "activation")
        own_norm = None if norm is None else choose(Norm, norm, "norm")
        _ENTRIES[name] = Entry(build, own_activation, own_norm, image_size, channels_last=channels_last)
        return build

    return keep


def names() -> tuple[str, ...]:
    """The names of all networks, in the order of their registration.

    >>> names()[:3]
    ('lenet5', 'alexnet', 'vgg16')
    """
    return tuple(_ENTRIES)


def registered(name: str) -> Entry:
    """The entry of that name; an unknown name lists the valid ones."""
    if name not in _ENTRIES:
        others = " Or give hf:FOLDER, or package.module:function."
        raise OptionError(unknown("model", name, names()) + others)
    return _ENTRIES[name]


def prefers_channels_last(name: str) -> bool:
    """Whether training is faster with images in that memory format; of networks from elsewhere this is not known."""
    return name in _ENTRIES and _ENTRIES[name].channels_last
