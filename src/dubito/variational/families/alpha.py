r"""The family ``alpha``, the paper's (section 2.3.1): independent Gaussians with sigma^2 = alpha * mu^2.

log alpha is learned. As mu -> 0 the weight would become a point mass with infinite KL, so \|mu\| is floored at 1e-8 (in
float16 at its smallest normal number), below which the gradient with respect to mu is 0. A mean of 0, as
zero-initialised biases have, cannot start with a standard deviation: the log alpha for it would make the weight as
uncertain as a thousand at the first step that moves it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dubito.softplus import at_least_single
from dubito.variational.posterior import DiagonalPosterior, require_std

LOG_ALPHA_OF_ZERO = 8.0
"""What a mean of 0 starts with at most; about where Molchanov et al. (2017) take a weight for noise."""


class AlphaPosterior(DiagonalPosterior):
    """N(mu, alpha mu^2).

    >>> q = AlphaPosterior(nn.Parameter(torch.tensor([2.0])), std=2.0)
    >>> q.log_alpha, q.variance.detach()
    (Parameter containing:
    tensor([0.], requires_grad=True), tensor([4.]))
    """

    name = "alpha"
    erased = {"mean": 0.0, "log_alpha": -2e3}  # noqa: RUF012
    log_alpha: nn.Parameter

    def _make_parameters(self) -> None:
        self.log_alpha = nn.Parameter(torch.empty_like(self.mean))

    @torch.no_grad()
    def set_std(self, std: float | Tensor) -> None:
        """log alpha = 2 (log std - log mu), or as much of it as a mean of 0 can have."""
        log_alpha = 2 * (require_std(std, self.mean).log() - self._floored_log_mean())
        moves = self.mean.abs() > self._floor
        self.log_alpha.copy_(torch.where(moves, log_alpha, log_alpha.clamp_max(LOG_ALPHA_OF_ZERO)))

    @property
    def log_std(self) -> Tensor:
        """(log alpha) / 2 + log mu."""
        return at_least_single(self.log_alpha) / 2 + self._floored_log_mean()

    def _floored_log_mean(self) -> Tensor:
        return at_least_single(self.mean).abs().clamp_min(self._floor).log()

    @property
    def _floor(self) -> float:
        return max(1e-8, torch.finfo(self.mean.dtype).tiny)
