"""The three architectures of the paper's appendix, each as one table of rows.

Bayesian, frequentist and dropout networks are built from the same table, for images of any size that the rows allow.

Where the appendix contradicts itself, strides, paddings and widths win over its shape column:

- LeNet-5: the second convolution has 6 input channels (the appendix prints 1).
- AlexNet, with the paper's 32x32 images: stride 4 makes 8x8, the pools 4x4, 2x2 and 1x1 (the appendix prints 32, 15
  and 7).
- AlexNet and VGG16: the last layer is as wide as there are classes (the appendix prints 128 and 512, its input widths).

Rows are numbered from 1, as in the appendix. Dropout comes after the rows that `dropout_after` names: in AlexNet after
the first, fourth and sixth, the paper's regularisation figure (counted in rows; counted in weight layers the sixth
would be the output itself), in LeNet-5 between all weight layers (Gal & Ghahramani's LeNet-all), in VGG16 after every
pool.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count

from dubito.errors import OptionError, unknown


@dataclass(frozen=True)
class Convolution:
    """A row `convolution (kernel x kernel), width, stride, padding`, followed by the nonlinearity."""

    kernel: int
    width: int
    stride: int = 1
    padding: int = 0


@dataclass(frozen=True)
class MaxPooling:
    """A row `max-pooling (kernel x kernel), stride`."""

    kernel: int = 2
    stride: int = 2


@dataclass(frozen=True)
class FullyConnected:
    """A row `fully-connected, width`; None is the output layer, as wide as the head asks, without nonlinearity."""

    width: int | None = None


Row = Convolution | MaxPooling | FullyConnected


@dataclass(frozen=True)
class Shape:
    """What goes into and comes out of a row, and what it costs."""

    row: Row
    input: tuple[int, ...]
    output: tuple[int, ...]
    weights: int
    multiplications: int


@dataclass(frozen=True)
class Architecture:
    """A table of rows."""

    name: str
    rows: tuple[Row, ...]
    dropout_after: tuple[int, ...]

    def shapes(self, in_channels: int, num_outputs: int, image_size: int = 32) -> list[Shape]:
        """The shape of each row for square images, by the arithmetic of strides and paddings.

        >>> [shape.output for shape in ARCHITECTURES["lenet5"].shapes(1, 10)][-3:]
        [(120,), (84,), (10,)]
        """
        if not self._fits(image_size):
            least = next(size for size in count(image_size + 1) if self._fits(size))
            raise OptionError(f"image_size is {image_size}, but {self.name} needs at least {least} pixels a side.")
        shapes: list[Shape] = []
        size: tuple[int, ...] = (in_channels, image_size, image_size)
        for row in self.rows:
            shapes.append(_shape(row, size, num_outputs))
            size = shapes[-1].output
        return shapes

    def _fits(self, image_size: int) -> bool:
        """Whether something is left of an image after every row."""
        side = image_size
        for row in self.rows:
            if not isinstance(row, FullyConnected):
                side = _side(row, side)
        return side >= 1


def _side(row: Convolution | MaxPooling, side: int) -> int:
    """Height and width after a row."""
    padding = row.padding if isinstance(row, Convolution) else 0
    return max(0, (side + 2 * padding - row.kernel) // row.stride + 1)


def _shape(row: Row, size: tuple[int, ...], num_outputs: int) -> Shape:
    """The shape and the cost of a row with an input of that size."""
    if isinstance(row, FullyConnected):
        inputs, width = math.prod(size), row.width or num_outputs
        return Shape(row, (inputs,), (width,), (inputs + 1) * width, inputs * width)
    side = _side(row, size[1])
    if isinstance(row, MaxPooling):
        return Shape(row, size, (size[0], side, side), 0, 0)
    filters = size[0] * row.width * row.kernel**2
    return Shape(row, size, (row.width, side, side), filters + row.width, filters * side**2)


LENET5 = Architecture(
    "lenet5",
    (
        Convolution(5, 6),
        MaxPooling(),
        Convolution(5, 16),
        MaxPooling(),
        FullyConnected(120),
        FullyConnected(84),
        FullyConnected(),
    ),
    dropout_after=(2, 4, 5, 6),
)

ALEXNET = Architecture(
    "alexnet",
    (
        Convolution(11, 64, stride=4, padding=5),
        MaxPooling(),
        Convolution(5, 192, padding=2),
        MaxPooling(),
        Convolution(3, 384, padding=1),
        Convolution(3, 256, padding=1),
        Convolution(3, 128, padding=1),
        MaxPooling(),
        FullyConnected(),
    ),
    dropout_after=(1, 4, 6),
)

VGG16 = Architecture(
    "vgg16",
    (
        Convolution(3, 64, padding=1),
        Convolution(3, 64, padding=1),
        MaxPooling(),
        Convolution(3, 128, padding=1),
        Convolution(3, 128, padding=1),
        MaxPooling(),
        Convolution(3, 256, padding=1),
        Convolution(3, 256, padding=1),
        Convolution(3, 256, padding=1),
        MaxPooling(),
        Convolution(3, 512, padding=1),
        Convolution(3, 512, padding=1),
        Convolution(3, 512, padding=1),
        MaxPooling(),
        Convolution(3, 512, padding=1),
        Convolution(3, 512, padding=1),
        Convolution(3, 512, padding=1),
        MaxPooling(),
        FullyConnected(),
    ),
    dropout_after=(3, 6, 10, 14, 18),
)

ARCHITECTURES: dict[str, Architecture] = {a.name: a for a in (LENET5, ALEXNET, VGG16)}
"""The tables by name; `dubito.models.names()` also has networks without a table."""


def architecture(name: str) -> Architecture:
    """The table of that name."""
    if name not in ARCHITECTURES:
        raise OptionError(unknown("model", name, ARCHITECTURES))
    return ARCHITECTURES[name]
