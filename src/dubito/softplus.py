"""The softplus function, its logarithm and its inverse, without overflow or cancellation.

softplus(x) = log(1 + exp x) is the paper's activation, its output normalisation and the map from a free parameter to
a standard deviation, so its numerics are in one place.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["at_least_single", "inverse_softplus", "log_softplus", "softplus"]


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

    softplus(x) -> exp(x) for very negative x, so that its logarithm is x - exp(x)/2 + 5 exp(2x)/24 - ...; beyond -12
    the first omitted term is below float64's rounding.

    >>> log_softplus(torch.tensor([-1e4, 0.0, 1e4]))
    tensor([-1.0000e+04, -3.6651e-01,  9.2103e+00])
    """
    wide = at_least_single(x)
    # Each branch gets only arguments that are harmless to it: the gradient of the branch not taken is 0 * finite.
    low = wide.clamp(max=-12.0)
    exponential = low.exp()
    series = low - exponential / 2 + 5 * exponential.square() / 24
    direct = softplus(wide.clamp(min=-12.0)).log()
    return torch.where(wide < -12.0, series, direct).to(x.dtype)


def inverse_softplus(y: Tensor) -> Tensor:
    """The x with softplus(x) = y, for y > 0: y + log(1 - exp(-y)).

    >>> softplus(inverse_softplus(torch.tensor([1e-8, 1.0, 1e3])))
    tensor([1.0000e-08, 1.0000e+00, 1.0000e+03])
    """
    return y + torch.log(-torch.expm1(-y))
