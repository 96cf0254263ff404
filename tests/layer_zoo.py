"""What the tests of the mathematics share: a layer of every kind, its torch.nn twin, and its output's exact moments."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.utils._python_dispatch import TorchDispatchMode

import dubito
from dubito.layers import BayesLayer
from dubito.variational.posterior import Posterior, posteriors

ARGUMENTS: dict[str, tuple[int, ...]] = {
    "Linear": (3, 4),
    "Conv1d": (4, 2, 3, 2, 1, 1, 2),
    "Conv2d": (2, 2, 2, 1, 1, 2),
    "Conv3d": (1, 2, 2),
    "ConvTranspose1d": (2, 2, 3, 1, 1),  # stride 2 in bfloat16 crashes torch 2.13 on some processors
    "ConvTranspose2d": (2, 2, 2, 2, 1),
    "ConvTranspose3d": (1, 1, 2),
}
"""Positional arguments of one layer of each kind, with strides, paddings, dilations and groups among them."""

INPUTS: dict[str, tuple[int, ...]] = {
    "Linear": (3,),
    "Conv1d": (4, 5),
    "Conv2d": (2, 3, 3),
    "Conv3d": (1, 3, 2, 3),
    "ConvTranspose1d": (2, 3),
    "ConvTranspose2d": (2, 2, 2),
    "ConvTranspose3d": (1, 2, 1, 2),
}
"""The shape of one example for each of them."""

KINDS = tuple(ARGUMENTS)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SAMPLING = ("local", "weight", "flipout")
INDEPENDENT = ("std", "alpha")
FAMILIES = (*INDEPENDENT, "low_rank")


def make_layer(kind: str, *, dtype: torch.dtype = torch.float64, **options: Any) -> BayesLayer:
    return getattr(dubito, f"Bayes{kind}")(*ARGUMENTS[kind], dtype=dtype, **options)


def make_input(kind: str, batch: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, *INPUTS[kind], dtype=torch.float64).to(dtype)


@torch.no_grad()
def randomize(layer: nn.Module, low: float = 0.05, high: float = 1.0) -> Any:
    """Means of about 1 and standard deviations between `low` and `high`, by formulas that are not dubito's."""
    for q in posteriors(layer).values():
        q.mean.copy_(torch.randn_like(q.mean))
        std = torch.empty_like(q.mean).uniform_(math.log(low), math.log(high)).exp()
        if q.name == "alpha":
            q.log_alpha.copy_(2 * torch.log(std / q.mean.abs()))
        else:
            q.rho.copy_(torch.log(torch.expm1(std)))
        if q.name == "low_rank":
            q.factor.copy_(std * torch.randn_like(q.factor))
    return layer


def covariance_of(q: Posterior) -> Tensor:
    """The covariance of the flattened weights, by formulas that are not dubito's."""
    if q.name == "alpha":
        return torch.diag((q.log_alpha.exp() * q.mean.square()).flatten()).detach()
    diagonal = torch.diag(torch.log1p(torch.exp(q.rho)).square().flatten())
    factor = q.factor.flatten(1) if q.name == "low_rank" else diagonal.new_zeros(1, len(diagonal))
    return (diagonal + factor.T @ factor).detach()


def make_twin(kind: str, layer: BayesLayer) -> nn.Module:
    """The torch.nn layer with the same arguments and the posterior means as its weights."""
    twin = getattr(nn, kind)(*ARGUMENTS[kind], bias=layer.bias_mean is not None, dtype=layer.weight_mean.dtype)
    twin.load_state_dict(weights_of(layer))
    return twin


def weights_of(layer: BayesLayer) -> dict[str, Tensor]:
    means = {"weight": layer.weight_mean, "bias": layer.bias_mean}
    return {name: tensor.detach().clone() for name, tensor in means.items() if tensor is not None}


def output_moments(kind: str, layer: BayesLayer, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance J Sigma J' of the flattened output of drawn weights; J = d output / d weights."""
    twin, weights = make_twin(kind, layer), weights_of(layer)
    mean = functional_call(twin, weights, (x,)).flatten()
    jacobian = jacrev(lambda w: functional_call(twin, w, (x,)).flatten())(weights)
    covariance = torch.zeros(len(mean), len(mean), dtype=mean.dtype)
    for name, q in layer.posteriors.items():
        rows = jacobian[name].flatten(1)
        covariance += rows @ covariance_of(q) @ rows.T
    return mean, covariance


class Recorder(TorchDispatchMode):
    """The device and dtype of every tensor of random numbers that torch makes inside."""

    def __init__(self) -> None:
        super().__init__()
        self.noise: set[tuple[torch.device, torch.dtype]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if "rand" in func.name() and isinstance(result, Tensor):
            self.noise.add((result.device, result.dtype))
        return result
