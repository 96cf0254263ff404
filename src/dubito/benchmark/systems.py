"""Systems: ways to a network that can be trained and asked for predictions. Here those of dubito, and the twin.

Each is made from the same frequentist network, whose layers it replaces, and computes the likelihood by that network's
head; the KL term is its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dubito.convert import to_bayesian
from dubito.estimators import Estimator, Flipout, Local, Weight
from dubito.heads import ClassificationHead, attach_head, categorical_log_likelihood, resolve_head
from dubito.prediction import predict
from dubito.variational.elbo import ELBO

__all__ = [
    "NUM_DATA",
    "OURS",
    "Flips",
    "Frequentist",
    "FrequentistInFour",
    "LocalDraws",
    "Moments",
    "OneWeightDraw",
    "System",
    "WeightDraws",
]

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
    """Whether training it is measured."""
    predicts: ClassVar[bool] = True
    """Whether its predictions are measured."""

    def __init__(self, network: nn.Module) -> None:
        head = resolve_head(network)
        assert isinstance(head, ClassificationHead)
        self.head = head
        self.network = self.convert(network)

    @abstractmethod
    def convert(self, network: nn.Module) -> nn.Module:
        """The system's own network from a frequentist one, which it may change."""

    @abstractmethod
    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """What a training step minimises."""

    def nll(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean negative log-likelihood of one draw."""
        return -categorical_log_likelihood(self.head.log_probs(self.network(images)), labels).mean()

    @torch.no_grad()
    def predict(self, images: Tensor, samples: int) -> Any:
        """Mean and variance of the probabilities over draws, one forward pass after the other."""
        draws = torch.stack([self.head.probs(self.network(images)) for _ in range(samples)])
        return draws.mean(0), draws.var(0, correction=0)


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


class FrequentistInFour(Frequentist):
    """The twin that takes its batch in quarters, as a network must that has other weights for each of them."""

    name = "frequentist twin, batch in 4"
    predicts = False

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean of the quarters' losses, or of as many parts as there are images."""
        parts = zip(images.chunk(4), labels.chunk(4), strict=True)
        return torch.stack([self.nll(*part) * len(part[0]) for part in parts]).sum() / len(images)


class _Dubito(System):
    estimator: ClassVar[Estimator] = Local()
    method: ClassVar[str] = "sample"

    def convert(self, network: nn.Module) -> nn.Module:
        """Bayesian layers with the estimator."""
        return attach_head(to_bayesian(network, estimator=self.estimator), self.head).train()

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The free energy."""
        return ELBO(NUM_DATA)(self.network, images, labels).loss

    def predict(self, images: Tensor, samples: int) -> Any:
        """The prediction as users get it."""
        return predict(self.network, images, samples, self.method)


class LocalDraws(_Dubito):
    """Local reparameterisation, and prediction by the default route."""

    name = "dubito local"


class WeightDraws(_Dubito):
    """Four draws of the weights per batch, in antithetic pairs."""

    name = "dubito weight (4 antithetic)"
    estimator = Weight(4, antithetic=True)


class OneWeightDraw(_Dubito):
    """One draw of the weights for the whole batch, as most peers make it."""

    name = "dubito weight (1 draw)"
    estimator = Weight()


class Flips(_Dubito):
    """Flipout."""

    name = "dubito flipout"
    estimator = Flipout()


class Moments(_Dubito):
    """Prediction by propagated moments: one pass, whatever the number of draws."""

    name = "dubito moments"
    method = "moments"
    trains = False


OURS: tuple[type[System], ...] = (LocalDraws, WeightDraws, OneWeightDraw, Flips, Moments)
"""The systems of dubito."""
