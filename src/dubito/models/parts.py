"""The parts of a network that a setting chooses: the nonlinearity and the normalisation."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import torch
from torch import Tensor, nn


class Activation(str, Enum):
    """The nonlinearity after every layer but the last; ``own`` is the one that the network usually has."""

    OWN = "own"
    SOFTPLUS = "softplus"
    RELU = "relu"
    LEAKY_RELU = "leaky_relu"
    ELU = "elu"
    GELU = "gelu"
    SILU = "silu"
    MISH = "mish"
    TANH = "tanh"


class Norm(str, Enum):
    """How the channels of a network are normalised; ``own`` is as the network usually does it."""

    OWN = "own"
    BATCH = "batch"
    GROUP = "group"
    FRN = "frn"


_ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    Activation.SOFTPLUS: nn.Softplus,
    Activation.RELU: nn.ReLU,
    Activation.LEAKY_RELU: nn.LeakyReLU,
    Activation.ELU: nn.ELU,
    Activation.GELU: nn.GELU,
    Activation.SILU: nn.SiLU,
    Activation.MISH: nn.Mish,
    Activation.TANH: nn.Tanh,
}


def activation_layer(activation: Activation) -> nn.Module:
    """The module of that nonlinearity."""
    return _ACTIVATIONS[activation]()


def norm_layer(norm: Norm, channels: int) -> nn.Module:
    """The module that normalises so many channels: batch norm, group norm of up to 8 groups, or filter response norm.

    >>> norm_layer(Norm.GROUP, 16).num_groups
    8
    """
    if norm is Norm.BATCH:
        return nn.BatchNorm2d(channels)
    if norm is Norm.GROUP:
        return nn.GroupNorm(next(groups for groups in (8, 4, 2, 1) if channels % groups == 0), channels)
    return FilterResponseNorm(channels)


class FilterResponseNorm(nn.Module):
    """x / sqrt(mean of x^2 over the positions), scaled and shifted for each channel (Singh & Krishnan 2020).

    It looks at one image and one channel at a time, so a prediction does not depend on the batch. The thresholds that
    its authors learn in place of a nonlinearity are left out: the network's own nonlinearity follows.

    >>> FilterResponseNorm(1)(torch.full((1, 1, 2, 2), -3.0))[0, 0]
    tensor([[-1.0000, -1.0000],
            [-1.0000, -1.0000]], grad_fn=<SelectBackward0>)
    """

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """The normalised channels."""
        scale = torch.rsqrt(x.square().mean((2, 3), keepdim=True) + self.eps)
        return torch.addcmul(self.bias[:, None, None], x * scale, self.weight[:, None, None])

    def extra_repr(self) -> str:
        """The number of channels."""
        return str(len(self.weight))
