"""The Bayesian twin of `torch.nn.Linear`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack  # a dependency of torch

from dubito.errors import ShapeError
from dubito.layers.base import BayesianOptions, BayesLayer, positive
from dubito.linear_map import LinearMap, MatrixProduct


class BayesLinear(BayesLayer):
    """The Bayesian twin of `torch.nn.Linear`.

    >>> layer = BayesLinear(20, 30)
    >>> layer(torch.randn(128, 20)).shape
    torch.Size([128, 30])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **bayesian: Unpack[BayesianOptions],
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = positive(in_features=in_features, out_features=out_features)
        shapes = (self.out_features, self.in_features), (self.out_features,) if bias else None
        self._become_bayesian(*self._fresh_parameters(*shapes, device, dtype), **bayesian)

    @classmethod
    def around(cls, plain: nn.Linear, **bayesian: Unpack[BayesianOptions]) -> BayesLinear:
        """The twin of a layer, with that layer's own parameters as its means."""
        twin = cls.__new__(cls)
        nn.Module.__init__(twin)
        twin.in_features, twin.out_features = plain.in_features, plain.out_features
        weight: Any = plain.weight
        twin._become_bayesian(weight, plain.bias, **bayesian)
        return twin

    def linear_map(self, x: Tensor) -> tuple[LinearMap, Tensor]:
        """A product of matrices."""
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ShapeError(
                f"BayesLinear got an input of shape {tuple(x.shape)}, but expects (..., {self.in_features})."
            )
        return MatrixProduct(), x

    def plain(self) -> nn.Linear:
        """A `torch.nn.Linear` of the same sizes, on no device."""
        return nn.Linear(self.in_features, self.out_features, self.bias_mean is not None, device="meta")

    def extra_repr(self) -> str:
        """The sizes and the Bayesian options."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias_mean is not None}, {self._bayesian_repr()}"
