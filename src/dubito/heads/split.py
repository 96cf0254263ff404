"""Splitting the uncertainty of a prediction into aleatoric and epistemic (paper, equations 7, 9 and 14).

With T drawn probability vectors p_t of an image and their mean m (Kwon et al., for any head that gives probabilities):

    aleatoric = mean_t [diag(p_t) - p_t p_t'],   epistemic = mean_t [(p_t - m)(p_t - m)'],

whose sum is diag(m) - m m' exactly: the covariance of a label drawn from m. Kendall & Gal split the logits instead,
and the entropy of m splits into the mean entropy of the p_t and the mutual information of label and weights.

Draws are taken in one after the other: memory does not grow with their number.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from dubito.errors import NonFiniteError, OptionError, ShapeError
from dubito.softplus import at_least_single

__all__ = ["Decomposition", "Prediction", "decompose", "decompose_logits"]


@dataclass(frozen=True)
class Prediction:
    """Mean probabilities of N images with both uncertainties.

    Attributes:
        probs: (N, C) mean probabilities.
        aleatoric_per_class: (N, C) the diagonal of the aleatoric matrix.
        epistemic_per_class: (N, C) the diagonal of the epistemic matrix.
        entropy: (N,) entropy of the mean probabilities, in nats.
        mutual_information: (N,) of label and weights, in nats; entropy minus the mean entropy of the draws.
        aleatoric_covariance, epistemic_covariance: (N, C, C) the whole matrices, if asked for.
        samples: the number of draws.

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

    def __len__(self) -> int:
        """The number of images."""
        return len(self.probs)

    def __getitem__(self, index: Any) -> Prediction:
        """The prediction of some of the images: a slice, a mask or a tensor of numbers; one number keeps the axis."""
        if not isinstance(index, bool) and hasattr(index, "__index__") and getattr(index, "ndim", 0) == 0:
            start = range(len(self))[operator.index(index)]  # an IndexError here is what ends a loop over the images
            index = slice(start, start + 1)
        return self._map(lambda t: t[index])

    def to(self, *arguments: Any, **options: Any) -> Prediction:
        """Every tensor moved or converted as by `Tensor.to`."""
        return self._map(lambda t: t.to(*arguments, **options))

    def _map(self, function: Any) -> Prediction:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        mapped: dict[str, Any] = {name: function(t) for name, t in values.items() if isinstance(t, Tensor)}
        return replace(self, **mapped)

    @staticmethod
    def cat(parts: list[Prediction]) -> Prediction:
        """Predictions of several batches as one."""
        joined: dict[str, Any] = {
            f.name: torch.cat([getattr(part, f.name) for part in parts])
            for f in fields(Prediction)
            if isinstance(getattr(parts[0], f.name), Tensor)
        }
        return replace(parts[0], **joined)


class _Moments:
    """Running mean and covariance of draws (T, N, C, ...), taken in block by block.

    Blocks are merged by Chan et al.'s update rather than as a difference of large sums, so that identical draws have a
    variance of exactly 0.
    """

    def __init__(self, covariance: bool) -> None:
        self.covariance = covariance
        self.samples = 0

    def update(self, draws: Tensor) -> None:
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
        return self._squares / self.samples

    @property
    def matrix(self) -> Tensor:
        assert self._products is not None
        return self._products / self.samples


class _Mean:
    """Running mean of draws; exact for identical ones."""

    value: Tensor

    def __init__(self) -> None:
        self.samples = 0

    def update(self, draws: Tensor) -> None:
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
        self._probs = _Moments(covariance)
        self._ambiguity = _Mean()
        self._entropy = _Mean()

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


class LogitDecomposition:
    """Kendall & Gal's split, on the logits: aleatoric = mean_t variance_t, epistemic = var_t mean_t.

    Probabilities and entropies still come from the drawn probabilities.
    """

    def __init__(self, covariance: bool = False) -> None:
        self._probs = Decomposition()
        self._means = _Moments(covariance)
        self._variance = _Mean()

    def update(self, probs: Tensor, means: Tensor, variances: Tensor) -> None:
        """Take in a block of draws, each (T, N, K, ...)."""
        self._probs.update(probs)
        self._means.update(at_least_single(means))
        self._variance.update(at_least_single(variances))

    def compute(self) -> Prediction:
        """The split of all draws so far."""
        split: dict[str, Any] = {
            "aleatoric_per_class": self._variance.value,
            "epistemic_per_class": self._means.variance,
        }
        if self._means.covariance:
            split["aleatoric_covariance"] = torch.diag_embed(self._variance.value)
            split["epistemic_covariance"] = self._means.matrix
        return replace(self._probs.compute(), **split)


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


def decompose_logits(means: Tensor, variances: Tensor, probs: Tensor, *, covariance: bool = False) -> Prediction:
    """Kendall & Gal's split of drawn logit means and variances, each (T, N, K).

    >>> one = torch.ones(2, 1, 3)
    >>> decompose_logits(one, one / 2, one / 3).aleatoric
    tensor([0.5000])
    """
    for name, tensor in (("means", means), ("variances", variances), ("probs", probs)):
        _require_draws(tensor, name)
    if not means.shape == variances.shape == probs.shape:
        raise ShapeError(
            f"means, variances and probs have shapes {tuple(means.shape)}, {tuple(variances.shape)} and "
            f"{tuple(probs.shape)}, but must all be (T, N, K)."
        )
    split = LogitDecomposition(covariance)
    split.update(probs, means, variances)
    return split.compute()


def _require_draws(tensor: Tensor, name: str) -> None:
    if tensor.dim() < 3 or 0 in (tensor.shape[0], tensor.shape[2]) or not tensor.is_floating_point():
        raise ShapeError(
            f"{name} has shape {tuple(tensor.shape)} and type {tensor.dtype}, but must be floating point of shape "
            "(T, N, C): draws, images, classes, with at least one draw and one class."
        )
