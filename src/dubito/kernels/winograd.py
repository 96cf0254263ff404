"""Convolutions with 3x3 kernels by Winograd's minimal filtering, with a quarter of the multiplications.

A 4x4 patch of outputs comes from a 6x6 patch of inputs by 144 multiplications for each pair of channels. A product of
polynomials needs only as many as it has coefficients: of patch and kernel as polynomials, taken at six points (0, 1,
-1, 2, -2 and infinity) along each axis, 36 do (Winograd 1980; Lavin & Gray 2016):

    Y = A' [ (G w G') * (B' x B) ] A

Each of the 36 is a product of matrices over the channels. The gradients are the transposes of the same steps. Rounding
errors in float32 are about five times those of an ordinary convolution. A few images at a time pass through all steps,
so that what one step has written is still in the processor's cache for the next one.

It never computes a variance, whose small parts rounding errors would drown, nor a prediction, which would then depend
on how many images it is asked with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cache
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito.kernels.eager import runs_eagerly
from dubito.kernels.own_gradients import OwnGradients
from dubito.linear_map import Convolution, Gradients

__all__ = ["applies", "compute"]

TILE, PATCH = 4, 6
"""Outputs and inputs of a patch along an axis; 6 is also the number of points."""

COLUMNS = 1 << 15
"""Patches times channels that pass through all steps at once."""

FEWEST_PATCHES = 64
"""With fewer, transforming the kernels costs more than it saves."""

FEWEST_CHANNELS = 32
"""Products of matrices cost in * out, the transforms in + out: the least of their ratio that pays."""


def applies(convolution: Convolution, x: Tensor, weight: Tensor) -> bool:
    """Whether this is a convolution of enough images with 3x3 kernels in single precision, and is faster so.

    >>> padded = Convolution((1, 1), (1, 1), (1, 1))
    >>> applies(padded, torch.empty(64, 128, 16, 16), torch.empty(128, 128, 3, 3))
    True
    >>> applies(padded, torch.empty(64, 512, 2, 2), torch.empty(512, 512, 3, 3))
    False
    """
    ordinary = convolution.stride == convolution.dilation == (1, 1) and convolution.groups == 1
    if not ordinary or convolution.transposed or tuple(weight.shape[2:]) != (3, 3) or x.dim() != 4:
        return False
    if not torch.is_grad_enabled() or x.device.type != "cpu":
        return False
    if x.dtype is not torch.float32 or not runs_eagerly(x, weight):
        return False
    height, width = convolution.output_size(x.shape[2:], weight.shape[2:])
    patches = -(-height // TILE) * -(-width // TILE)
    multiplications = PATCH**2 * patches / (9 * height * width)
    wide = weight.shape[0] * weight.shape[1] >= FEWEST_CHANNELS * (weight.shape[0] + weight.shape[1])
    return wide and multiplications <= 0.5 and len(x) * patches >= FEWEST_PATCHES


def compute(convolution: Convolution) -> Convolution:
    """The same convolution by Winograd's filtering, while gradients are recorded."""
    return _Winograd(*astuple(convolution))


@dataclass(frozen=True)
class _Winograd(OwnGradients):
    @property
    def of_variances(self) -> Convolution:
        """The plain one."""
        return Convolution(*astuple(self))

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What the forward pass computes."""
        return convolve(x, weight, bias, self.padding)

    def gradients(self, gradient: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool, bool]) -> Gradients:
        """Of input, weight and bias."""
        of_x, of_weight = gradients(gradient, x, weight, self.padding, needs[:2])
        return of_x, of_weight, gradient.sum((0, 2, 3)) if needs[2] else None


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, ...]) -> Tensor:
    """The convolution of (N, C, H, W) with (O, C, 3, 3); in memory its channels come last.

    >>> x, weight = torch.randn(2, 8, 6, 7), torch.randn(5, 8, 3, 3)
    >>> torch.allclose(convolve(x, weight, None, (1, 1)), torch.conv2d(x, weight, padding=1), atol=1e-3)
    True
    """
    patches = _Patches.of(x, weight, padding)
    kernels = _kernels(weight)
    outputs = _channels_last((len(x), len(weight), *patches.output), x)
    for part, target in zip(x.split(patches.images), outputs.split(patches.images), strict=True):
        patches.put_outputs(torch.bmm(patches.take_inputs(part), kernels.mT), target.permute(0, 2, 3, 1))
    return outputs if bias is None else outputs.add_(bias.view(-1, 1, 1))


def gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, padding: tuple[int, ...], needs: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of input and weight, each if needed, from that of the output."""
    patches = _Patches.of(x, weight, padding)
    kernels = _kernels(weight) if needs[0] else None
    of_x = _channels_last(x.shape, x) if needs[0] else None
    of_kernels: Tensor | None = None
    for start in range(0, len(x), patches.images):
        part = slice(start, start + patches.images)
        of_products = patches.take_gradients(gradient[part])
        if of_x is not None and kernels is not None:
            patches.put_inputs(torch.bmm(of_products, kernels), of_x[part].permute(0, 2, 3, 1))
        if needs[1]:
            # Libraries for products of matrices are several times slower with the long axis of both in the middle.
            rows, columns = of_products.mT.contiguous(), patches.take_inputs(x[part])
            of_kernels = torch.bmm(rows, columns) if of_kernels is None else of_kernels.baddbmm_(rows, columns)
    of_weight = None
    if of_kernels is not None:
        cells = _along_both_axes(_matrices(x.dtype).kernels.t(), of_kernels)
        of_weight = cells.view(9, -1).t().reshape(weight.shape)
    return of_x, of_weight


def _channels_last(shape: Sequence[int], like: Tensor) -> Tensor:
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


@dataclass(frozen=True)
class _Patches:
    """The patches of an image, in rows and columns; the last ones may reach beyond its end.

    Attributes:
        rows: of patches.
        columns: of patches.
        output: height and width of the outputs.
        padding: of the inputs, above and on the left.
        images: that pass through all steps at once.
    """

    rows: int
    columns: int
    output: tuple[int, int]
    padding: tuple[int, ...]
    images: int

    @classmethod
    def of(cls, x: Tensor, weight: Tensor, padding: tuple[int, ...]) -> _Patches:
        height, width = x.shape[2] + 2 * padding[0] - 2, x.shape[3] + 2 * padding[1] - 2
        rows, columns = -(-height // TILE), -(-width // TILE)
        together = max(COLUMNS // max(weight.shape[:2]), FEWEST_PATCHES)
        return cls(rows, columns, (height, width), padding, max(1, together // (rows * columns)))

    def take_inputs(self, x: Tensor) -> Tensor:
        """B' x B of each patch: (36, patches, channels)."""
        count, channels, height, width = x.shape
        top, left = self.padding
        padded = x.new_zeros(count, TILE * self.rows + 2, TILE * self.columns + 2, channels)
        padded[:, top : top + height, left : left + width] = x.permute(0, 2, 3, 1)
        overlapping = padded.unfold(1, PATCH, TILE).unfold(2, PATCH, TILE).permute(4, 5, 0, 1, 2, 3)
        transformed = _along_both_axes(_matrices(x.dtype).inputs, overlapping.reshape(PATCH**2, -1))
        return transformed.view(PATCH**2, -1, channels)

    def put_inputs(self, of_products: Tensor, target: Tensor) -> None:
        """The transpose of `take_inputs`: where patches overlap, their gradients add up."""
        count, height, width, channels = target.shape
        patches = _along_both_axes(_matrices(target.dtype).inputs.t(), of_products)
        patches = self._in_image(patches, count, channels)
        # The first four rows of a patch are its own, the last two the first ones of the patch below; likewise columns.
        padded = target.new_zeros(count, self.rows + 1, TILE, self.columns + 1, TILE, channels)
        own, shared = (0, slice(0, TILE)), (1, slice(TILE, PATCH))
        for (below, rows), (right, columns) in product((own, shared), repeat=2):
            part = patches[:, :, rows, :, columns]
            there = padded[:, below : below + self.rows, : part.shape[2], right : right + self.columns]
            there[:, :, :, :, : part.shape[4]] += part
        top, left = self.padding
        whole = padded.view(count, TILE * (self.rows + 1), TILE * (self.columns + 1), channels)
        target.copy_(whole[:, top : top + height, left : left + width])

    def put_outputs(self, products: Tensor, target: Tensor) -> None:
        """A' Y A of each patch, at its place in the outputs."""
        count, height, width, channels = target.shape
        patches = _along_both_axes(_matrices(target.dtype).outputs, products)
        patches = self._in_image(patches, count, channels)
        if (TILE * self.rows, TILE * self.columns) == self.output:
            target.view(patches.shape).copy_(patches)
        else:
            whole = patches.reshape(count, TILE * self.rows, TILE * self.columns, channels)
            target.copy_(whole[:, :height, :width])

    def take_gradients(self, gradient: Tensor) -> Tensor:
        """The transpose of `put_outputs`: (36, patches, channels)."""
        count, channels, height, width = gradient.shape
        last = gradient.permute(0, 2, 3, 1)
        if (TILE * self.rows, TILE * self.columns) != self.output:
            last = F.pad(last, (0, 0, 0, TILE * self.columns - width, 0, TILE * self.rows - height))
        patches = last.reshape(count, self.rows, TILE, self.columns, TILE, channels).permute(2, 4, 0, 1, 3, 5)
        transformed = _along_both_axes(_matrices(gradient.dtype).outputs.t(), patches.reshape(TILE**2, -1))
        return transformed.view(PATCH**2, -1, channels)

    def _in_image(self, patches: Tensor, count: int, channels: int) -> Tensor:
        """(positions in a patch, ...) as (images, rows of patches, rows in one, columns of them, columns, channels)."""
        return patches.view(*patches.shape[:2], count, self.rows, self.columns, channels).permute(2, 3, 0, 4, 1, 5)


class _Matrices(NamedTuple):
    inputs: Tensor
    kernels: Tensor
    outputs: Tensor


@cache
def _matrices(dtype: torch.dtype) -> _Matrices:
    """B' (6, 6), G (6, 3) and A' (4, 6) of one axis."""
    inputs = [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
    kernels = [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ]
    outputs = [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]
    return _Matrices(*(torch.tensor(rows, dtype=dtype) for rows in (inputs, kernels, outputs)))


def _along_both_axes(matrix: Tensor, values: Tensor) -> Tensor:
    """M v M' for v of shape (k * k, ...), as (m, m, the rest)."""
    rows, size = matrix.shape
    once = torch.mm(matrix, values.reshape(size, -1))
    return torch.matmul(matrix, once.view(rows, size, -1))


def _kernels(weight: Tensor) -> Tensor:
    """G w G' of each kernel: (36, out, in)."""
    cells = weight.reshape(-1, 9).t().contiguous()
    return _along_both_axes(_matrices(weight.dtype).kernels, cells).view(PATCH**2, *weight.shape[:2])
