"""Building a network from its table: Bayesian, frequentist and dropout twins alike."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum

from torch import Tensor, nn
from torch.nn import Conv2d, Softplus
from typing_extensions import Unpack

from dubito.errors import OptionError, ShapeError, choose
from dubito.heads import ClassificationHead, Head, attach_head, get_head
from dubito.layers import BayesConv2d, BayesianOptions, BayesLinear
from dubito.models.architecture import IMAGE_SIZE, Architecture, Convolution, MaxPooling, architecture
from dubito.models.initialization import initialize

__all__ = ["Activation", "Inference", "Network", "build"]


class Inference(str, Enum):
    """How a network is trained."""

    VI = "vi"
    FREQUENTIST = "frequentist"
    DROPOUT = "dropout"


class Activation(str, Enum):
    """The nonlinearity after every layer but the last."""

    SOFTPLUS = "softplus"
    RELU = "relu"


class Network(nn.Sequential):
    """A network built from an architecture's table; its layers run one after the other."""

    def __init__(
        self,
        table: Architecture,
        num_classes: int,
        in_channels: int,
        inference: Inference,
        activation: Activation,
        head: ClassificationHead,
        dropout: float,
        bayesian: BayesianOptions,
    ) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        shapes = table.shapes(in_channels, head.num_outputs(num_classes))
        for number, shape in enumerate(shapes, start=1):
            row = shape.row
            if isinstance(row, Convolution):
                options = (shape.input[0], row.width, row.kernel, row.stride, row.padding)
                layers[f"convolution{number}"] = (
                    BayesConv2d(*options, **bayesian) if inference is Inference.VI else Conv2d(*options)
                )
            elif isinstance(row, MaxPooling):
                layers[f"pooling{number}"] = nn.MaxPool2d(row.kernel, row.stride)
            else:
                if len(shapes[number - 2].output) == 3:
                    layers["flatten"] = nn.Flatten()
                sizes = (shape.input[0], shape.output[0])
                layers[f"linear{number}"] = (
                    BayesLinear(*sizes, **bayesian) if inference is Inference.VI else nn.Linear(*sizes)
                )
            if not isinstance(row, MaxPooling) and number < len(shapes):
                layers[f"activation{number}"] = Softplus() if activation is Activation.SOFTPLUS else nn.ReLU()
            if inference is Inference.DROPOUT and number in table.dropout_after:
                layers[f"dropout{number}"] = nn.Dropout(dropout)
        super().__init__(layers)
        self.num_classes = num_classes
        self.in_channels = in_channels
        self.inference = inference
        self.draws_dropout = inference is Inference.DROPOUT
        attach_head(self, head)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for a batch of images."""
        wanted = (self.in_channels, IMAGE_SIZE, IMAGE_SIZE)
        if x.dim() != 4 or tuple(x.shape[1:]) != wanted:
            raise ShapeError(
                f"The images have shape {tuple(x.shape)}, but the network takes (N, {', '.join(map(str, wanted))}): "
                "scale or pad them, as dubito.data does."
            )
        if not x.is_floating_point():
            raise ShapeError(
                f"The images are of {x.dtype}, but the network takes floats, normalised as in its training: "
                "dubito.data.normalize(images, run.data.mean, run.data.std) makes them from bytes."
            )
        outputs: Tensor = super().forward(x)
        return outputs


def build(
    name: str,
    num_classes: int = 10,
    in_channels: int = 1,
    inference: str = "vi",
    *,
    activation: str = "softplus",
    head: str | Head = "softplus",
    dropout: float = 0.5,
    **bayesian: Unpack[BayesianOptions],
) -> Network:
    """A network of the paper for 32x32 images, initialised so that it learns.

    Args:
        name: ``lenet5``, ``alexnet`` or ``vgg16``.
        num_classes: the number of classes.
        in_channels: 1 for gray images, 3 for colour.
        inference: ``vi`` (Bayesian layers), ``frequentist`` (point estimates) or ``dropout`` (MC dropout).
        activation: ``softplus`` as in the paper, or ``relu``.
        head: ``softplus``, ``softmax`` or ``kendall_gal``; it becomes the network's own.
        dropout: the probability of dropping a unit, with inference ``dropout``.
        bayesian: options of the Bayesian layers, with inference ``vi``.

    >>> import torch
    >>> model = build("lenet5", num_classes=10)
    >>> model(torch.randn(2, 1, 32, 32)).shape
    torch.Size([2, 10])
    """
    table = architecture(name)
    chosen = get_head(head)
    if not isinstance(chosen, ClassificationHead):
        raise OptionError(
            f"head is {chosen.name!r}, but these networks classify: use softplus, softmax or kendall_gal."
        )
    for what, number in (("num_classes", num_classes), ("in_channels", in_channels)):
        if number < 1:
            raise OptionError(f"{what} is {number}, but must be at least 1.")
    if not 0 <= dropout < 1:
        raise OptionError(f"dropout is {dropout}, but must be at least 0 and below 1.")
    kind = choose(Inference, inference, "inference")
    if bayesian and kind is not Inference.VI:
        raise OptionError(f"{', '.join(bayesian)} only make sense with inference='vi', but it is {inference!r}.")
    network = Network(
        table, num_classes, in_channels, kind, choose(Activation, activation, "activation"), chosen, dropout, bayesian
    )
    initialize(network)
    return network
