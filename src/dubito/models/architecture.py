"""The three architectures of the paper's appendix, each as one table of rows from which every twin is built.

Where the appendix contradicts itself, strides, paddings and widths win over its shape column:

- LeNet-5: the second convolution has 6 input channels (the appendix prints 1).
- AlexNet: stride 4 makes 32x32 into 8x8, and the pools 4x4, 2x2 and 1x1 (the appendix prints 32, 15 and 7).
- AlexNet and VGG16: the last layer is as wide as there are classes (the appendix prints 128 and 512, its input widths).

Rows are numbered from 1, as in the appendix. Dropout comes after the rows that `dropout_after` names: in AlexNet after
the first, fourth and sixth, the paper's regularisation figure (counted in rows; counted in weight layers the sixth
would be the output itself), in LeNet-5 between all weight layers (Gal & Ghahramani's LeNet-all), in VGG16 after every
pool.
"""

from __future__ import annotations

from dataclasses import dataclass

from dubito.errors import OptionError, unknown

__all__ = ["ARCHITECTURES", "Architecture", "Convolution", "FullyConnected", "MaxPooling", "Row", "Shape"]

IMAGE_SIZE = 32


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
    """A row `fully-connected, width`; None is as many as there are classes, and gets no nonlinearity but the head."""

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

    def shapes(self, in_channels: int, num_outputs: int) -> list[Shape]:
        """The shape of each row for 32x32 images, by the arithmetic of strides and paddings.

        >>> [shape.output for shape in ARCHITECTURES["lenet5"].shapes(1, 10)][-3:]
        [(120,), (84,), (10,)]
        """
        shapes = []
        size: tuple[int, ...] = (in_channels, IMAGE_SIZE, IMAGE_SIZE)
        for row in self.rows:
            weights = multiplications = 0
            if isinstance(row, Convolution):
                side = (size[1] + 2 * row.padding - row.kernel) // row.stride + 1
                out: tuple[int, ...] = (row.width, side, side)
                weights = size[0] * row.width * row.kernel**2 + row.width
                multiplications = size[0] * row.width * row.kernel**2 * side**2
            elif isinstance(row, MaxPooling):
                side = (size[1] - row.kernel) // row.stride + 1
                out = (size[0], side, side)
            else:
                inputs = size[0] * size[1] * size[2] if len(size) == 3 else size[0]
                size = (inputs,)
                out = (row.width or num_outputs,)
                weights, multiplications = (inputs + 1) * out[0], inputs * out[0]
            shapes.append(Shape(row, size, out, weights, multiplications))
            size = out
        return shapes


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
"""The one list of networks that builds, documents and tests read."""


def architecture(name: str) -> Architecture:
    """The architecture of that name."""
    if name not in ARCHITECTURES:
        raise OptionError(unknown("model", name, ARCHITECTURES))
    return ARCHITECTURES[name]
