"""The paper's networks, built from their tables: Bayesian, frequentist and dropout networks alike."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from torch import Tensor, nn

from dubito.errors import ShapeError
from dubito.heads import attach_head
from dubito.layers import BayesConv2d, BayesLinear
from dubito.models.architecture import ARCHITECTURES, Architecture, Convolution, MaxPooling, Row, Shape
from dubito.models.parts import activation_layer
from dubito.models.registry import Inference, Plan, register


class Network(nn.Sequential):
    """A network built from an architecture's table; its layers run one after the other."""

    def __init__(self, table: Architecture, plan: Plan) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        shapes = table.shapes(plan.in_channels, plan.num_outputs, plan.image_size)
        for number, shape in enumerate(shapes, start=1):
            if len(shape.input) == 1 and "flatten" not in layers:
                layers["flatten"] = nn.Flatten()
            layers[f"{_kind(shape.row)}{number}"] = _layer(shape, plan)
            if not isinstance(shape.row, MaxPooling) and number < len(shapes):
                layers[f"activation{number}"] = activation_layer(plan.activation)
            if plan.inference is Inference.DROPOUT and number in table.dropout_after:
                layers[f"dropout{number}"] = nn.Dropout(plan.dropout)
        super().__init__(layers)
        self.num_classes = plan.num_classes
        self.in_channels = plan.in_channels
        self.image_size = plan.image_size
        self.inference = plan.inference
        attach_head(self, plan.head)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for a batch of images."""
        wanted = (self.in_channels, self.image_size, self.image_size)
        if x.dim() != 4 or tuple(x.shape[1:]) != wanted:
            raise ShapeError(
                f"The images have shape {tuple(x.shape)}, but the network takes (N, {', '.join(map(str, wanted))}): "
                "scale or pad them, as dubito.data does, or build the network with another image_size."
            )
        if not x.is_floating_point():
            raise ShapeError(
                f"The images are of {x.dtype}, but the network takes floats, normalised as in its training: "
                "dubito.data.normalize(images, run.data.mean, run.data.std) makes them from bytes."
            )
        outputs: Tensor = super().forward(x)
        return outputs


def _kind(row: Row) -> str:
    if isinstance(row, Convolution):
        return "convolution"
    return "pooling" if isinstance(row, MaxPooling) else "linear"


def _layer(shape: Shape, plan: Plan) -> nn.Module:
    """The layer of one row."""
    row, bayesian = shape.row, plan.inference is Inference.VI
    if isinstance(row, MaxPooling):
        return nn.MaxPool2d(row.kernel, row.stride)
    if isinstance(row, Convolution):
        options = (shape.input[0], row.width, row.kernel, row.stride, row.padding)
        return BayesConv2d(*options, **plan.bayesian) if bayesian else nn.Conv2d(*options)
    sizes = (shape.input[0], shape.output[0])
    return BayesLinear(*sizes, **plan.bayesian) if bayesian else nn.Linear(*sizes)


for _table in ARCHITECTURES.values():
    register(_table.name, activation="softplus")(partial(Network, _table))
