"""`dubito models`: the networks, or one of them layer by layer."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from dubito.cli.failure import Debug
from dubito.cli.options import option, setting
from dubito.cli.terminal import Column, examples, numbers, print_table
from dubito.harmless import say

if TYPE_CHECKING:
    from torch import nn

EXAMPLES = examples("dubito models", "dubito models --model alexnet --classes 100 --channels 3")


@dataclass(frozen=True)
class _Layer:
    """One layer of a network, as it is called for one image."""

    name: str
    kind: str
    input: tuple[int, ...]
    output: tuple[int, ...]
    parameters: int
    multiplications: int


def models(
    model: Annotated[str | None, setting("NAME", "Network to show layer by layer.")] = None,
    classes: Annotated[int, setting("N", "Number of classes.", min=1)] = 10,
    channels: Annotated[int, setting("N", "Channels of the images: 1 (gray) or 3 (colour).", min=1)] = 1,
    size: Annotated[
        int | None,
        option("N", "Height and width of the images, in pixels.", default="the usual size of the network", min=1),
    ] = None,
    debug: Debug = False,
) -> None:
    """Show the networks with their layers, parameters and cost."""
    from dubito.models import names
    from dubito.models.building import find

    if model is not None:
        side = size or find(model).image_size
        _print_layers(_layers(model, classes, channels, side))
        sides = f"{channels} x {side} x {side} images"
    else:
        columns = numbers("pixels", "weight layers", "parameters", "Bayesian", "multiplications")
        rows = [_network_row(name, classes, channels, size or find(name).image_size) for name in names()]
        print_table([Column("network"), *columns], rows)
        sides = f"images with {channels} channel{'s' * (channels > 1)}"
    say(f"For {classes} classes and {sides}; multiplications of one image in one pass.")
    if model is None:
        say("Also: hf:FOLDER for an image classifier of Hugging Face, package.module:function for your own.")
    say("A Bayesian network has a mean and a standard deviation for each weight.")


def _build(name: str, classes: int, channels: int, size: int, inference: str) -> nn.Module:
    """A network, without memory for its weights if it is of the registry."""
    import torch

    from dubito.models import build, names

    with torch.device("meta") if name in names() else nullcontext():
        return build(name, classes, channels, inference, image_size=size).eval()


def _layers(name: str, classes: int, channels: int, size: int) -> list[_Layer]:
    """The layers that one image passes through, in their order."""
    import torch

    network = _build(name, classes, channels, size, "frequentist")
    found: list[_Layer] = []

    def note(path: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            parameters = sum(parameter.numel() for parameter in module.parameters())
            weight = getattr(module, "weight", None)
            # Each output of a linear map needs one row of the weight; vectors belong to normalisations.
            rows = output.numel() // weight.shape[0] if weight is not None and weight.dim() > 1 else 0
            cost = rows * weight.numel() if rows and weight is not None else 0
            shapes = tuple(inputs[0].shape[1:]), tuple(output.shape[1:])
            found.append(_Layer(path, _kind(module), *shapes, parameters, cost))

        return hook

    for path, module in network.named_modules():
        if not list(module.children()):
            module.register_forward_hook(note(path))
    with torch.no_grad():
        network(torch.zeros(1, channels, size, size, device=next(network.parameters()).device))
    return found


def _kind(module: nn.Module) -> str:
    """A layer's type, with its kernel, stride and padding if it has them."""
    details = []
    for name, title in (("kernel_size", ""), ("stride", "stride "), ("padding", "padding ")):
        value = getattr(module, name, None)
        if value is not None:
            sides = value if isinstance(value, tuple) else (value, value)
            details.append(title + ("x".join(map(str, sides)) if not title else str(sides[0])))
    return " ".join([type(module).__name__, ", ".join(details)]).strip()


def _network_row(name: str, classes: int, channels: int, size: int) -> tuple[str, ...]:
    bayesian = sum(part.numel() for part in _build(name, classes, channels, size, "vi").parameters())
    layers = _layers(name, classes, channels, size)
    parameters, cost = (sum(getattr(layer, of) for layer in layers) for of in ("parameters", "multiplications"))
    weights = sum(layer.multiplications > 0 for layer in layers)
    return (name, *(f"{number:,}" for number in (size, weights, parameters, bayesian, cost)))


def _print_layers(layers: list[_Layer]) -> None:
    texts = (Column("layer"), Column("type", fold=True), Column("input"), Column("output"))
    rows = [
        (layer.name, layer.kind, _dimensions(layer.input), _dimensions(layer.output), *_counts(layer))
        for layer in layers
    ]
    total = f"{sum(s.parameters for s in layers):,}", f"{sum(s.multiplications for s in layers):,}"
    print_table([*texts, *numbers("parameters", "multipl.")], [*rows, ("total", "", "", "", *total)])


def _counts(layer: _Layer) -> tuple[str, str]:
    return f"{layer.parameters:,}" * (layer.parameters > 0), f"{layer.multiplications:,}" * (layer.multiplications > 0)


def _dimensions(shape: tuple[int, ...]) -> str:
    return "x".join(str(side) for side in shape)
