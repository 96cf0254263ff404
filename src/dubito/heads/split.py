"""Splitting the uncertainty of a prediction into aleatoric and epistemic (paper, equations 7, 9 and 14).

With T drawn probability vectors p_t of an image and their mean m (Kwon et al., for any head that gives probabilities):

    aleatoric = mean_t [diag(p_t) - p_t p_t'],   epistemic = mean_t [(p_t - m)(p_t - m)'],

whose sum is diag(m) - m m' exactly: the covariance of a label drawn from m. Kendall & Gal split the logits instead,
and the entropy of m splits into the mean entropy of the p_t and the mutual information of label and weights.

Draws are taken in one after the other: memory does not grow with their number.

**Bias.** `epistemic` is the plug-in value: it divides by T, and measures deviations from the mean of the same draws. So
its expectation is Var(p) - Var(m), where Var(m) is the squared standard error of the mean: for independent draws
1 - 1/T of the truth (0.50, 0.75 and 0.90 at T = 2, 4 and 10), for antithetic pairs whose halves have correlation r
1 - (1 + r)/T. Aleatoric uncertainty has no bias; mutual information has, to second order, the same as epistemic.

`epistemic_unbiased` is half the squared difference of two draws that are independent of each other, averaged over all
such twos; its expectation is Var(p). With independent draws it is the plug-in value times T / (T - 1). Antithetic draws
come in pairs (a_i, b_i) that depend on each other, so the differences within pairs are left out:

    epistemic_unbiased = (T^2 epistemic - sum_i (a_i - b_i)^2) / (T^2 - Q),   Q = sum of squared sizes of the units,

which is 4 for a pair and 1 for an odd last draw. One draw or one pair leaves no difference: then it is NaN. It is
never negative, but its sum with aleatoric is no longer diag(m) - m m' exactly.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from typing_extensions import Self

from dubito.errors import NonFiniteError, OptionError, ShapeError, choose
from dubito.softplus import at_least_single

if TYPE_CHECKING:
    from numpy import str_
    from numpy.typing import NDArray

    Words: TypeAlias = NDArray[str_]


class Sampling(str, Enum):
    """How the draws of a prediction depend on each other."""

    INDEPENDENT = "independent"
    ANTITHETIC = "antithetic"  # draws 0 and 1, 2 and 3, ... are pairs of opposite noise; an odd last one is alone
    EXACT = "exact"  # not random: points that stand for the whole distribution, or a network that draws nothing


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
        return self._map(lambda t: t[index], lambda words: words[_of_numpy(index)])

    def to(self, *arguments: Any, **options: Any) -> Self:
        """Every tensor moved or converted as by `Tensor.to`."""
        return self._map(lambda t: t.to(*arguments, **options))

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Predictions of several batches as one."""
        joined = {
            name: _join([getattr(part, name) for part in parts])
            for name, value in parts[0]._values().items()
            if _of_each_image(value)
        }
        return replace(parts[0], **joined)  # type: ignore[type-var]

    def _values(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def _map(
        self, function: Callable[[Tensor], Tensor], on_words: Callable[[Words], Words] = lambda words: words
    ) -> Self:
        mapped: dict[str, Any] = {
            name: function(value) if isinstance(value, Tensor) else on_words(value)
            for name, value in self._values().items()
            if _of_each_image(value)
        }
        return replace(self, **mapped)  # type: ignore[type-var]


def _of_each_image(value: Any) -> bool:
    """Whether a field has an entry for each image: a tensor, or a numpy array of words."""
    return isinstance(value, Tensor) or hasattr(value, "dtype")


def _of_numpy(index: Any) -> Any:
    """An index of tensors as one of numpy arrays."""
    return index.cpu().numpy() if isinstance(index, Tensor) else index


def _join(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Tensor):
        return torch.cat(list(values))
    import numpy

    return numpy.concatenate(values)


@dataclass(frozen=True)
class Prediction(_OfImages):
    """Mean probabilities of N images with both uncertainties.

    Attributes:
        probs: (N, C) mean probabilities.
        aleatoric_per_class: (N, C) the diagonal of the aleatoric matrix.
        epistemic_per_class: (N, C) the diagonal of the epistemic matrix. It divides by the number of draws T, so its
            expectation is 1 - 1/T of the truth with independent draws, and 1 - (1 + r)/T with antithetic pairs whose
            halves have correlation r.
        entropy: (N,) entropy of the mean probabilities, in nats.
        mutual_information: (N,) of label and weights, in nats; entropy minus the mean entropy of the draws. It is too
            small by about the same share as epistemic uncertainty.
        samples: the number of draws.
        aleatoric_covariance, epistemic_covariance: (N, C, C) the whole matrices, if asked for.
        novelty: (N,) how unlike the training images each image is, where that was fitted.
        decision: (N,) what to do with each image, where a rule was fitted: a numpy array of ``accept``, ``review`` and
            ``unfamiliar``.
        reason: (N,) why, in a few words.
        epistemic_unbiased_per_class: (N, C) the diagonal of the epistemic matrix, right on average for any
            number of draws: use it to compare predictions with different numbers of draws. NaN if there is one
            draw or one antithetic pair; None where the draws are not known any more, as in predictions from files.

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
    decision: Words | None = None
    reason: Words | None = None
    epistemic_unbiased_per_class: Tensor | None = None

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

    @property
    def epistemic_unbiased(self) -> Tensor | None:
        """(N,) the mean over the classes of `epistemic_unbiased_per_class`, or None."""
        per_class = self.epistemic_unbiased_per_class
        return None if per_class is None else per_class.mean(1)


@dataclass(frozen=True)
class Regression(_OfImages):
    """Predicted numbers of N images with both uncertainties.

    Attributes:
        mean: (N, ...) of the outputs over the draws.
        aleatoric: (N, ...) variance of the noise.
        epistemic: (N, ...) variance of the outputs over the draws, divided by their number T, so that its expectation
            is too small (by the factor 1 - 1/T with independent draws).
        samples: the number of draws.
        epistemic_covariance: (N, K, K) of the outputs, if asked for.
        epistemic_unbiased: (N, ...) the same without that bias; NaN if there is one draw or one antithetic pair.
    """

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    samples: int
    epistemic_covariance: Tensor | None = None
    epistemic_unbiased: Tensor | None = None


AnyPrediction: TypeAlias = Prediction | Regression
"""What a head predicts."""


class RunningMoments:
    """Running mean and covariance of draws (T, N, C, ...), taken in block by block.

    Args:
        covariance: whether the (N, C, C) matrices are wanted too.
        sampling: how the draws depend on each other, see :class:`Sampling`.

    Blocks are merged by Chan et al.'s update rather than as a difference of large sums, so that identical draws have a
    variance of exactly 0.
    """

    def __init__(self, covariance: bool = False, sampling: str = "independent") -> None:
        self.covariance = covariance
        self.sampling = choose(Sampling, sampling, "sampling")
        self.samples = 0
        self._within: Tensor | float = 0.0
        self._unpaired: Tensor | None = None

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
        if self.sampling == Sampling.ANTITHETIC:
            self._pair(draws)

    def _pair(self, draws: Tensor) -> None:
        """Add the squared differences within pairs; a pair may begin in one block and end in the next."""
        if self._unpaired is not None:
            draws = torch.cat([self._unpaired.unsqueeze(0), draws])
        first, second = draws[0::2], draws[1::2]
        self._within = self._within + (first[: len(second)] - second).square().sum(0)
        self._unpaired = draws[-1] if len(draws) % 2 else None

    @property
    def variance(self) -> Tensor:
        """The variance of each element, divided by the number of draws."""
        return self._squares / self.samples

    @property
    def unbiased_variance(self) -> Tensor:
        """The variance of each element without bias; NaN if no two draws are independent of each other."""
        count = self.samples
        if self.sampling == Sampling.EXACT:
            return self.variance
        together = count if self.sampling == Sampling.INDEPENDENT else 4 * (count // 2) + count % 2
        if count**2 == together:
            return torch.full_like(self._squares, torch.nan)
        return (count * self._squares - self._within).clamp_min(0) / (count**2 - together)

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

    With `probs_of` it takes in draws of a network's outputs, which that function makes probabilities of.

    >>> split = Decomposition()
    >>> split.update(torch.tensor([[[1.0, 0.0]]]))    # (T, N, C): one draw of one image
    >>> split.update(torch.tensor([[[0.0, 1.0]]]))
    >>> split.compute().epistemic_per_class
    tensor([[0.2500, 0.2500]])
    """

    def __init__(
        self,
        covariance: bool = False,
        sampling: str = "independent",
        probs_of: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.covariance = covariance
        self._probs_of = probs_of
        self._probs = RunningMoments(covariance, sampling)
        self._ambiguity = RunningMean()
        self._entropy = RunningMean()

    def update(self, draws: Tensor) -> None:
        """Take in a block of draws (T, N, C, ...)."""
        if self._probs_of is not None:
            draws = self._probs_of(draws.flatten(0, 1)).unflatten(0, draws.shape[:2])
        probs = at_least_single(draws)
        self._probs.update(probs)
        self._ambiguity.update(probs * (1 - probs))
        self._entropy.update(torch.special.entr(probs).sum(2))

    def compute(self) -> Prediction:
        """The split of all draws so far."""
        if self._probs.samples == 0:
            raise OptionError("There are no draws yet, but a decomposition needs at least 1: call update first.")
        mean = self._probs.mean
        entropy = torch.special.entr(mean).sum(1)
        matrices: dict[str, Any] = {}
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
            epistemic_unbiased_per_class=self._probs.unbiased_variance,
            **matrices,
        )


def decompose(probs: Tensor, *, covariance: bool = False, sampling: str = "independent") -> Prediction:
    """Split the uncertainty of drawn probabilities (T, N, C), or dense ones (T, N, C, ...).

    Args:
        probs: T draws of the probabilities of N images over C classes.
        covariance: also give the (N, C, C) matrices.
        sampling: ``independent`` draws; ``antithetic`` if draws 0 and 1, 2 and 3, ... are pairs of opposite noise, as
            those of a :class:`dubito.Predictor` are (`predictor.sampling` says it); ``exact`` if they are not random.
            It matters to `epistemic_unbiased` alone.

    >>> split = decompose(torch.tensor([[[0.9, 0.1]], [[0.7, 0.3]]]))
    >>> split.aleatoric, split.epistemic
    (tensor([0.1500]), tensor([0.0100]))
    >>> split.epistemic_unbiased          # with two independent draws the plug-in value is half as large
    tensor([0.0200])
    """
    _require_draws(probs, "probs")
    require_probabilities(probs, 2, "(T, N, C)")
    split = Decomposition(covariance, sampling)
    split.update(probs)
    return split.compute()


def require_probabilities(probs: Tensor, axis: int, shape: str) -> None:
    """An error if these are not probabilities over the classes, which are on this axis of this shape."""
    if not bool(probs.isfinite().all()):
        raise NonFiniteError("probs contains NaN or infinite values, but must be probabilities.")
    tolerance = max(1e-4, 4 * torch.finfo(probs.dtype).eps * probs.shape[axis])
    worst = float((at_least_single(probs).sum(axis) - 1).abs().max()) if probs.numel() else 0.0
    if worst > tolerance or bool((probs < 0).any()):
        raise ShapeError(
            f"probs has sums over its class axis {axis} that differ from 1 by up to {worst:.3g}, or negative entries, "
            f"but must hold probabilities of shape {shape}: normalise the outputs over the classes first."
        )


def _require_draws(tensor: Tensor, name: str) -> None:
    if tensor.dim() < 3 or 0 in (tensor.shape[0], tensor.shape[2]) or not tensor.is_floating_point():
        raise ShapeError(
            f"{name} has shape {tuple(tensor.shape)} and type {tensor.dtype}, but must be floating point of shape "
            "(T, N, C): draws, images, classes, with at least one draw and one class."
        )
