"""The family ``std``: independent Gaussians with sigma = softplus(rho)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import Self

from dubito import kernels
from dubito.softplus import at_least_single, inverse_softplus, log_softplus, softplus
from dubito.variational.posterior import DiagonalPosterior, computed_once, require_std
from dubito.variational.prior import GaussianPrior

SMALL = 1 << 16
"""Weights up to which the number of operations costs more than what they do."""


class StdPosterior(DiagonalPosterior):
    """N(mu, softplus(rho)^2).

    >>> q = StdPosterior(nn.Parameter(torch.tensor([2.0])), std=0.5)
    >>> q.std
    tensor([0.5000], grad_fn=<SoftplusBackward0>)
    """

    name = "std"
    erased = {"mean": 0.0, "rho": -1e3}  # noqa: RUF012  (log sigma below -1000 underflows in every dtype)
    rho: nn.Parameter

    def _make_parameters(self) -> None:
        self.rho = nn.Parameter(torch.empty_like(self.mean))

    @torch.no_grad()
    def set_std(self, std: float | Tensor) -> None:
        """rho = log(exp(std) - 1)."""
        self.rho.copy_(inverse_softplus(require_std(std, self.mean)))

    @property
    def _wide_std(self) -> Tensor:
        return computed_once(self, self.rho, _std_of)

    @property
    def log_std(self) -> Tensor:
        """log softplus(rho), without passing through sigma."""
        return log_softplus(at_least_single(self.rho))

    def kl_divergence(self) -> Tensor:
        """KL[q || p]; against a Gaussian prior with one scale, by a kernel where there is one."""
        if isinstance(self.prior, GaussianPrior):
            arguments = (self.mean, self._wide_std, self.prior.mean, self.prior.std)
            kernel = kernels.find("gaussian_kl", *arguments)
            if kernel is not None:
                divergence: Tensor = kernel(*arguments)
                return divergence
        return super().kl_divergence()

    @classmethod
    def divergences(cls, found: Sequence[Self]) -> list[Tensor]:
        """Small posteriors under equal Gaussian priors are joined end to end, which takes fewer operations."""
        groups: dict[object, list[Self]] = {}
        for q in found:
            groups.setdefault(q._joins(), []).append(q)
        return [term for group in groups.values() for term in _joined(group)]

    def _joins(self) -> object:
        """What posteriors have in common that can be joined; the posterior itself if it cannot be."""
        prior, shape = self.prior, self.mean.shape
        if not isinstance(prior, GaussianPrior) or prior.mean.numel() > 1 or shape.numel() > SMALL:
            return self
        if prior.std.numel() > 1 or not kernels.runs_eagerly(self.mean, self.rho, prior.mean, prior.std):
            return self
        return float(prior.mean), float(prior.std), self.mean.dtype, self.mean.device


def _std_of(rho: Tensor) -> Tensor:
    return softplus(at_least_single(rho))


def _joined(group: Sequence[StdPosterior]) -> list[Tensor]:
    """KL of posteriors that have the first one's prior; each by itself where the kernel cannot take them together."""
    if len(group) > 1:
        mean, std = (
            torch.cat([part.flatten() for part in parts])
            for parts in zip(*((q.mean, q._wide_std) for q in group), strict=True)
        )
        prior = group[0].prior
        assert isinstance(prior, GaussianPrior)
        arguments = (mean, std, prior.mean, prior.std)
        kernel = kernels.find("gaussian_kl", *arguments)
        if kernel is not None:
            return [kernel(*arguments)]
    return [q.kl_divergence() for q in group]
