"""Where in a network features are read: after its stages, and before its last linear layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dubito.convert.copying import shared_copy
from dubito.errors import RunError

STAGES = 3
"""Stages of feature maps that are looked at, the last ones."""
VECTORS = 2
"""Inputs of linear layers that are looked at, the last ones."""
CELLS = (4, 2, 1)
"""Feature maps are averaged over a grid of so many cells each way ..."""
WIDEST = 512
"""... the finest one with which they have at most so many features."""
LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Layer:
    """A place in a network.

    Attributes:
        module: the name of a module; empty for the network itself.
        side: ``input`` or ``output`` of that module.
        cells: feature maps are averaged over a grid of cells x cells; what has no height and width is kept as it is.
    """

    module: str
    side: str
    cells: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.module, str) or self.side not in ("input", "output") or type(self.cells) is not int:
            raise ValueError("one of its layers is not a description of a layer")
        if self.cells < 1:
            raise ValueError(f"a layer of it has {self.cells} cells")

    def __str__(self) -> str:
        grid = f", {self.cells} x {self.cells} cells" if self.cells > 1 else ""
        return f"{self.side} of {self.module or 'the network'}{grid}"


class Observed(NamedTuple):
    """What a network made of images: its outputs, and the features at each layer."""

    outputs: Tensor
    features: tuple[Tensor, ...]

    def at(self, places: Sequence[int]) -> Observed:
        """The same with some of the layers alone."""
        return Observed(self.outputs, tuple(self.features[place] for place in places))

    def images(self, index: Tensor) -> Observed:
        """The same for some of the images alone."""
        return Observed(self.outputs[index], tuple(part[index] for part in self.features))

    @staticmethod
    def cat(parts: Sequence[Observed]) -> Observed:
        """Several batches as one."""
        features = tuple(torch.cat(rows) for rows in zip(*(part.features for part in parts), strict=True))
        return Observed(torch.cat([part.outputs for part in parts]), features)

    @staticmethod
    def mean(draws: Sequence[Observed]) -> Observed:
        """Several draws of the same images, averaged."""
        features = tuple(torch.stack(each).mean(0) for each in zip(*(draw.features for draw in draws), strict=True))
        return Observed(torch.stack([draw.outputs for draw in draws]).mean(0), features)


class Reader:
    """Reads the features of a network while it runs; the network must be nobody else's.

    Attributes:
        reads: whether it does; the features of a call are kept until the next one.
    """

    def __init__(self, network: nn.Module, layers: Sequence[Layer]) -> None:
        self.reads = True
        self._layers = tuple(layers)
        self._seen: dict[Layer, Tensor] = {}
        for layer in layers:
            module = _part(network, layer)
            if layer.side == "input":
                module.register_forward_pre_hook(self._hook(layer))
            else:
                module.register_forward_hook(self._hook(layer))

    def features(self) -> tuple[Tensor, ...]:
        """The features at each layer; of a module that ran several times, those of the last time."""
        return tuple(self._seen[layer] for layer in self._layers) if self.reads else ()

    def forget(self) -> None:
        """Keep nothing."""
        self._seen.clear()

    def _hook(self, layer: Layer) -> Any:
        def read(module: nn.Module, given: tuple[Any, ...], made: Any = None) -> None:
            if self.reads:
                self._seen[layer] = pooled(given[0] if layer.side == "input" else made, layer.cells)

        return read


class Observer(nn.Module):
    """A network that also gives its features; it works with a copy that shares the parameters.

    >>> network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 5))
    >>> observed = Observer(network, [Layer("1", "output", 2), Layer("3", "input")])(torch.zeros(7, 1, 8, 8))
    >>> observed.outputs.shape, [part.shape[1] for part in observed.features]
    (torch.Size([7, 5]), [12, 108])
    """

    def __init__(self, network: nn.Module, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.network = shared_copy(network).eval()
        self._reader = Reader(self.network, layers)

    def forward(self, images: Tensor) -> Observed:
        """Outputs and features."""
        outputs = self.network(images)
        seen = Observed(outputs, self._reader.features())
        self._reader.forget()
        return seen


def _part(network: nn.Module, layer: Layer) -> nn.Module:
    try:
        return network.get_submodule(layer.module)
    except AttributeError:
        raise RunError(
            f"Novelty was fitted on the {layer}, which this network does not have: fit it again for this network."
        ) from None


def pooled(values: Tensor, cells: int) -> Tensor:
    """Features (N, D) in float32: maps averaged over a grid, other axes after the second over all of them.

    >>> pooled(torch.arange(16.0).view(1, 1, 4, 4), 2)
    tensor([[ 2.5000,  4.5000, 10.5000, 12.5000]])
    """
    values = values.float()
    if values.dim() == 4:
        rows, columns = (_averaging(size, cells, values) for size in values.shape[2:])
        return (rows.T @ values @ columns).flatten(1)
    if values.dim() == 3:  # tokens: (N, T, D)
        return values.mean(1)
    return values if values.dim() == 2 else values.flatten(2).mean(2)


def _averaging(size: int, cells: int, like: Tensor) -> Tensor:
    """The matrix (size, cells) that averages over cells, as adaptive average pooling does; any runtime has products."""
    cells = min(size, cells)
    matrix = torch.zeros(size, cells)
    for cell in range(cells):
        start, end = cell * size // cells, -(-(cell + 1) * size // cells)
        matrix[start:end, cell] = 1 / (end - start)
    return matrix.to(like.device)


class _Call(NamedTuple):
    name: str
    module: nn.Module
    given: tuple[int, ...]
    made: tuple[int, ...]


def find_layers(network: nn.Module, images: Tensor) -> list[Layer]:
    """The layers whose features may tell familiar images from others, the one before the last linear layer at the end.

    Modules are watched while the network looks at a few `images`: the last feature maps of each size, of the last
    stages; the inputs of the last linear layers. A network that calls no such module has its outputs alone.
    """
    calls = [call for call in _calls(network, images) if call.name]
    linear = [call for call in calls if isinstance(call.module, LINEAR)]
    stages = {call.made[2:]: call for call in calls if len(call.made) == 4 and max(call.made[2:]) > 1}
    found = [_stage(call) for call in list(stages.values())[-STAGES:]]
    vectors = [call for call in linear if len(call.given) == 2][-VECTORS:]
    found += [Layer(call.name, "input") for call in vectors]
    if linear and (not vectors or vectors[-1] is not linear[-1]):
        found.append(Layer(linear[-1].name, "input"))
    return found or [Layer("", "output")]


def multiplications(network: nn.Module, images: Tensor) -> int:
    """How many multiplications the linear layers of a network make for one image.

    >>> multiplications(nn.Conv2d(1, 2, 3), torch.zeros(1, 1, 5, 5))
    162
    """
    calls = [call for call in _calls(network, images) if isinstance(call.module, LINEAR)]
    return sum(_weights(call.module) * math.prod(call.made[1:]) // call.made[_channel_axis(call)] for call in calls)


def _weights(module: nn.Module) -> int:
    weight = module._parameters.get("weight")  # which need not be a Parameter
    return 0 if weight is None else weight.numel()


def _channel_axis(call: _Call) -> int:
    return -1 if isinstance(call.module, nn.Linear) else 1


def _stage(call: _Call) -> Layer:
    cells = next((cells for cells in CELLS if call.made[1] * cells**2 <= WIDEST), 1)
    return Layer(call.name, "output", cells)


def _calls(network: nn.Module, images: Tensor) -> list[_Call]:
    """The calls of modules in the order of their ends: one tensor in, one tensor out, both with the images' axis."""
    found: list[_Call] = []
    watched = shared_copy(network).eval()
    count = len(images)

    def note(name: str) -> Any:
        def hook(module: nn.Module, given: tuple[Any, ...], made: Any) -> None:
            tensors = (given[0] if given else None, made)
            if all(isinstance(t, Tensor) and t.dim() > 1 and len(t) == count for t in tensors):
                found.append(_Call(name, module, tuple(tensors[0].shape), tuple(made.shape)))  # type: ignore[union-attr]

        return hook

    for name, module in watched.named_modules():
        module.register_forward_hook(note(name))
    with torch.no_grad():
        watched(images.clone())
    return found
