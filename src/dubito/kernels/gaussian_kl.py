"""KL[N(mu, sigma^2) || N(m, s^2)] with its gradient written out, in one go over the weights.

Automatic differentiation keeps a tensor for each of sigma's square and its logarithm, and passes over all of them
again. KL = sum log(s / sigma) + (sigma^2 + (mu - m)^2) / (2 s^2) - 1/2 has the gradients (mu - m) / s^2 and
sigma / s^2 - 1 / sigma. A pass has computed sigma for its draws already, with the way back to its parameters.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def applies(mean: Tensor, std: Tensor, prior_mean: Tensor, prior_std: Tensor) -> bool:
    """Whether the prior has one standard deviation for all weights, and no sigma underflows."""
    return (
        prior_std.numel() == 1
        and std.numel() > 0
        and float(std.detach().amin()) > math.sqrt(torch.finfo(std.dtype).tiny)
    )


def compute(mean: Tensor, std: Tensor, prior_mean: Tensor, prior_std: Tensor) -> Tensor:
    """KL in nats, a scalar."""
    result: Tensor = _GaussianKL.apply(mean, std, prior_mean, prior_std)
    return result


def _deviation(mean: Tensor, prior_mean: Tensor) -> Tensor:
    centred = prior_mean.numel() == 1 and prior_mean.device.type == "cpu" and float(prior_mean) == 0
    return mean if centred else mean - prior_mean


def _sum_of_squares(x: Tensor) -> Tensor:
    """Without a tensor of squares; by rows, since every number rounds the sum so far."""
    flat = x.reshape(-1)
    if flat.numel() <= 1 << 15:
        return torch.dot(flat, flat)
    end = flat.numel() // 1024 * 1024
    rest = flat[end:]
    return torch.linalg.vector_norm(flat[:end].view(-1, 1024), dim=1).square().sum() + torch.dot(rest, rest)


class _GaussianKL(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, std: Tensor, prior_mean: Tensor, prior_std: Tensor) -> Tensor:
        squares = _sum_of_squares(std) + _sum_of_squares(_deviation(mean, prior_mean))
        constant = (prior_std.log() - 0.5) * mean.numel()
        return squares / (2 * prior_std.square()).reshape(()) - std.log().sum() + constant.reshape(())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        mean, std, prior_mean, prior_std = ctx.saved_tensors
        precision = prior_std.reshape(()).square().reciprocal() * gradient
        of_mean = _deviation(mean, prior_mean) * precision if ctx.needs_input_grad[0] else None
        of_std = std * precision - gradient / std if ctx.needs_input_grad[1] else None
        return of_mean, of_std, None, None
