"""The linear maps of layers, F(x, w) + b: matrix products and convolutions, in plain operations of torch.

Each knows its gradients, for kernels that write their own backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


class LinearMap(Protocol):
    """A function of (input, weight, bias) that is linear in the input and in the weight."""

    def __call__(self, x: Tensor, weight: Any, bias: Any = None) -> Tensor:
        """The output."""

    def is_batched(self, x: Tensor) -> bool:
        """Whether the first axis of `x` is a batch."""

    def sign_shape(self, x: Tensor) -> tuple[int, ...]:
        """The shape of one sign per example and channel of an input or output."""

    def gradients(self, gradient: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool, bool]) -> Gradients:
        """Of input, weight and bias, each if needed, from that of the output."""


@dataclass(frozen=True)
class MatrixProduct:
    """x W' + b, over the last axis."""

    def __call__(self, x: Tensor, weight: Any, bias: Any = None) -> Tensor:
        """The output."""
        return F.linear(x, weight, bias)

    def is_batched(self, x: Tensor) -> bool:
        """Anything but a single vector is."""
        return x.dim() > 1

    def sign_shape(self, x: Tensor) -> tuple[int, ...]:
        """(N, 1, ..., features)."""
        return (*x.shape[:1], *(1,) * (x.dim() - 2), x.shape[-1]) if x.dim() > 1 else tuple(x.shape)

    def gradients(self, gradient: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool, bool]) -> Gradients:
        """Three products."""
        rows = gradient.reshape(-1, gradient.shape[-1])
        return (
            gradient @ weight if needs[0] else None,
            rows.t() @ x.reshape(-1, x.shape[-1]) if needs[1] else None,
            rows.sum(0) if needs[2] else None,
        )


_CONVOLUTIONS = {
    (1, False): F.conv1d,
    (2, False): F.conv2d,
    (3, False): F.conv3d,
    (1, True): F.conv_transpose1d,
    (2, True): F.conv_transpose2d,
    (3, True): F.conv_transpose3d,
}


@dataclass(frozen=True)
class Convolution:
    """Any convolution of torch over 1 to 3 axes, transposed ones included, padded by zeros alone."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    @property
    def axes(self) -> int:
        """How many spatial axes there are."""
        return len(self.stride)

    def __call__(self, x: Tensor, weight: Any, bias: Any = None) -> Tensor:
        """The output."""
        convolve: Any = _CONVOLUTIONS[self.axes, self.transposed]
        if self.transposed:
            return convolve(x, weight, bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        return convolve(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def is_batched(self, x: Tensor) -> bool:
        """Whether there is an axis before the channels."""
        return x.dim() == self.axes + 2

    def sign_shape(self, x: Tensor) -> tuple[int, ...]:
        """(N, channels, 1, ..., 1)."""
        return (*x.shape[: -self.axes], *(1,) * self.axes)

    def gradients(self, gradient: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool, bool]) -> Gradients:
        """torch's own."""
        found = torch.ops.aten.convolution_backward(
            gradient,
            x,
            weight,
            [gradient.shape[1]],
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding or (0,) * self.axes,
            self.groups,
            list(needs),
        )
        # A gradient that was not asked for may come all the same, of another shape.
        of_x, of_weight, of_bias = (part if need else None for part, need in zip(found, needs, strict=True))
        return of_x, of_weight, of_bias
