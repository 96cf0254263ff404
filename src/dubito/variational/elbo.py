"""The free energy that training minimises (paper, equations 1 and 3), and the weight of KL in each minibatch.

    loss = mean over the minibatch of -log p(y | x, w)  +  kl_weight * KL[q || p] / num_data

With kl_weight = 1 this is the negative evidence lower bound per example. Class weights, labels to ignore and label
smoothing change log p(y | x, w) (see :mod:`dubito.heads.categorical`), and nothing else: the sum over a minibatch is
divided by its number of examples B, not by the sum of their weights. So

    loss = -1/B sum_i sum_c w_c t_ic log p_c(x_i)  +  kl_weight * KL[q || p] / num_data

is for every minibatch size an unbiased estimate of the free energy of all num_data examples, of which one of class c
counts as w_c observations, and an ignored one as none. Weights with a mean of 1 over the training examples, as
`balanced_class_weights` has them, leave KL its share. A schedule spreads KL over the M minibatches
of an epoch: kl_weight = temperature * M * beta_i, where the beta_i sum to 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from dubito.errors import OptionError, ShapeError, choose, not_a_tensor
from dubito.heads import CategoricalLikelihood, Head, get_head, resolve_head
from dubito.heads.categorical import LabelOptions
from dubito.variational.kl import kl_divergence
from dubito.variational.posterior import one_pass, posteriors
from dubito.variational.unused import looked_at, unused, warn_of_unused


@dataclass(frozen=True)
class FreeEnergy:
    """The terms of one step, each a scalar that can be differentiated and reported apart.

    Attributes:
        loss: what to minimise.
        nll: mean negative log-likelihood per example, in nats; with class weights, smoothing and all.
        kl: KL[q || p] over all weights, in nats, neither weighted nor divided.
        log_probs: log-probabilities (N, C, ...) of a classification head, their mean over the draws in probability;
            without gradient, for reporting accuracy.
    """

    loss: Tensor
    nll: Tensor
    kl: Tensor
    log_probs: Tensor | None = None


class ELBO:
    """The objective: a callable that gives loss, nll and kl of a minibatch.

    Args:
        num_data: the number of training examples (not of minibatches).
        head: how outputs become a likelihood; None for the model's own.
        temperature: multiplies KL; 1 is the evidence lower bound, less is a cold posterior.
        samples: draws of the network per step; their log-likelihoods are averaged.
        kl_samples: None for KL in closed form, a number for the Monte Carlo form of equation (3), whose first draw has
            the weights of the forward pass (``local`` draws no weights, so there they are independent of it).
        class_weights: (K,) the weight of an observation of each class; None for 1 each.
        ignore_index: the label of examples or pixels that do not count; None if all do. `num_data` and the mean over
            the minibatch count ignored examples too.
        label_smoothing: the share of every target that is spread evenly over the classes, 0 ... 1.

    >>> import dubito
    >>> model = dubito.BayesLinear(4, 3)
    >>> objective = ELBO(num_data=60000, head="softplus")
    >>> terms = objective(model, torch.randn(8, 4), torch.randint(3, (8,)))
    >>> bool(terms.loss == terms.nll + terms.kl / 60000)
    True
    """

    def __init__(
        self,
        num_data: int,
        head: str | Head | None = None,
        *,
        temperature: float = 1.0,
        samples: int = 1,
        kl_samples: int | None = None,
        **labels: Unpack[LabelOptions],
    ) -> None:
        if num_data < 1:
            raise OptionError(f"num_data is {num_data}, but must be the number of training examples, at least 1.")
        if samples < 1:
            raise OptionError(f"samples is {samples}, but a step needs at least 1 draw of the network.")
        self.num_data = num_data
        self.head = None if head is None else get_head(head)
        if not (temperature >= 0 and math.isfinite(temperature)):
            raise OptionError(f"temperature is {temperature}, but must be at least 0 and finite.")
        self.temperature = temperature
        self.samples = samples
        self.kl_samples = kl_samples
        self.likelihood = CategoricalLikelihood(**labels)

    def __call__(
        self,
        model: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        kl_weight: float | None = None,
        *,
        with_kl: bool = True,
    ) -> FreeEnergy:
        """The free energy of a minibatch, with KL weighted by `kl_weight`: the temperature, unless it is given.

        Without KL, which is then 0, a step is quicker: :class:`dubito.NaturalGradient` needs the likelihood alone.
        """
        head = resolve_head(model, self.head)
        if not (head.classifies or self.likelihood.plain):
            raise OptionError(
                f"The {head.name} head has no classes, so class_weights, ignore_index and label_smoothing cannot be "
                "given with it."
            )
        likelihoods: list[Tensor] = []
        log_probs: list[Tensor] = []
        divergences: list[Tensor] = []
        for _ in range(self.samples):
            with one_pass():
                outputs = model(inputs)
                if not isinstance(outputs, Tensor):
                    raise ShapeError(not_a_tensor(outputs, "ELBO"))
                if head.classifies:
                    log_probs.append(head.log_probs(outputs))
                    likelihoods.append(self.likelihood(log_probs[-1], targets))
                else:
                    likelihoods.append(head.log_likelihood(outputs, targets))
                if with_kl and (not divergences or self.kl_samples is not None):  # the closed form is always the same
                    divergences.append(kl_divergence(model, samples=self.kl_samples))
        nll = -torch.stack(likelihoods).mean()
        kl = torch.stack(divergences).mean() if divergences else torch.zeros_like(nll)
        _look_for_unused(model, nll)
        weight = self.temperature if kl_weight is None else kl_weight
        return FreeEnergy(nll + weight * kl / self.num_data, nll, kl, _mean_log_probs(log_probs))


def _look_for_unused(model: nn.Module, nll: Tensor) -> None:
    """Once for a model: name the posteriors that the likelihood does not depend on, though KL counts them."""
    if torch.compiler.is_compiling() or model in looked_at or not nll.requires_grad:
        return
    if torch.func.debug_unwrap(nll, recurse=False) is not nll:
        return  # a transform of torch.func differentiates in its own way
    looked_at.add(model)
    names = unused(nll, {name: q.mean for name, q in posteriors(model).items()})
    warn_of_unused(names, "The forward pass", "KL counts them", stacklevel=3)


def _mean_log_probs(draws: list[Tensor]) -> Tensor | None:
    if not draws:
        return None
    if len(draws) == 1:
        return draws[0].detach()
    return torch.logsumexp(torch.stack(draws).detach(), 0) - math.log(len(draws))


class KLScheduleName(str, Enum):
    """How KL is spread over the minibatches of an epoch."""

    BLUNDELL = "blundell"
    UNIFORM = "uniform"
    WARMUP = "warmup"
    CONSTANT = "constant"


@dataclass(frozen=True)
class KLSchedule:
    """The weight of KL in every minibatch.

    - ``uniform``: beta_i = 1/M.
    - ``blundell``: beta_i = 2^(M-i) / (2^M - 1), i = 1 ... M, the paper's: early minibatches feel the prior.
    - ``warmup``: beta_i = 1/M times a ramp that rises linearly from 0 to 1 over the first `warmup_epochs` epochs.
    - ``constant``: the weight is `temperature` in every minibatch.

    `temperature` multiplies every weight; any other value than 1 is no longer the evidence lower bound.

    >>> KLSchedule("blundell").betas(3)
    tensor([0.5714, 0.2857, 0.1429], dtype=torch.float64)
    >>> [KLSchedule("warmup", warmup_epochs=2).weight(0, 10, epoch) for epoch in range(4)]
    [0.0, 0.5, 1.0, 1.0]
    """

    name: str = KLScheduleName.UNIFORM.value
    temperature: float = 1.0
    warmup_epochs: float = 1.0

    def __post_init__(self) -> None:
        choose(KLScheduleName, self.name, "KL schedule")
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise OptionError(f"temperature is {self.temperature}, but must be at least 0 and finite.")
        if self.warmup_epochs < 0:
            raise OptionError(f"warmup_epochs is {self.warmup_epochs}, but must be at least 0.")

    def betas(self, num_batches: int) -> Tensor:
        """The share of each minibatch of an epoch, in float64; they sum to 1."""
        _require_batches(num_batches)
        if self.name == KLScheduleName.BLUNDELL:
            halvings = torch.arange(1, num_batches + 1, dtype=torch.float64)
            return torch.exp2(-halvings) / -math.expm1(-num_batches * math.log(2))
        return torch.full((num_batches,), 1 / num_batches, dtype=torch.float64)

    def weight(self, batch: int, num_batches: int, epoch: int = 0) -> float:
        """kl_weight of minibatch number `batch` (from 0) of `num_batches`, in epoch number `epoch` (from 0)."""
        _require_batches(num_batches)
        if not 0 <= batch < num_batches:
            raise OptionError(f"batch is {batch}, but must lie in 0 ... {num_batches - 1}.")
        weight = self.temperature
        if self.name == KLScheduleName.BLUNDELL:
            # 2^(M-i) / (2^M - 1) = 2^-i / (1 - 2^-M): nothing overflows, however many minibatches there are
            weight *= num_batches * 2.0 ** -(batch + 1) / -math.expm1(-num_batches * math.log(2))
        elif self.name == KLScheduleName.WARMUP and self.warmup_epochs > 0:
            weight *= min(1.0, (epoch + batch / num_batches) / self.warmup_epochs)
        return weight


def _require_batches(num_batches: int) -> None:
    if num_batches < 1:
        raise OptionError(f"num_batches is {num_batches}, but an epoch has at least 1 minibatch.")
