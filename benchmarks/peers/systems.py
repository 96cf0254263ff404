"""The peers: the same network from the layers of other libraries, trained and asked for predictions in their way.

Every mean starts at the twin's weight, every standard deviation at the paper's exp(-5), and every prior is N(0, 1) as
far as the library has it. The KL term is the library's own function, whatever it computes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dubito.benchmark import OURS, Frequentist, System
from dubito.benchmark.systems import NUM_DATA
from dubito.variational.posterior import PAPER_STD

RHO = math.log(math.expm1(PAPER_STD))
"""What softplus makes the initial standard deviation of."""

Twins = dict[type[nn.Module], Callable[[Any], nn.Module]]


def replaced(network: nn.Module, twins: Twins) -> nn.Module:
    """The network with every convolution and linear layer replaced, in training mode."""
    for name, layer in list(network.named_children()):
        if type(layer) in twins:
            setattr(network, name, twins[type(layer)](layer))
        else:
            replaced(layer, twins)
    return network.train()


@torch.no_grad()
def filled(layer: nn.Module, values: dict[str, Tensor | float | None]) -> nn.Module:
    """The layer with these values in the parameters that it has; None leaves one as it is."""
    for name, value in values.items():
        if value is not None and getattr(layer, name, None) is not None:
            getattr(layer, name).copy_(torch.as_tensor(value))
    return layer


def linear_options(layer: nn.Linear) -> dict[str, Any]:
    return {"in_features": layer.in_features, "out_features": layer.out_features}


def bias_option(layer: nn.Conv2d | nn.Linear) -> dict[str, bool]:
    """For libraries whose layers can be without one."""
    return {"bias": layer.bias is not None}


def convolution_options(layer: nn.Conv2d) -> dict[str, Any]:
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
    return {name: getattr(layer, name) for name in names}


class Peer(System):
    """A system whose loss is the likelihood of one draw plus its own KL."""

    @abstractmethod
    def kl(self) -> Tensor:
        """The library's KL term of the last forward pass."""

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.nll(images, labels) + self.kl() / NUM_DATA


class PlainLocal(nn.Module):
    """The local reparameterisation trick written down with torch's own operations: two convolutions."""

    def __init__(self, layer: nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        self.weight_mean, self.bias_mean = layer.weight, layer.bias
        self.weight_rho = nn.Parameter(torch.full_like(layer.weight, RHO))
        self.bias_rho = None if layer.bias is None else nn.Parameter(torch.full_like(layer.bias, RHO))
        self.geometry = (layer.stride, layer.padding) if isinstance(layer, nn.Conv2d) else None

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight, bias) if self.geometry is None else F.conv2d(x, weight, bias, *self.geometry)

    def forward(self, x: Tensor) -> Tensor:
        self.stds = [F.softplus(rho) for rho in (self.weight_rho, self.bias_rho) if rho is not None]
        mean = self.linear_map(x, self.weight_mean, self.bias_mean)
        variance = self.linear_map(x**2, *(std**2 for std in self.stds))
        return mean + torch.sqrt(variance + 1e-16) * torch.randn_like(mean)

    def kl(self) -> Tensor:
        means = [mean for mean in (self.weight_mean, self.bias_mean) if mean is not None]
        pairs = zip(means, self.stds, strict=True)
        return sum((0.5 * (mean**2 + std**2 - 1) - std.log()).sum() for mean, std in pairs)


class PlainLayers(Peer):
    name = "plain two-convolution layers"
    package = "torch"

    def convert(self, network: nn.Module) -> nn.Module:
        return replaced(network, {nn.Conv2d: PlainLocal, nn.Linear: PlainLocal})

    def kl(self) -> Tensor:
        return sum(layer.kl() for layer in self.network.modules() if isinstance(layer, PlainLocal))


class BayesianTorch(Peer):
    name = "bayesian-torch reparameterization"
    package = "bayesian-torch"
    modules = ("bayesian_torch.models.dnn_to_bnn",)
    kind: ClassVar[str] = "Reparameterization"

    def convert(self, network: nn.Module) -> nn.Module:
        from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn

        options = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": RHO}
        weights = [layer for layer in network.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
        dnn_to_bnn(network, {**options, "type": self.kind, "moped_enable": False})
        layers = [layer for layer in network.modules() if hasattr(layer, "kl_loss")]
        for layer, twin in zip(layers, weights, strict=True):
            kernel = "kernel" if isinstance(twin, nn.Conv2d) else "weight"
            filled(layer, {f"mu_{kernel}": twin.weight, "mu_bias": twin.bias})
        return network.train()

    def kl(self) -> Tensor:
        from bayesian_torch.models.dnn_to_bnn import get_kl_loss

        return get_kl_loss(self.network)


class BayesianTorchFlipout(BayesianTorch):
    name = "bayesian-torch flipout"
    kind = "Flipout"


class TorchBNN(Peer):
    name = "torchbnn"
    package = "torchbnn"
    modules = ("torchbnn",)

    def convert(self, network: nn.Module) -> nn.Module:
        import torchbnn

        def twin(layer: nn.Module) -> nn.Module:
            if isinstance(layer, nn.Conv2d):
                made = torchbnn.BayesConv2d(0.0, 1.0, **convolution_options(layer), **bias_option(layer))
            else:
                made = torchbnn.BayesLinear(0.0, 1.0, **linear_options(layer))
            log_std = math.log(PAPER_STD)
            stds = {"weight_log_sigma": log_std, "bias_log_sigma": log_std}
            return filled(made, {"weight_mu": layer.weight, "bias_mu": layer.bias, **stds})

        self._kl = torchbnn.BKLLoss(reduction="sum")
        return replaced(network, {nn.Conv2d: twin, nn.Linear: twin})

    def kl(self) -> Tensor:
        return self._kl(self.network)


class Blitz(Peer):
    name = "blitz"
    package = "blitz-bayesian-pytorch"
    modules = ("blitz.modules", "blitz.losses")

    def convert(self, network: nn.Module) -> nn.Module:
        from blitz.modules import BayesianConv2d, BayesianLinear

        def twin(layer: nn.Module) -> nn.Module:
            options = {"posterior_rho_init": RHO, "prior_sigma_1": 1.0, **bias_option(layer)}
            if isinstance(layer, nn.Conv2d):
                made = BayesianConv2d(**convolution_options(layer), **options)
            else:
                made = BayesianLinear(**linear_options(layer), **options)
            return filled(made, {"weight_mu": layer.weight, "bias_mu": layer.bias})

        return replaced(network, {nn.Conv2d: twin, nn.Linear: twin})

    def kl(self) -> Tensor:
        from blitz.losses import kl_divergence_from_nn

        return kl_divergence_from_nn(self.network)


class Bensemble(Peer):
    name = "bensemble local"
    package = "bensemble"
    modules = ("bensemble.layers.conv", "bensemble.layers.linear")

    def convert(self, network: nn.Module) -> nn.Module:
        from bensemble.layers.conv import BayesianConv2d
        from bensemble.layers.linear import BayesianLinear

        def twin(layer: nn.Module) -> nn.Module:
            options = {"prior_sigma": 1.0, "init_sigma": PAPER_STD}
            if isinstance(layer, nn.Conv2d):
                made = BayesianConv2d(**convolution_options(layer), **options)
            else:
                made = BayesianLinear(**linear_options(layer), **options)
            return filled(made, {"w_mu": layer.weight, "b_mu": layer.bias})

        return replaced(network, {nn.Conv2d: twin, nn.Linear: twin})

    def kl(self) -> Tensor:
        return sum(layer.kl_divergence() for layer in self.network.modules() if hasattr(layer, "kl_divergence"))


class TorchUncertainty(Peer):
    name = "torch-uncertainty"
    package = "torch-uncertainty"
    modules = ("torch_uncertainty.layers.bayesian", "torch_uncertainty.losses")

    def convert(self, network: nn.Module) -> nn.Module:
        from torch_uncertainty.layers.bayesian import BayesConv2d, BayesLinear
        from torch_uncertainty.losses import KLDiv

        def twin(layer: nn.Module) -> nn.Module:
            options = {"sigma_init": RHO, "prior_sigma_1": 1.0, **bias_option(layer)}
            if isinstance(layer, nn.Conv2d):
                made = BayesConv2d(**convolution_options(layer), **options)
            else:
                made = BayesLinear(**linear_options(layer), **options)
            return filled(made, {"weight_mu": layer.weight, "bias_mu": layer.bias})

        made = replaced(network, {nn.Conv2d: twin, nn.Linear: twin})
        self._kl = KLDiv(made)
        return made

    def kl(self) -> Tensor:
        return self._kl()


PEERS: tuple[type[System], ...] = (
    *(PlainLayers, BayesianTorch, BayesianTorchFlipout, TorchBNN, Blitz, Bensemble, TorchUncertainty),
)
SYSTEMS: tuple[type[System], ...] = (Frequentist, *OURS, *PEERS)
