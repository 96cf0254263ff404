"""The registry of networks: a name, and a function that builds the network.

A new network is one file with one function:

    @register("mine")
    def mine(plan: Plan) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(plan.in_channels * plan.image_size**2, plan.num_outputs))

It may return a network of plain torch layers: :func:`dubito.models.build` makes the Bayesian twin of it and attaches
the head. The command line, the documentation and the tests read :func:`names`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from torch import nn

from dubito.errors import OptionError, unknown
from dubito.heads import Head
from dubito.layers import BayesianOptions
from dubito.models.parts import Activation, Norm

__all__ = ["Builder", "Inference", "Plan", "builder", "names", "register"]


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
        activation: the nonlinearity.
        head: how outputs become probabilities.
        dropout: the probability of dropping a unit, with inference ``dropout``.
        bayesian: options of the Bayesian layers, with inference ``vi``.
        norm: how channels are normalised, in networks that do so.
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
    norm: Norm = Norm.BATCH


Builder = Callable[[Plan], nn.Module]

_BUILDERS: dict[str, Builder] = {}


def register(name: str) -> Callable[[Builder], Builder]:
    """Register the decorated function as the builder of the network `name`.

    >>> @register("one layer")
    ... def one_layer(plan: Plan) -> nn.Module:
    ...     return nn.Sequential(nn.Flatten(), nn.Linear(plan.in_channels * plan.image_size**2, plan.num_outputs))
    >>> "one layer" in names()
    True
    >>> del _BUILDERS["one layer"]
    """

    def keep(build: Builder) -> Builder:
        if name in _BUILDERS:
            raise OptionError(f"There is a network {name!r} already; choose another name.")
        _BUILDERS[name] = build
        return build

    return keep


def names() -> tuple[str, ...]:
    """The names of all networks, in the order of their registration.

    >>> names()[:3]
    ('lenet5', 'alexnet', 'vgg16')
    """
    return tuple(_BUILDERS)


def builder(name: str) -> Builder:
    """The function that builds the network of that name; an unknown name lists the valid ones."""
    if name not in _BUILDERS:
        raise OptionError(unknown("model", name, names()))
    return _BUILDERS[name]
