r"""The family ``low_rank``: a Gaussian whose covariance is a diagonal plus a matrix of low rank.

With D = diag(softplus(rho)^2) and a factor U of R columns, q(w) = N(mu, D + U U'). A draw is mu + sqrt(D) eps + U z,
with one more standard normal z for each column: all weights of the parameter move together along the columns. By the
matrix determinant lemma log det(D + U U') = log det D + log det(1 + U' D^-1 U).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dubito.softplus import at_least_single, inverse_softplus, log_softplus, softplus
from dubito.variational.posterior import ENTROPY, Posterior, require_std


class LowRankPosterior(Posterior):
    """N(mu, diag(softplus(rho)^2) + U U'), with U of shape (R, weights).

    The columns start a tenth as large as the diagonal's share: they must differ from 0 to learn.

    >>> q = LowRankPosterior(nn.Parameter(torch.zeros(3)), std=0.5)
    >>> q.draw().shape, q.noise_size
    (torch.Size([3]), 5)
    """

    name = "low_rank"
    independent = False
    erased = {"mean": 0.0, "rho": -1e3}  # noqa: RUF012
    rank = 2
    rho: nn.Parameter
    factor: nn.Parameter

    def _make_parameters(self) -> None:
        self.rho = nn.Parameter(torch.empty_like(self.mean))
        self.factor = nn.Parameter(torch.empty(self.rank, *self.mean.shape, dtype=self.mean.dtype).to(self.mean.device))

    @torch.no_grad()
    def set_std(self, std: float | Tensor) -> None:
        """The diagonal has nearly all of the variance, the columns a hundredth each with random signs."""
        target = require_std(std, self.mean)
        signs = torch.randint(0, 2, self.factor.shape, device="cpu").mul_(2).sub_(1).to(self.factor.device)
        self.factor.copy_(0.1 * target * signs)
        self.rho.copy_(inverse_softplus(target * math.sqrt(1 - 0.01 * self.rank)))

    @property
    def _diagonal(self) -> Tensor:
        return softplus(at_least_single(self.rho))

    @property
    def variance(self) -> Tensor:
        """The diagonal of the covariance."""
        return self._diagonal.square() + at_least_single(self.factor).square().sum(0)

    @property
    def std(self) -> Tensor:
        """The root of the variance."""
        return self.variance.sqrt().to(self.mean.dtype)

    @property
    def log_std(self) -> Tensor:
        """Half the logarithm of the variance."""
        return self.variance.clamp_min(torch.finfo(self.variance.dtype).tiny).log() / 2

    @property
    def noise_size(self) -> int:
        """One number for each weight and one for each column."""
        return self.mean.numel() + self.rank

    def draw(self, noise: Tensor | None = None) -> Tensor:
        """mu + sqrt(D) eps + U z."""
        noise = self.fresh_noise() if noise is None else noise
        own, shared = noise.split([self.mean.numel(), self.rank])
        drawn = torch.addcmul(at_least_single(self.mean), self._diagonal, own.view(self.mean.shape).to(self._diagonal))
        together = torch.tensordot(shared.to(drawn), at_least_single(self.factor), dims=1)
        return (drawn + together).to(self.mean.dtype)

    def log_prob(self, weights: Tensor) -> Tensor:
        """log N(w | mu, D + U U'), by Woodbury's identity."""
        _, std, columns = self._whitened()
        deviation = (at_least_single(weights) - at_least_single(self.mean)).flatten() / std
        inner = self._inner(columns)
        projected = columns @ deviation
        quadratic = deviation @ deviation - projected @ torch.linalg.solve(inner, projected)
        return -quadratic / 2 - self._log_determinant() / 2 - self.mean.numel() * math.log(2 * math.pi) / 2

    def entropy(self) -> Tensor:
        """Half the logarithm of the covariance's determinant, and a constant for each weight."""
        return self._log_determinant() / 2 + self.mean.numel() * ENTROPY

    def _whitened(self) -> tuple[Tensor, Tensor, Tensor]:
        """log sqrt(D), sqrt(D), and U' D^-1/2 as rows (R, weights)."""
        log_diagonal = log_softplus(at_least_single(self.rho)).flatten()
        # Where the diagonal underflows, as in a pruned network, the weight is its mean.
        std = log_diagonal.exp().clamp_min(torch.finfo(log_diagonal.dtype).tiny)
        return log_diagonal, std, at_least_single(self.factor).flatten(1) / std

    @staticmethod
    def _inner(columns: Tensor) -> Tensor:
        """1 + U' D^-1 U."""
        return torch.eye(len(columns), dtype=columns.dtype, device=columns.device) + columns @ columns.T

    def _log_determinant(self) -> Tensor:
        log_diagonal, _, columns = self._whitened()
        return 2 * log_diagonal.sum() + torch.linalg.slogdet(self._inner(columns))[1]

    def erase(self, where: Tensor) -> None:
        """Make the weights in this mask exactly 0 in every draw: their part of the columns goes too."""
        super().erase(where)
        with torch.no_grad():
            self.factor[:, where] = 0.0
