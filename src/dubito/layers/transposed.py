"""The Bayesian twins of torch's transposed convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from dubito.errors import ShapeError
from dubito.layers.base import BayesianOptions
from dubito.layers.convolution import BayesConvNd, Size
from dubito.linear_map import Convolution, LinearMap


class _BayesConvTranspose(BayesConvNd):
    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **bayesian: Unpack[BayesianOptions],
    ) -> None:
        super().__init__()
        self._check_options(
            in_channels, out_channels, kernel_size, stride, padding, dilation, output_padding, groups, padding_mode
        )
        self._make(bias, device, dtype, bayesian)

    def fan_in_of(self, weight: Tensor) -> int:
        """Inputs that an output sums over, on average: each input spreads over the kernel, a stride apart."""
        inputs = weight.shape[0] // self.groups * math.prod(self.kernel_size)
        return max(1, round(inputs / math.prod(self.stride)))

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """The layer's output, of that spatial size if given."""
        return self._estimate(*self.linear_map(x, output_size))

    def linear_map(self, x: Tensor, output_size: Sequence[int] | None = None) -> tuple[LinearMap, Tensor]:
        """The transposed convolution."""
        self._require_channels(x)
        assert not isinstance(self.padding, str)
        extra = self._output_padding_for(x, self.padding, output_size)
        return Convolution(self.stride, self.padding, self.dilation, self.groups, True, extra), x

    def _output_padding_for(
        self, x: Tensor, paddings: tuple[int, ...], output_size: Sequence[int] | None
    ) -> tuple[int, ...]:
        """The extra rows that make the output have this size; several sizes have the same input."""
        if output_size is None:
            return self.output_padding
        wanted = tuple(output_size)[-self.axes :]
        smallest = tuple(
            (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1
            for size, stride, padding, dilation, kernel in zip(
                x.shape[-self.axes :], self.stride, paddings, self.dilation, self.kernel_size, strict=True
            )
        )
        extra = tuple(w - s for w, s in zip(wanted, smallest, strict=False))
        if len(wanted) != self.axes or any(
            not 0 <= e < max(s, d) for e, s, d in zip(extra, self.stride, self.dilation, strict=True)
        ):
            largest = tuple(
                s + max(stride, d) - 1 for s, stride, d in zip(smallest, self.stride, self.dilation, strict=True)
            )
            raise ShapeError(f"output_size is {tuple(output_size)}, but must lie between {smallest} and {largest}.")
        return extra


class BayesConvTranspose1d(_BayesConvTranspose):
    """The Bayesian twin of `torch.nn.ConvTranspose1d`.

    >>> BayesConvTranspose1d(2, 3, 3, stride=2)(torch.randn(1, 2, 5)).shape
    torch.Size([1, 3, 11])
    """

    axes = 1
    plain_type = nn.ConvTranspose1d


class BayesConvTranspose2d(_BayesConvTranspose):
    """The Bayesian twin of `torch.nn.ConvTranspose2d`.

    >>> BayesConvTranspose2d(2, 3, 3, stride=2)(torch.randn(1, 2, 5, 5), output_size=(12, 12)).shape
    torch.Size([1, 3, 12, 12])
    """

    axes = 2
    plain_type = nn.ConvTranspose2d


class BayesConvTranspose3d(_BayesConvTranspose):
    """The Bayesian twin of `torch.nn.ConvTranspose3d`.

    >>> BayesConvTranspose3d(2, 3, 3)(torch.randn(1, 2, 5, 5, 5)).shape
    torch.Size([1, 3, 7, 7, 7])
    """

    axes = 3
    plain_type = nn.ConvTranspose3d
