"""Heads: how a network's outputs become probabilities, one and the same in training and prediction.

- ``softplus``: the paper's normalisation (section 3.2), p_c = softplus(f_c) / sum_k softplus(f_k).
- ``softmax``: the usual one, which Kwon et al. split.
- ``kendall_gal``: 2K outputs, means and variances of K logits; the comparator that the paper discusses in section 3.1.
- ``gaussian``: a regression likelihood N(y | f, std^2) with known noise.

A head belongs to a model: :func:`attach_head` puts it there, and `ELBO` and `predict` find it.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dubito.errors import DubitoWarning, HeadError, OptionError, ShapeError, unknown
from dubito.kernels.autograd import has_values
from dubito.softplus import at_least_single, log_softplus, softplus

__all__ = [
    "ClassificationHead",
    "GaussianHead",
    "Head",
    "KendallGalHead",
    "SoftmaxHead",
    "SoftplusHead",
    "attach_head",
    "get_head",
    "log_softplus_normalize",
    "resolve_head",
    "softplus_normalize",
]


def _require_class_axis(logits: Tensor, dim: int) -> None:
    if logits.dim() == 0 or not -logits.dim() <= dim < logits.dim() or logits.shape[dim] == 0:
        raise ShapeError(
            f"The logits have shape {tuple(logits.shape)}, but need a class axis {dim} with at least one class."
        )
    if not logits.is_floating_point():
        raise ShapeError(f"The logits are {logits.dtype}, but must be floating point: give the network's raw outputs.")


def log_softplus_normalize(logits: Tensor, dim: int = -1) -> Tensor:
    """The logarithm of :func:`softplus_normalize`, finite with finite gradients for any finite logits.

    >>> log_softplus_normalize(torch.tensor([1e4, -1e4]))
    tensor([     0.0000, -10009.2100])
    """
    _require_class_axis(logits, dim)
    return torch.log_softmax(log_softplus(at_least_single(logits)), dim).to(logits.dtype)


def softplus_normalize(logits: Tensor, dim: int = -1) -> Tensor:
    """Probabilities p_c = softplus(f_c) / sum_k softplus(f_k) along the class axis `dim`.

    Computed as a softmax of log softplus(f), so that logits which are all very negative do not give 0/0.

    >>> softplus_normalize(torch.tensor([0.0, 0.0, -50.0]))
    tensor([5.0000e-01, 5.0000e-01, 1.3913e-22])
    """
    _require_class_axis(logits, dim)
    return torch.softmax(log_softplus(at_least_single(logits)), dim).to(logits.dtype)


class Head(ABC):
    """Turns a network's outputs into a likelihood."""

    name: ClassVar[str]

    @abstractmethod
    def log_likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """log p(y | outputs) of each example, in nats: shape (N,)."""


class ClassificationHead(Head):
    """A head whose likelihood is categorical; the class axis is 1, as in torch's losses."""

    def num_outputs(self, num_classes: int) -> int:
        """How many outputs the network needs for `num_classes` classes."""
        return num_classes

    @abstractmethod
    def log_probs(self, outputs: Tensor) -> Tensor:
        """Log-probabilities, shape (N, C, ...)."""

    @abstractmethod
    def probs(self, outputs: Tensor) -> Tensor:
        """Probabilities, shape (N, C, ...)."""

    def log_likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Log-probability of the targets: class numbers (N, ...) or class probabilities (N, C, ...).

        Pixels of a dense output are summed, for each is an observation of its own.
        """
        return categorical_log_likelihood(self.log_probs(outputs), targets)


def categorical_log_likelihood(log_probs: Tensor, targets: Tensor) -> Tensor:
    """log p(y) of each example from log-probabilities (N, C, ...) and targets, as (N,), in at least float32."""
    log_probs = at_least_single(log_probs)
    class_numbers = (log_probs.shape[0], *log_probs.shape[2:])
    if targets.is_floating_point() and targets.shape == log_probs.shape:
        picked = (targets * log_probs).sum(1)
    elif not targets.is_floating_point() and targets.shape == class_numbers:
        _require_known_classes(targets, log_probs.shape[1])
        picked = log_probs.gather(1, targets.long().unsqueeze(1)).squeeze(1)
    else:
        raise ShapeError(
            f"The targets have shape {tuple(targets.shape)} and type {targets.dtype}, but must be class numbers of "
            f"shape {class_numbers} or class probabilities of shape {tuple(log_probs.shape)}."
        )
    return picked.flatten(1).sum(1) if picked.dim() > 1 else picked


def _require_known_classes(targets: Tensor, num_classes: int) -> None:
    if targets.device.type != "cpu" or targets.numel() == 0 or not has_values(targets):
        return  # looking at values would stall an accelerator or break a graph
    low, high = (int(v) for v in targets.aminmax())
    if low < 0 or high >= num_classes:
        raise ShapeError(
            f"The targets go from {low} to {high}, but the network has {num_classes} classes, so they must lie in "
            f"0 ... {num_classes - 1}."
        )


@dataclass(frozen=True)
class SoftplusHead(ClassificationHead):
    """The paper's Softplus normalisation.

    >>> SoftplusHead().probs(torch.tensor([[1e4, -1e4]]))
    tensor([[1., 0.]])
    """

    name: ClassVar[str] = "softplus"

    def log_probs(self, outputs: Tensor) -> Tensor:
        """log p, see :func:`log_softplus_normalize`."""
        return log_softplus_normalize(_with_class_axis(outputs), 1)

    def probs(self, outputs: Tensor) -> Tensor:
        """p, see :func:`softplus_normalize`."""
        return softplus_normalize(_with_class_axis(outputs), 1)


@dataclass(frozen=True)
class SoftmaxHead(ClassificationHead):
    """The usual exponential normalisation."""

    name: ClassVar[str] = "softmax"

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Log p = f - logsumexp(f)."""
        return torch.log_softmax(at_least_single(_with_class_axis(outputs)), 1).to(outputs.dtype)

    def probs(self, outputs: Tensor) -> Tensor:
        """P = exp(f) / sum exp(f)."""
        return torch.softmax(at_least_single(_with_class_axis(outputs)), 1).to(outputs.dtype)


@dataclass(frozen=True)
class KendallGalHead(ClassificationHead):
    """Kendall & Gal (2017): the network gives mean and variance of every logit.

    Of 2K outputs the first K are the means and softplus of the others the variances. The likelihood integrates the
    Gaussian logits by `samples` draws: p = mean_s softmax(mean + sqrt(variance) * eps_s).

    The two uncertainties of a prediction are variances of logits, which grow with the size of the outputs: to tell
    wrong predictions from right ones take an entropy, or another head (docs/reproduction.md, table 2).
    """

    samples: int = 16
    name: ClassVar[str] = "kendall_gal"

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise OptionError(f"KendallGalHead got samples={self.samples}, but needs at least 1 draw of the logits.")

    def num_outputs(self, num_classes: int) -> int:
        """Twice the number of classes."""
        return 2 * num_classes

    def logit_moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the logits, each (N, K, ...)."""
        outputs = _with_class_axis(outputs)
        if outputs.shape[1] % 2 or outputs.shape[1] == 2:
            raise ShapeError(
                f"The outputs have shape {tuple(outputs.shape)}, but the kendall_gal head needs 2K channels: "
                "K means and K variances, of at least 2 classes."
            )
        mean, free = outputs.chunk(2, dim=1)
        return mean, softplus(free)

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Log of the mean over the drawn logits' softmax, with noise of its own for every example."""
        return self._integrate(outputs, outputs.shape[0]).to(outputs.dtype)

    def probs(self, outputs: Tensor) -> Tensor:
        """Mean over the drawn logits' softmax, with noise that all examples share: no batch size changes it."""
        return self._integrate(outputs, 1).exp().to(outputs.dtype)

    def _integrate(self, outputs: Tensor, noises: int) -> Tensor:
        mean, variance = (at_least_single(t) for t in self.logit_moments(outputs))
        noise = torch.randn((self.samples, noises, *mean.shape[1:]), dtype=mean.dtype, device=mean.device)
        # variance = softplus(...) may underflow to 0, where the root has no gradient
        logits = torch.addcmul(mean, variance.clamp_min(torch.finfo(mean.dtype).tiny).sqrt(), noise)
        drawn = torch.log_softmax(logits, 2)
        return torch.logsumexp(drawn, 0) - math.log(self.samples)


@dataclass(frozen=True)
class GaussianHead(Head):
    """Regression with known noise: log N(y | f, std^2), summed over the outputs of an example."""

    std: float = 1.0
    name: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        if not (self.std > 0 and math.isfinite(self.std)):
            raise OptionError(f"GaussianHead got std={self.std}, but the noise must be a positive finite number.")

    def log_likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Log-density of each example's targets, in nats."""
        if outputs.shape != targets.shape:
            raise ShapeError(
                f"The targets have shape {tuple(targets.shape)}, but must have that of the outputs, "
                f"{tuple(outputs.shape)}."
            )
        density = F.mse_loss(at_least_single(outputs), at_least_single(targets), reduction="none") / (-2 * self.std**2)
        density = density - math.log(self.std) - math.log(2 * math.pi) / 2
        return density.flatten(1).sum(1) if density.dim() > 1 else density


def _with_class_axis(outputs: Tensor) -> Tensor:
    if outputs.dim() < 2:
        raise ShapeError(f"The outputs have shape {tuple(outputs.shape)}, but need a batch and a class axis: (N, C).")
    _require_class_axis(outputs, 1)
    if outputs.shape[1] == 1:
        raise ShapeError(
            f"The outputs have shape {tuple(outputs.shape)}, but a single class has probability 1 whatever the image: "
            "give the network one output for each class, two for a yes or no."
        )
    return outputs


HEADS: dict[str, type[Head]] = {head.name: head for head in (SoftplusHead, SoftmaxHead, KendallGalHead, GaussianHead)}
_ATTRIBUTE = "probability_head"
ModuleType = TypeVar("ModuleType", bound=nn.Module)


def get_head(head: str | Head) -> Head:
    """The head of that name, or the head itself.

    >>> get_head("softplus")
    SoftplusHead()
    """
    if isinstance(head, Head):
        return head
    if not isinstance(head, str) or head not in HEADS:
        raise OptionError(unknown("head", head, HEADS))
    return HEADS[head]()


def attach_head(model: ModuleType, head: str | Head) -> ModuleType:
    """Make `head` the model's own, so that training and prediction cannot disagree; returns the model.

    >>> model = attach_head(nn.Linear(4, 3), "softplus")
    >>> resolve_head(model)
    SoftplusHead()
    """
    setattr(model, _ATTRIBUTE, get_head(head))
    return model


def resolve_head(model: nn.Module, head: str | Head | None = None) -> Head:
    """`head` if given, else the model's own; an error asks for one if there is neither."""
    own: Head | None = getattr(model, _ATTRIBUTE, None)
    if head is None:
        if own is None:
            raise HeadError(
                f"The model ({type(model).__name__}) has no head of its own, so say how its outputs become "
                f"probabilities: give head={' or '.join(map(repr, HEADS))}, or attach_head(model, ...) once."
            )
        return own
    chosen = get_head(head)
    if own is not None and chosen != own:
        warnings.warn(
            f"The model's own head is {own.name!r}, but {chosen.name!r} was asked for: probabilities from a head that "
            "the model was not trained with are not calibrated.",
            DubitoWarning,
            stacklevel=3,
        )
    return chosen
