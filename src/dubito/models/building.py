"""Building a network of the registry for a number of classes, an image size and a kind of inference."""

from __future__ import annotations

from torch import nn
from typing_extensions import Unpack

from dubito.convert import to_bayesian
from dubito.errors import OptionError, choose
from dubito.heads import Head, attach_head, get_head
from dubito.layers import BayesianOptions, BayesLayer
from dubito.models.initialization import initialize
from dubito.models.parts import Activation, Norm
from dubito.models.recipe import remembered
from dubito.models.registry import Inference, Plan, builder

__all__ = ["build"]


@remembered
def build(
    name: str,
    num_classes: int = 10,
    in_channels: int = 3,
    inference: str = "vi",
    image_size: int = 32,
    *,
    activation: str = "softplus",
    head: str | Head = "softplus",
    dropout: float = 0.5,
    norm: str = "batch",
    **bayesian: Unpack[BayesianOptions],
) -> nn.Module:
    """Build a network by its name, initialised so that it learns.

    Args:
        name: one of :func:`dubito.models.names`.
        num_classes: the number of classes.
        in_channels: 1 for gray images, 3 for colour.
        inference: ``vi`` (Bayesian layers), ``frequentist`` (point estimates) or ``dropout`` (MC dropout).
        image_size: height and width of the images.
        activation: ``softplus`` as in the paper, ``relu``, ``silu``, ...: see :class:`dubito.models.Activation`.
        head: ``softplus``, ``softmax`` or ``kendall_gal``; it becomes the network's own.
        dropout: the probability of dropping a unit, with inference ``dropout``.
        norm: of residual networks: ``batch``, ``group`` or ``frn`` (filter response normalisation).
        bayesian: options of the Bayesian layers, with inference ``vi``.

    >>> import torch
    >>> model = build("lenet5", num_classes=7, in_channels=1, image_size=28)
    >>> model(torch.randn(2, 1, 28, 28)).shape
    torch.Size([2, 7])
    """
    make = builder(name)
    kind = choose(Inference, inference, "inference")
    chosen = _classifying(get_head(head))
    for what, number in (("num_classes", num_classes), ("in_channels", in_channels), ("image_size", image_size)):
        if number < 1:
            raise OptionError(f"{what} is {number}, but must be at least 1.")
    if not 0 <= dropout < 1:
        raise OptionError(f"dropout is {dropout}, but must be at least 0 and below 1.")
    if bayesian and kind is not Inference.VI:
        raise OptionError(f"{', '.join(bayesian)} only make sense with inference='vi', but it is {inference!r}.")
    outputs, how = chosen.num_outputs(num_classes), choose(Activation, activation, "activation")
    normed = choose(Norm, norm, "norm")
    plan = Plan(num_classes, outputs, in_channels, image_size, kind, how, chosen, dropout, bayesian, normed)
    network = _finished(make(plan), plan)
    initialize(network)
    return network


def _finished(network: nn.Module, plan: Plan) -> nn.Module:
    """The builder's network with Bayesian layers if it is to have them, a head, and what is known about it."""
    if plan.inference is Inference.VI and not any(isinstance(layer, BayesLayer) for layer in network.modules()):
        network = to_bayesian(network, **plan.bayesian)
    attach_head(network, plan.head)
    network.num_classes = plan.num_classes  # type: ignore[assignment]
    network.draws_dropout = plan.inference is Inference.DROPOUT  # type: ignore[assignment]
    return network


def _classifying(head: Head) -> Head:
    if not head.classifies:
        raise OptionError(f"head is {head.name!r}, but these networks classify: use softplus, softmax or kendall_gal.")
    return head
