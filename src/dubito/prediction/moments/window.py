"""How a convolution moves over its input: which cell of the kernel leads from which position to which."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Window:
    """A kernel on an input; a transposed convolution is the transpose of the convolution it describes.

    Attributes:
        input: positions along each axis.
        output: positions along each axis.
        kernel: its size along each axis; likewise the other options.
        groups: of channels.
    """

    input: tuple[int, ...]
    output: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @classmethod
    def over(
        cls,
        source: tuple[int, ...],
        kernel: tuple[int, ...],
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        groups: int = 1,
    ) -> Window:
        """The window of a convolution whose input has this size.

        >>> Window.over((2, 2), (3, 3), (1, 1), (1, 1), (1, 1)).output
        (2, 2)
        """
        output = tuple(
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, p, d, k, s in zip(source, padding, dilation, kernel, stride, strict=True)
        )
        return cls(source, output, kernel, stride, padding, dilation, groups)

    @property
    def is_dense(self) -> bool:
        """Whether the kernel is as large as the input, so that a product with one matrix is less work."""
        return math.prod(self.input) <= math.prod(self.kernel) and self.groups == 1 and set(self.dilation) == {1}

    @property
    def is_compact(self) -> bool:
        """Whether the matrix of the convolution is at most twice as large as the kernel, so that it is soon made."""
        return self.pairs <= 2 * math.prod(self.kernel)

    @property
    def pairs(self) -> int:
        """Pairs of a position of the output and one of the input."""
        return math.prod(self.output) * math.prod(self.input)

    def unroll(self, weight: Tensor) -> Tensor:
        """The matrix (out_channels * positions, positions * in_channels) of this convolution."""
        cells = _cells(self)
        rows = weight.flatten(2).mT
        if math.prod(self.kernel) in cells:
            rows = F.pad(rows, (0, 0, 0, 1))  # one more cell of zeros stands for what the kernel does not reach
        which = torch.tensor(cells, device=weight.device)
        # Rows of channels are copied whole.
        return rows.contiguous().index_select(1, which).view(weight.shape[0] * math.prod(self.output), -1)

    def transpose(self, jacobian: Tensor, weight: Tensor) -> Tensor:
        """Rows (B, R, C, ...) at the output, taken to the input."""
        reached = [
            (o - 1) * s - 2 * p + d * (k - 1) + 1
            for o, s, p, d, k in zip(self.output, self.stride, self.padding, self.dilation, self.kernel, strict=True)
        ]
        missing = [size - r for size, r in zip(self.input, reached, strict=True)]
        transposed = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(self.input) - 1]
        flat = jacobian.flatten(0, 1)
        back = transposed(flat, weight, None, self.stride, self.padding, missing, self.groups, self.dilation)
        return back.unflatten(0, jacobian.shape[:2])


@lru_cache(maxsize=256)
def _cells(window: Window) -> list[int]:
    """The cell of the kernel, or their number if there is none, for each pair of positions of output and input."""
    places = product(product(*map(range, window.output)), product(*map(range, window.input)))
    return [_cell(window, *place) for place in places]


def _cell(window: Window, output: tuple[int, ...], source: tuple[int, ...]) -> int:
    cell = 0
    for axis, size in enumerate(window.kernel):
        offset = source[axis] - output[axis] * window.stride[axis] + window.padding[axis]
        step, rest = divmod(offset, window.dilation[axis])
        if rest or not 0 <= step < size:
            return math.prod(window.kernel)
        cell = cell * size + step
    return cell
