"""Splitting the uncertainty of a prediction into aleatoric and epistemic (paper, equations 7, 9 and 14).

With T drawn probability vectors p_t of an image and their mean m (Kwon et al., for any head that gives probabilities):

    aleatoric = mean_t [diag(p_t) - p_t p_t'],   epistemic = mean_t [(p_t - m)(p_t - m)'],

whose sum is diag(m) - m m' exactly: the covariance of a label drawn from m. Kendall & Gal split the logits instead,
and the entropy of m splits into the mean entropy of the p_t and the mutual information of label and weights.

Draws are taken in one after the other: memory does not grow with their number.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from typing_extensions import Self

from dubito.errors import NonFiniteError, OptionError, ShapeError
from dubito.softplus import at_least_single

__all__ = [
    "AnyPrediction",
    "Decomposition",
    "Prediction",
    "ProbabilitySplit",
    "Regression",
    "RunningMean",
    "RunningMoments",
    "decompose",
]


class _OfImages:
    """What predictions of several images have in common: they can be cut, joined and moved."""

    def __len__(self) -> int:
        """The number of images."""
        return len(next(value for value in self._values().values() if isinstance(value, Tensor)))

    def __getitem__(self, index: Any) -> Self:
        """The prediction of some of the images: a slice, a mask or a tensor of numbers; one number keeps the axis."""
        if not isinstance(index, bool) and hasattr(index, "__index__") and getattr(index, "ndim", 0) == 0:
            start = range(len(self))[operator.index(index)]  # an IndexError here is what ends a loop over the images
            index = slice(start, start + 1)
        return self._map(lambda t: t[index])

    def to(self, *arguments: Any, **options: Any) -> Self:
        """Every tensor moved or converted as by `Tensor.to`."""
        return self._map(lambda t: t.to(*arguments, **options))

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Predictions of several batches as one."""
        joined = {
            name: torch.cat([getattr(part, name) for part in parts])
            for name, value in parts[0]._values().items()
            if isinstance(value, Tensor)
        }
        return replace(parts[0], **joined)  # type: ignore[type-var]

    def _values(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        mapped = {name: function(value) for name, value in self._values().items() if isinstance(value, Tensor)}
        return replace(self, **mapped)  # type: ignore[type-var]


@dataclass(frozen=True)
class Prediction(_OfImages):
    """Mean probabilities of N images with both uncertainties.

    Attributes:
        probs: (N, C) mean probabilities.
        aleatoric_per_class: (N, C) the diagonal of the aleatoric matrix.
        epistemic_per_class: (N, C) the diagonal of the epistemic matrix. It divides by the number of draws T, so with
            independent draws it is too small by the factor 1 - 1/T; antithetic pairs leave less of that.
        entropy: (N,) entropy of the mean probabilities, in nats.
        mutual_information: (N,) of label and weights, in nats; entropy minus the mean entropy of the draws.
        samples: the number of draws.
        aleatoric_covariance, epistemic_covariance: (N, C, C) the whole matrices, if asked for.
        novelty: (N,) how unlike the training images each image is, where that was fitted.
        decision: what to do with each image, where a rule was fitted.

    Dense outputs (N, C, H, W) keep their axes after the classes in every field.
    """

    probs: Tensor
    aleatoric_per_class: Tensor
    epistemic_per_class: Tensor
    entropy: Tensor
    mutual_information: Tensor
    samples: int
    aleatoric_covariance: Tensor | None = None
    epistemic_covariance: Tensor | None = None
    novelty: Tensor | None = None
    decision: Tensor | None = None

    @property
    def label(self) -> Tensor:
        """(N,) the most probable class."""
        return self.probs.argmax(1)

    @property
    def confidence(self) -> Tensor:
        """(N,) the probability of the label."""
        return self.probs.amax(1)

    @property
    def aleatoric(self) -> Tensor:
        """(N,) the mean over the classes of `aleatoric_per_class`."""
        return self.aleatoric_per_class.mean(1)

    @property
    def epistemic(self) -> Tensor:
        """(N,) the mean over the classes of `epistemic_per_class`."""
        return self.epistemic_per_class.mean(1)

    def with_split(
        self,
        aleatoric: Tensor,
        epistemic: Tensor,
        aleatoric_covariance: Tensor | None = None,
        epistemic_covariance: Tensor | None = None,
    ) -> Prediction:
        """The same probabilities with another split of their uncertainty."""
        return replace(
            self,
            aleatoric_per_class=aleatoric,
            epistemic_per_class=epistemic,
            aleatoric_covariance=aleatoric_covariance,
            epistemic_covariance=epistemic_covariance,
        )


@dataclass(frozen=True)
class Regression(_OfImages):
    """Predicted numbers of N images with both uncertainties.

    Attributes:
        mean: (N, ...) of the outputs over the draws.
        aleatoric: (N, ...) variance of the noise.
        epistemic: (N, ...) variance of the outputs over the draws.
        samples: the number of draws.
        epistemic_covariance: (N, K, K) of the outputs, if asked for.
    """

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    samples: int
    epistemic_covariance: Tensor | None = None


AnyPrediction: TypeAlias = Prediction | Regression
"""What a head predicts."""


class RunningMoments:
    """Running mean and covariance of draws (T, N, C, ...), taken in block by block.

    Blocks are merged by Chan et al.'s update rather than as a difference of large sums, so that identical draws have a
    variance of exactly 0.
    """

    def __init__(self, covariance: bool) -> None:
        self.covariance = covariance
        self.samples = 0

    def update(self, draws: Tensor) -> None:
        """Take in a block of draws."""
        if self.covariance and draws.dim() != 3:
            raise ShapeError(f"The draws have shape {tuple(draws.shape)}, but covariance=True needs (T, N, C).")
        count = draws.shape[0]
        # Deviations from the block's first draw: identical draws give exact zeros, whatever their number.
        mean = draws[0] + (draws - draws[0]).mean(0)
        deviations = draws - mean
        squares = deviations.square().sum(0)
        products = torch.einsum("tnc,tnd->ncd", deviations, deviations) if self.covariance else None
        if self.samples == 0:
            self.mean, self._squares, self._products = mean, squares, products
        else:
            share = count / (self.samples + count)
            change = mean - self.mean
            self.mean = self.mean + change * share
            self._squares = self._squares + squares + change.square() * (self.samples * share)
            if products is not None and self._products is not None:
                self._products = self._products + products + _outer(change) * (self.samples * share)
        self.samples += count

    @property
    def variance(self) -> Tensor:
        """The variance of each element, divided by the number of draws."""
        return self._squares / self.samples

    @property
    def matrix(self) -> Tensor:
        """The covariance (N, C, C) of the classes."""
        assert self._products is not None
        return self._products / self.samples


class RunningMean:
    """Running mean of draws; exact for identical ones."""

    value: Tensor

    def __init__(self) -> None:
        self.samples = 0

    def update(self, draws: Tensor) -> None:
        """Take in a block of draws."""
        block = draws[0] + (draws - draws[0]).mean(0)
        self.samples += len(draws)
        first = self.samples == len(draws)
        self.value = block if first else self.value + (block - self.value) * (len(draws) / self.samples)


def _outer(x: Tensor) -> Tensor:
    return x.unsqueeze(2) * x.unsqueeze(1)


class Decomposition:
    """Takes in draws of probabilities, block by block, and gives the split of their uncertainty.

    >>> split = Decomposition()
    >>> split.update(torch.tensor([[[1.0, 0.0]]]))    # (T, N, C): one draw of one image
    >>> split.update(torch.tensor([[[0.0, 1.0]]]))
    >>> split.compute().epistemic_per_class
    tensor([[0.2500, 0.2500]])
    """

    def __init__(self, covariance: bool = False) -> None:
        self.covariance = covariance
        self._probs = RunningMoments(covariance)
        self._ambiguity = RunningMean()
        self._entropy = RunningMean()

    def update(self, probs: Tensor) -> None:
        """Take in a block of draws (T, N, C, ...)."""
        probs = at_least_single(probs)
        self._probs.update(probs)
        self._ambiguity.update(probs * (1 - probs))
        self._entropy.update(torch.special.entr(probs).sum(2))

    def compute(self) -> Prediction:
        """The split of all draws so far."""
        if self._probs.samples == 0:
            raise OptionError("There are no draws yet, but a decomposition needs at least 1: call update first.")
        mean = self._probs.mean
        entropy = torch.special.entr(mean).sum(1)
        matrices: dict[str, Tensor] = {}
        if self.covariance:
            matrices["epistemic_covariance"] = self._probs.matrix
            matrices["aleatoric_covariance"] = torch.diag_embed(mean) - _outer(mean) - self._probs.matrix
        return Prediction(
            probs=mean,
            aleatoric_per_class=self._ambiguity.value,
            epistemic_per_class=self._probs.variance,
            entropy=entropy,
            mutual_information=(entropy - self._entropy.value).clamp_min(0),
            samples=self._probs.samples,
            **matrices,
        )


class ProbabilitySplit:
    """The split of a head whose uncertainties are those of its probabilities."""

    def __init__(self, probs: Callable[[Tensor], Tensor], covariance: bool = False) -> None:
        self._to_probs = probs
        self._split = Decomposition(covariance)

    def update(self, outputs: Tensor) -> None:
        """Take in a block of draws (T, N, C, ...) of a network's outputs."""
        self._split.update(self._to_probs(outputs.flatten(0, 1)).unflatten(0, outputs.shape[:2]))

    def compute(self) -> Prediction:
        """The split of all draws so far."""
        return self._split.compute()


def decompose(probs: Tensor, *, covariance: bool = False) -> Prediction:
    """Split the uncertainty of drawn probabilities (T, N, C), or dense ones (T, N, C, ...).

    Args:
        probs: T draws of the probabilities of N images over C classes.
        covariance: also give the (N, C, C) matrices.

    >>> split = decompose(torch.tensor([[[0.9, 0.1]], [[0.7, 0.3]]]))
    >>> split.aleatoric, split.epistemic
    (tensor([0.1500]), tensor([0.0100]))
    """
    _require_draws(probs, "probs")
    if not bool(probs.isfinite().all()):
        raise NonFiniteError("probs contains NaN or infinite values, but must be probabilities.")
    tolerance = max(1e-4, 4 * torch.finfo(probs.dtype).eps * probs.shape[2])
    worst = float((at_least_single(probs).sum(2) - 1).abs().max()) if probs.numel() else 0.0
    if worst > tolerance or bool((probs < 0).any()):
        raise ShapeError(
            f"probs sums to up to {worst:.3g} beside 1 over its class axis 2 or has negative entries, but must hold "
            "probabilities of shape (T, N, C): normalise the outputs over the classes first."
        )
    split = Decomposition(covariance)
    split.update(probs)
    return split.compute()


def _require_draws(tensor: Tensor, name: str) -> None:
    if tensor.dim() < 3 or 0 in (tensor.shape[0], tensor.shape[2]) or not tensor.is_floating_point():
        raise ShapeError(
            f"{name} has shape {tuple(tensor.shape)} and type {tensor.dtype}, but must be floating point of shape "
            "(T, N, C): draws, images, classes, with at least one draw and one class."
        )
