"""The estimator ``mean``: the posterior mean, deterministic. What `model.eval()` uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from dubito.estimators.base import Estimator
from dubito.linear_map import LinearMap
from dubito.variational.posterior import Posterior


@dataclass(frozen=True)
class Mean(Estimator):
    """F(x, mu)."""

    name: ClassVar[str] = "mean"

    def __call__(self, linear_map: LinearMap, x: Tensor, weight: Posterior, bias: Posterior | Tensor | None) -> Tensor:
        """F(x, mu)."""
        return linear_map(x, weight.mean, bias.mean if isinstance(bias, Posterior) else bias)

    def read(self, posterior: Posterior) -> Tensor:
        """mu."""
        return posterior.mean
