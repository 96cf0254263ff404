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
from dubito.training.muon import Muon
from dubito.variational.natural_gradient import NaturalGradient


@dataclass(frozen=True)
class OptimizerSettings:
    """What an optimiser may need to know.

    Attributes:
        learning_rate: the learning rate, or its peak; a schedule multiplies it in every step.
        l2: the L2 penalty on all parameters, or the weight decay.
        num_data: training images.
        steps: of the whole training.
        temperature: the factor of KL.
        hessian_rate: the share of the Hessian that a step replaces; 0 is 0.25 / steps.
    """

    learning_rate: float = 1e-3
    l2: float = 0.0
    num_data: int = 1
    steps: int | None = None
    temperature: float = 1.0
    hessian_rate: float = 0.0


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
    """Stochastic gradient descent with Nesterov's momentum of 0.9, and an L2 penalty in the gradient."""
    rate, decay = settings.learning_rate, settings.l2
    return torch.optim.SGD(network.parameters(), rate, momentum=0.9, weight_decay=decay, nesterov=True)


@register_optimizer("muon")
def muon(network: nn.Module, settings: OptimizerSettings) -> Optimizer:
    """Muon for hidden weight matrices, and AdamW for the rest, with decoupled weight decay."""
    return Muon(network, settings.learning_rate, settings.l2)


@register_optimizer("natural")
def natural(network: nn.Module, settings: OptimizerSettings) -> Optimizer:
    """Natural gradients of the free energy for posteriors, SGD for the rest."""
    return NaturalGradient(
        network,
        settings.learning_rate,
        settings.num_data,
        temperature=settings.temperature,
        hessian_rate=settings.hessian_rate or None,
        steps=settings.steps,
    )


def loss_term(optimizer: Optimizer) -> str:
    """The term of the free energy that this optimiser takes the gradient of: all of it, unless it says otherwise."""
    return str(getattr(optimizer, "minimizes", "loss"))


def remedy(optimizer: Optimizer) -> str:
    """What to do about a training that diverges with this optimiser."""
    return str(getattr(optimizer, "remedy", "try a smaller --learning-rate, --clip 1 or a longer --warmup-epochs"))


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
