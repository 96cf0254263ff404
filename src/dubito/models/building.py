"""Building a network for a number of classes, an image size and a kind of inference."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from dubito.convert import Logits, freeze_parameters, last_layer, patterns_of, to_bayesian
from dubito.convert.candidates import choose_parameters
from dubito.errors import DubitoError, OptionError, choose
from dubito.heads import Head, attach_head, get_head
from dubito.layers import BayesianOptions, BayesLayer
from dubito.models.hugging_face import PREFIX, hugging_face
from dubito.models.imported import imported, is_imported
from dubito.models.initialization import initialize
from dubito.models.parts import Activation, Norm
from dubito.models.recipe import remembered
from dubito.models.registry import Entry, Inference, Plan, registered
from dubito.models.weights import load_weights, read_weights
from dubito.variational.posterior import posteriors

ALL, LAST, NONE = "all", "last", "none"

_WORDS = {"bayesian": "all or last", "freeze": "none"}
"""What options may be in place of patterns."""


@remembered
def build(
    name: str,
    num_classes: int = 10,
    in_channels: int = 3,
    inference: str = "vi",
    image_size: int = 32,
    *,
    activation: str = "own",
    head: str | Head = "softplus",
    dropout: float = 0.5,
    norm: str = "own",
    bayesian: str = ALL,
    freeze: str = NONE,
    init: str | os.PathLike[str] | Mapping[str, Tensor] = NONE,
    relative_std: float = 0.0,
    **options: Unpack[BayesianOptions],
) -> nn.Module:
    """Build a network by its name, with initial weights.

    Args:
        name: one of :func:`dubito.models.names`; ``hf:FOLDER_OR_NAME`` for an image classifier of Hugging Face (see
            :mod:`dubito.models.hugging_face`); or ``package.module:function`` for one of your own (see
            :mod:`dubito.models.imported`).
        num_classes: the number of classes.
        in_channels: 1 for gray images, 3 for colour.
        inference: ``vi`` (Bayesian layers), ``frequentist`` (point estimates) or ``dropout`` (MC dropout).
        image_size: height and width of the images.
        activation: ``relu``, ``silu``, ...: see :class:`dubito.models.Activation`; ``own`` is what the network has
            usually, softplus for those of the paper.
        head: ``softplus``, ``softmax`` or ``kendall_gal``; it becomes the network's own.
        dropout: the probability of dropping a unit, with inference ``dropout``.
        norm: of residual networks: ``batch``, ``group`` or ``frn`` (filter response normalisation).
        bayesian: which layers have posteriors, with inference ``vi``: ``all``; ``last``, the one that makes the logits;
            or patterns of names, separated by commas, as :func:`dubito.to_bayesian` has them.
        freeze: patterns of names, separated by commas, of modules and parameters that do not learn, or ``none``. They
            have no posteriors.
        init: trained weights: a .safetensors file, a state dict or its file, a run folder, or ``none``. They become the
            means of the posterior, and of an empirical prior. A last layer for another number of classes starts
            untrained; the attribute `left_fresh` of the network names its parameters.
        relative_std: the standard deviation that weights start with, as a share of the root mean square of their
            tensor; 0 takes the option `initial_std`.
        options: of the Bayesian layers, with inference ``vi``.

    >>> import torch
    >>> model = build("lenet5", num_classes=7, in_channels=1, image_size=28)
    >>> model(torch.randn(2, 1, 28, 28)).shape
    torch.Size([2, 7])
    >>> [name for name, part in build("resnet20", bayesian="last").named_modules() if isinstance(part, BayesLayer)]
    ['fc']
    """
    entry = find(name)
    kind = choose(Inference, inference, "inference")
    chosen = _classifying(get_head(head))
    for what, number in (("num_classes", num_classes), ("in_channels", in_channels), ("image_size", image_size)):
        if number < 1:
            raise OptionError(f"{what} is {number}, but must be at least 1.")
    if not 0 <= dropout < 1:
        raise OptionError(f"dropout is {dropout}, but must be at least 0 and below 1.")
    given = [*options, *(["bayesian"] * (bayesian != ALL)), *(["relative_std"] * (relative_std != 0))]
    if given and kind is not Inference.VI:
        raise OptionError(f"{', '.join(given)} only make sense with inference='vi', but it is {inference!r}.")
    how, normed = _parts(name, entry, activation, norm)
    outputs = chosen.num_outputs(num_classes)
    plan = Plan(num_classes, outputs, in_channels, image_size, kind, how, chosen, dropout, options, normed)
    tensors = _tensors(init)
    # Weights to start from, and a choice of layers, are for the plain network, which is converted afterwards.
    plain = bayesian != ALL or freeze != NONE or tensors is not None
    network = entry.build(replace(plan, inference=Inference.FREQUENTIST) if plain and kind is Inference.VI else plan)
    network, classifier = _probed(name, network, plan, needed=plain or is_elsewhere(name))
    initialize(network)
    fresh = getattr(network, "left_fresh", [])
    if tensors is not None:
        fresh = load_weights(network, tensors, "init" if isinstance(init, Mapping) else str(init), classifier)
    if freeze != NONE:
        freeze_parameters(network, _patterns("freeze", freeze, network))
    network = _finished(network, plan, bayesian, classifier)
    network.left_fresh = fresh  # type: ignore[assignment]
    set_relative_std(network, relative_std)
    return network.train()


def find(name: str) -> Entry:
    """How the network of that name is built; an unknown name lists the valid ones."""
    if not is_elsewhere(name):
        return registered(name)
    make = hugging_face(name) if name.startswith(PREFIX) else imported(name)
    return Entry(make, image_size=224, chooses=True)


def is_elsewhere(name: str) -> bool:
    """Whether a name is not of the registry's form: ``hf:...`` or ``package.module:function``."""
    return name.startswith(PREFIX) or is_imported(name)


def _tensors(init: str | os.PathLike[str] | Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
    """The weights to start from, if any."""
    if isinstance(init, Mapping):
        return init
    return None if str(init) == NONE else read_weights(init)


@torch.no_grad()
def set_relative_std(network: nn.Module, share: float) -> None:
    """Give every weight with a posterior the standard deviation share * sqrt(mean of w^2) of its tensor, keeping means.

    A tensor of zeros, such as a fresh bias, and a share of 0 keep the standard deviations that they have.
    """
    for q in posteriors(network).values():
        size = 0.0 if q.mean.is_meta or not share else float(q.mean.square().mean().sqrt())
        if size > 0:
            q.set_std(share * size)


def _parts(name: str, entry: Entry, activation: str, norm: str) -> tuple[Activation, Norm]:
    """The nonlinearity and the normalisation of a network; a choice that it does not have is refused."""
    how, normed = choose(Activation, activation, "activation"), choose(Norm, norm, "norm")
    if entry.chooses:  # it is asked itself
        return how, normed
    for what, asked, own in (("activation", how, entry.activation), ("norm", normed, entry.norm)):
        if own is None and asked.value != "own":
            raise OptionError(f"{what} is {asked.value!r}, but {name} cannot change it: leave it out.")
    how = entry.activation or how if how is Activation.OWN else how
    return how, entry.norm or normed if normed is Norm.OWN else normed


def _probed(name: str, network: nn.Module, plan: Plan, needed: bool) -> tuple[nn.Module, str | None]:
    """The network, so wrapped that it returns logits, and the name of the layer that makes them.

    It is called with one black image; a network whose outputs are not those of the plan is refused.
    """
    if not needed:
        return network, None
    where = next((p.device for p in network.parameters()), torch.device("cpu"))
    image = torch.zeros(1, plan.in_channels, plan.image_size, plan.image_size, device=where)
    try:
        classifier, output = last_layer(network.eval(), image)
        if not isinstance(output, Tensor):
            network = Logits(network).eval()
            classifier, output = last_layer(network, image)
    except DubitoError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        shape = " x ".join(map(str, image.shape[1:]))
        raise OptionError(f"{name} does not take {shape} images: {reason}.") from error
    if tuple(output.shape) != (1, plan.num_outputs):
        raise OptionError(
            f"{name} makes outputs of shape {tuple(output.shape)} of one image, but {plan.num_classes} classes with "
            f"the head {plan.head.name} need (1, {plan.num_outputs})."
        )
    return network.train(), classifier


def _finished(network: nn.Module, plan: Plan, bayesian: str, classifier: str | None) -> nn.Module:
    """The network with Bayesian layers if it is to have them, a head, and what is known about it."""
    if plan.inference is Inference.VI and not any(isinstance(layer, BayesLayer) for layer in network.modules()):
        network = to_bayesian(network, only=_choice(network, bayesian, classifier), inplace=True, **plan.bayesian)
    wants_dropout = plan.inference is Inference.DROPOUT and plan.dropout > 0
    if wants_dropout and not any(_drops(layer) for layer in network.modules()):
        raise OptionError("inference is 'dropout', but the network has no dropout layer that drops anything.")
    attach_head(network, plan.head)
    network.num_classes = plan.num_classes  # type: ignore[assignment]
    network.draws_dropout = plan.inference is Inference.DROPOUT  # type: ignore[assignment]
    return network


def _drops(layer: nn.Module) -> bool:
    return isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0


def _choice(network: nn.Module, bayesian: str, classifier: str | None) -> list[str] | None:
    """Which layers get posteriors, as `to_bayesian` takes it: none that is frozen."""
    if bayesian == ALL:
        only = None
    elif bayesian == LAST:
        assert classifier is not None
        only = [classifier]
    else:
        only = _patterns("bayesian", bayesian, network)
        choose_parameters(network, only, False, option="bayesian")  # refuses what picks nothing, by its name here
    if all(parameter.requires_grad for parameter in network.parameters()):
        return only
    picked = choose_parameters(network, only, False)
    learning = [
        f"{module}.{name}".lstrip(".")
        for module, own in picked.items()
        for name in own
        if network.get_submodule(module).get_parameter(name).requires_grad
    ]
    if not learning:
        raise OptionError(f"bayesian is {bayesian!r}, but all of these layers are frozen: freeze fewer.")
    return learning


def _patterns(option: str, text: str, network: nn.Module) -> list[str]:
    """The patterns of an option. Users know the layers of a wrapped network by the names that they have inside."""
    patterns = patterns_of(text)
    if not patterns:
        raise OptionError(
            f"{option} is {text!r}, but must be patterns of names such as 'layer4,fc', or {_WORDS[option]}."
        )
    if not isinstance(network, Logits):
        return patterns
    return [pattern if pattern.startswith("model.") else f"model.{pattern}" for pattern in patterns]


def _classifying(head: Head) -> Head:
    if not head.classifies:
        raise OptionError(f"head is {head.name!r}, but this is a classifier: use softplus, softmax or kendall_gal.")
    return head
