"""Systems: ways to train a network and to predict with it. Here those of dubito, and the frequentist twin.

Each is made from the same frequentist network, whose layers it replaces, and computes the likelihood by that network's
head; the KL term is its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from dubito.convert import to_bayesian
from dubito.heads import attach_head, resolve_head
from dubito.prediction import Predictor, predict
from dubito.variational.elbo import ELBO
from dubito.variational.natural_gradient import NaturalGradient

NUM_DATA = 50_000
"""Training examples that KL is divided by."""


class System(ABC):
    """A network, its loss and its prediction."""

    name: ClassVar[str]
    package: ClassVar[str] = "dubito"
    """The distribution whose version is noted."""
    modules: ClassVar[tuple[str, ...]] = ()
    """What is imported before memory is measured."""
    trains: ClassVar[bool] = True
    """Whether its training steps are measured."""
    draws: ClassVar[bool] = True
    """Whether its predictions by draws are measured."""

    def __init__(self, network: nn.Module) -> None:
        self.head: Any = resolve_head(network)
        self.network = self.convert(network)

    @abstractmethod
    def convert(self, network: nn.Module) -> nn.Module:
        """The system's own network from a frequentist one, which it may change."""

    @abstractmethod
    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """What a training step minimises."""

    def optimizer(self) -> Optimizer:
        """What takes the training steps."""
        return Adam(self.network.parameters(), lr=1e-4, fused=True)

    def nll(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean negative log-likelihood of one draw."""
        return -self.head.log_likelihood(self.network(images), labels).mean()

    def predictor(self, samples: int) -> Callable[[Tensor], Any]:
        """What predicts images by so many draws. Making it is not timed, calling it is."""

        @torch.no_grad()
        def predicted(images: Tensor) -> Any:
            """Mean and variance of the probabilities, by one forward pass after the other."""
            draws = torch.stack([self.head.probs(self.network(images)) for _ in range(samples)])
            return draws.mean(0), draws.var(0, correction=0)

        return predicted


class Frequentist(System):
    """The twin that all are compared with: point estimates. A prediction by `samples` draws is as many passes."""

    name = "frequentist twin"
    package = "torch"

    def convert(self, network: nn.Module) -> nn.Module:
        """The network itself."""
        return network

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The likelihood alone."""
        return self.nll(images, labels)


class _Dubito(System):
    estimator: ClassVar[str] = "local"

    def convert(self, network: nn.Module) -> nn.Module:
        """Bayesian layers with the estimator."""
        return attach_head(to_bayesian(network, estimator=self.estimator), self.head).train()

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The free energy."""
        return ELBO(NUM_DATA)(self.network, images, labels).loss


class LocalTraining(_Dubito):
    """Training by local reparameterisation."""

    name = "dubito local"
    draws = False


class WeightTraining(_Dubito):
    """Training by one draw of the weights for the whole batch, as most peers make it."""

    name = "dubito weight"
    estimator = "weight"
    draws = False


class NaturalTraining(WeightTraining):
    """Training by natural gradients, with one draw of the weights for the whole batch."""

    name = "dubito natural"

    def optimizer(self) -> Optimizer:
        """Natural gradients, which take the gradient of the likelihood alone."""
        return NaturalGradient(self.network, lr=1e-4, num_data=NUM_DATA)

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The likelihood."""
        return self.nll(images, labels)


class NaturalLocalTraining(NaturalTraining):
    """Training by natural gradients, with local reparameterisation."""

    name = "dubito natural, local"
    estimator = "local"
    draws = False


class FlipoutTraining(_Dubito):
    """Training by flipout."""

    name = "dubito flipout"
    estimator = "flipout"
    draws = False


class WeightPrediction(_Dubito):
    """Predictions by one predictor, made once and called again and again."""

    name = "dubito.Predictor"
    trains = False
    method: ClassVar[str] = "weights"

    def predictor(self, samples: int) -> Callable[[Tensor], Any]:
        """The predictor as its users have it."""
        return Predictor(self.network, samples, self.method)


class OneCallPrediction(_Dubito):
    """Predictions that each draw the weights anew."""

    name = "dubito.predict"
    trains = False

    def predictor(self, samples: int) -> Callable[[Tensor], Any]:
        """The function, which makes a predictor for each call."""
        return lambda images: predict(self.network, images, samples)


class MomentPrediction(WeightPrediction):
    """Predictions by propagated moments: one pass instead of draws."""

    name = "dubito.Predictor, moments"
    method = "moments"
    draws = False


TRAINING: tuple[type[System], ...] = (
    LocalTraining,
    WeightTraining,
    FlipoutTraining,
    NaturalTraining,
    NaturalLocalTraining,
)
"""The ways to train."""
PREDICTION: tuple[type[System], ...] = (WeightPrediction, OneCallPrediction, MomentPrediction)
"""The ways to predict; how the network was trained makes no difference to them."""
OURS: tuple[type[System], ...] = (*TRAINING, *PREDICTION)
"""The systems of dubito."""
