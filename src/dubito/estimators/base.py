"""What an estimator is.

It turns a posterior and an input into an output. With F a layer's linear map and q(w) = N(mu, sigma^2):

- ``local``: F(x, mu) + eps * sqrt(F(x^2, sigma^2)), noise for each output element.
- ``weight``: F(x, mu + sigma * eps), a draw of the weights.
- ``flipout``: one draw for the batch, decorrelated by random signs.
- ``mean``: F(x, mu), what `model.eval()` uses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from dubito.linear_map import LinearMap
from dubito.variational.posterior import Posterior, drawn


class Estimator(ABC):
    """Turns posteriors and an input into an output.

    Attributes:
        name: what it is called in settings.
        needs_independence: whether it is only right for weights that are independent.
    """

    name: ClassVar[str]
    needs_independence: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, linear_map: LinearMap, x: Tensor, weight: Posterior, bias: Posterior | Tensor | None) -> Tensor:
        """The output for `x`; a bias may be a point estimate."""

    def read(self, posterior: Posterior) -> Tensor:
        """The weights for code that reads a parameter itself instead of calling its layer."""
        return drawn(posterior)
