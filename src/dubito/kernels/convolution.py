"""Convolutions with point estimates that are computed as those of Bayesian layers are, so that twins compare fairly."""

from __future__ import annotations

from torch import Tensor, nn

from dubito.kernels.autograd import runs_eagerly
from dubito.kernels.linear_maps import Convolution, mapped

__all__ = ["Conv2d"]


class Conv2d(nn.Conv2d):
    """`torch.nn.Conv2d` by the faster maps of :mod:`dubito.kernels.linear_maps`.

    >>> import torch
    >>> Conv2d(3, 8, 3, padding=1)(torch.randn(4, 3, 32, 32)).shape
    torch.Size([4, 8, 32, 32])
    """

    def forward(self, x: Tensor) -> Tensor:
        """The convolution."""
        plain = x.dim() != 4 or self.padding_mode != "zeros" or not runs_eagerly(x, self.weight, self.bias)
        if plain or isinstance(self.padding, str):
            return super().forward(x)
        convolution = Convolution(self.stride, self.padding, self.dilation, False, (0, 0), self.groups)
        return mapped(convolution, x, self.weight, self.bias)
