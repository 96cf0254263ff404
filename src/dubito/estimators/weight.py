"""The estimator ``weight``: draws of the weights themselves, F(x, mu + sigma * eps).

Exact, also jointly over the positions of a convolution; all images that share a draw are correlated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dubito.errors import OptionError
from dubito.estimators.base import Estimator
from dubito.linear_map import LinearMap
from dubito.variational.posterior import Posterior, drawn_groups


@dataclass(frozen=True)
class Weight(Estimator):
    """Draws of the weights: one for the whole batch, or one for each of `draws` groups of it.

    With `antithetic`, draws come in pairs mu + sigma * eps, mu - sigma * eps, whose errors cancel to first order.
    """

    draws: int = 1
    antithetic: bool = False
    name: ClassVar[str] = "weight"

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise OptionError(f"The weight estimator got draws={self.draws}, but needs at least 1.")
        if self.antithetic and self.draws % 2:
            raise OptionError(
                f"The weight estimator got draws={self.draws} with antithetic=True, but pairs need an even number."
            )

    def __call__(self, linear_map: LinearMap, x: Tensor, weight: Posterior, bias: Posterior | Tensor | None) -> Tensor:
        """F(x, w), by groups of the batch."""
        count = self.draws if linear_map.is_batched(x) and len(x) else 1
        weights, biases = self._draws(weight, count), self._draws(bias, count)
        if count == 1:
            return linear_map(x, weights[0], biases[0])
        groups = zip(x.tensor_split(count), weights, biases, strict=True)
        return torch.cat([linear_map(group, *drawn) for group, *drawn in groups if len(group)])

    def _draws(self, given: Posterior | Tensor | None, count: int) -> list[Tensor] | list[Tensor | None]:
        if isinstance(given, Posterior):
            return drawn_groups(given, count, self.antithetic and count > 1)
        return [given] * count
