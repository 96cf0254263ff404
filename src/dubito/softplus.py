"""The softplus function, its logarithm and its inverse, without overflow or cancellation.

softplus(x) = log(1 + exp x) is the paper's activation, its output normalisation and the map from a free parameter to
a standard deviation, so its numerics are in one place.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def at_least_single(x: Tensor) -> Tensor:
    """`x` itself, or in float32 if it has half precision: sums and exponentials overflow there."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp x), exact to rounding in every dtype.

    torch's default switches to the identity at x = 20, where float64 can still tell the difference.

    >>> softplus(torch.tensor([-1e4, 0.0, 1e4]))
    tensor([0.0000e+00, 6.9315e-01, 1.0000e+04])
    """
    return F.softplus(x, threshold=40.0)


def log_softplus(x: Tensor) -> Tensor:
    """log(softplus(x)), finite with finite gradients for every finite x.

    softplus(x) -> exp(x) for very negative x, where its logarithm goes on as x instead of underflowing.

    >>> log_softplus(torch.tensor([-1e4, 0.0, 1e4]))
    tensor([-1.0000e+04, -3.6651e-01,  9.2103e+00])
    """
    result: Tensor = _LogSoftplus.apply(at_least_single(x))
    return result.to(x.dtype)


class _LogSoftplus(torch.autograd.Function):
    """With s = softplus(x): log s, which is x - s/2 - s^2/24 + O(s^4) for small s, and its slope (1 - exp(-s)) / s.

    Written out because it is evaluated for every weight in every step: the automatic gradient of a choice between two
    formulas costs several times as much. Below -8 the omitted terms are smaller than float64's rounding.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        s = softplus(x)
        series = torch.addcmul(x, s, s / 24 + 0.5, value=-1)
        return torch.where(x < -8.0, series, s.log())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = softplus(x).clamp_min(torch.finfo(x.dtype).tiny)
        return gradient * torch.expm1(-s) / -s

    jvp = backward


def inverse_softplus(y: Tensor) -> Tensor:
    """The x with softplus(x) = y, for y > 0: y + log(1 - exp(-y)).

    >>> softplus(inverse_softplus(torch.tensor([1e-8, 1.0, 1e3])))
    tensor([1.0000e-08, 1.0000e+00, 1.0000e+03])
    """
    return y + torch.log(-torch.expm1(-y))
