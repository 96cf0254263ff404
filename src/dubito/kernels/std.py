"""sigma = softplus(rho) of many weights, with its gradient.

Where all rho lie well between underflow and overflow, which one look at them tells, log(1 + exp rho) does, and takes
half as long as the general formula. A forward pass needs sigma in the network and again in KL: its values may be given.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dubito.kernels.eager import runs_eagerly
from dubito.softplus import softplus

__all__ = ["applies", "compute", "values"]


def applies(rho: Tensor) -> bool:
    """Whether the tensor is an ordinary one on the CPU."""
    return rho.device.type == "cpu" and runs_eagerly(rho)


def values(rho: Tensor) -> Tensor:
    """softplus(rho), without a gradient."""
    with torch.no_grad():
        smallest, largest = (float(end) for end in rho.aminmax()) if rho.numel() else (0.0, 0.0)
        return rho.exp().log1p_() if smallest > -40 and largest < 80 else softplus(rho)


def compute(rho: Tensor, known: Tensor | None = None) -> Tensor:
    """softplus(rho), differentiable; `known` are its values if they were computed before."""
    result: Tensor = _Std.apply(rho, values(rho) if known is None else known)
    return result


class _Std(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(rho: Tensor, known: Tensor) -> Tensor:
        return known.view_as(known)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (rho,) = ctx.saved_tensors
        return gradient * torch.sigmoid(rho), None
