"""Muon (Jordan et al. 2024): AdamW, but the updates of hidden weight matrices are made orthogonal.

Momentum is a matrix of which a few directions are much larger than all others. Muon replaces it by the nearest
orthogonal matrix, in which all directions count the same, and so needs fewer epochs. The filters of a convolution are
the rows of a matrix. An update has the size that one of Adam's has (Liu et al. 2025), so that learning rates and weight
decays mean the same for both.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from dubito.variational.joint_optimizer import JointOptimizer

MOMENTUM = 0.95
SIZE_OF_ADAMS = 0.2
"""The root mean square of a typical update of Adam, in learning rates."""
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of Jordan's quintic iteration, which five times over brings singular values near 1."""


class Muon(JointOptimizer):
    """Orthogonal updates for all weight matrices and filters but the first and the last; AdamW for everything else.

    Args:
        network: what to train; of point estimates alone.
        lr: the learning rate.
        weight_decay: decoupled from the gradient, as in AdamW.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    >>> [len(group["params"]) for group in Muon(network, lr=1e-3).param_groups]
    [1, 5]
    """

    def __init__(self, network: nn.Module, lr: float, weight_decay: float = 0.0) -> None:
        learning = [parameter for parameter in network.parameters() if parameter.requires_grad]
        hidden = [parameter for parameter in learning if parameter.dim() > 1][1:-1]
        known = set(map(id, hidden))
        rest = [parameter for parameter in learning if id(parameter) not in known]
        super().__init__([{"params": hidden}], {"lr": lr, "weight_decay": weight_decay})
        self._adopt(AdamW(rest, lr, weight_decay=weight_decay))

    def _move_own(self) -> None:
        group = self.param_groups[0]
        for weight in group["params"]:
            if weight.grad is None:
                continue
            state = self.state[weight]
            if not state:
                state["momentum"] = torch.zeros_like(weight)
            state["momentum"].lerp_(weight.grad, 1 - MOMENTUM)
            ahead = weight.grad.lerp(state["momentum"], MOMENTUM).flatten(1)  # Nesterov
            size = SIZE_OF_ADAMS * math.sqrt(max(ahead.shape))
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            weight.sub_(orthogonal(ahead).view_as(weight), alpha=group["lr"] * size)


def orthogonal(matrix: Tensor) -> Tensor:
    """About the nearest matrix with orthonormal rows or columns: singular values between 0.65 and 1.25.

    >>> matrix = torch.tensor([[3.0, 0.0], [0.0, -1.0]])
    >>> [0.65 < float(value) < 1.25 for value in torch.linalg.svdvals(orthogonal(matrix))]
    [True, True]
    """
    a, b, c = NEWTON_SCHULZ
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.t()
    x = wide / wide.norm().clamp_min(torch.finfo(wide.dtype).tiny)
    for _ in range(5):
        square = x @ x.t()
        x = a * x + (b * square + c * square @ square) @ x
    return x if wide is matrix else x.t()
