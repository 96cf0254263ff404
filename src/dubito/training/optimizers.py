"""The optimisers that a training can use: one function each, and nothing else knows which one it is.

A function takes the network and the settings and returns a torch optimiser. Its whole state goes into checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from dubito.errors import OptionError, unknown

__all__ = ["OPTIMIZERS", "OptimizerSettings", "make_optimizer", "optimizer_maker", "register_optimizer"]


@dataclass(frozen=True)
class OptimizerSettings:
    """What an optimiser may need to know.

    Attributes:
        learning_rate: the learning rate, or its peak; a schedule multiplies it in every step.
        l2: the L2 penalty on all parameters, or the weight decay.
        num_data: training images.
    """

    learning_rate: float = 1e-3
    l2: float = 0.0
    num_data: int = 1


MakeOptimizer = Callable[[nn.Module, OptimizerSettings], Optimizer]

OPTIMIZERS: dict[str, MakeOptimizer] = {}
"""Every optimiser by name."""


def register_optimizer(name: str) -> Callable[[MakeOptimizer], MakeOptimizer]:
    """Register the decorated function as the optimiser `name`."""

    def keep(make: MakeOptimizer) -> MakeOptimizer:
        OPTIMIZERS[name] = make
        return make

    return keep


@register_optimizer("adam")
def adam(network: nn.Module, settings: OptimizerSettings) -> Optimizer:
    """Adam, with an L2 penalty in the gradient."""
    rate, decay = settings.learning_rate, settings.l2
    return torch.optim.Adam(network.parameters(), rate, weight_decay=decay, fused=_can_fuse(network))


@register_optimizer("adamw")
def adamw(network: nn.Module, settings: OptimizerSettings) -> Optimizer:
    """Adam with decoupled weight decay."""
    rate, decay = settings.learning_rate, settings.l2
    return torch.optim.AdamW(network.parameters(), rate, weight_decay=decay, fused=_can_fuse(network))


@register_optimizer("sgd")
def sgd(network: nn.Module, settings: OptimizerSettings) -> Optimizer:
    """Stochastic gradient descent with momentum 0.9, and an L2 penalty in the gradient."""
    return torch.optim.SGD(network.parameters(), settings.learning_rate, momentum=0.9, weight_decay=settings.l2)


def _can_fuse(network: nn.Module) -> bool:
    return next(network.parameters()).device.type in ("cpu", "cuda")


def optimizer_maker(name: str) -> MakeOptimizer:
    """The function that makes the optimiser `name`; an unknown name lists the valid ones."""
    if name not in OPTIMIZERS:
        raise OptionError(unknown("optimizer", name, OPTIMIZERS))
    return OPTIMIZERS[name]


def make_optimizer(name: str, network: nn.Module, settings: OptimizerSettings | None = None) -> Optimizer:
    """The optimiser `name` for a network's parameters.

    >>> make_optimizer("sgd", nn.Linear(2, 1), OptimizerSettings(learning_rate=0.5)).param_groups[0]["lr"]
    0.5
    """
    optimizer = optimizer_maker(name)(network, settings or OptimizerSettings())
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]  # what a schedule multiplies
    return optimizer
