"""The categorical likelihood: class weights, labels to ignore and label smoothing.

With log-probabilities log p_c of K classes, the log-likelihood of one observation (an image, or a pixel of a dense
output) is

    sum_c w_c t_c log p_c,   t_c = (1 - s) [c = y] + s / K

with class weights w (1 unless given) and label smoothing s (0 unless given); targets that are probabilities y_c take
the place of [c = y]. An observation whose label is `ignore_index` has log-likelihood 0. All observations of an example
are summed. These are the numbers of `torch.nn.functional.cross_entropy(reduction="none")`, with the opposite sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import Unpack

from dubito.errors import OptionError, ShapeError
from dubito.softplus import at_least_single

NO_LABEL = -(2**63)
"""In place of the -100 that torch ignores unasked."""


class LabelOptions(TypedDict, total=False):
    """What a categorical likelihood makes of labels; see :class:`CategoricalLikelihood`."""

    class_weights: Tensor | Sequence[float] | None
    ignore_index: int | None
    label_smoothing: float


class CategoricalLikelihood:
    """Log-likelihoods of labels, by the formula above.

    Args:
        class_weights: (K,) the weight of an observation of each class; None for 1 each.
        ignore_index: the label of observations that do not count; None if all do.
        label_smoothing: the share s of every target that is spread evenly over the classes, 0 ... 1.

    >>> log_probs = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
    >>> CategoricalLikelihood(class_weights=[2.0, 1.0])(log_probs, torch.tensor([0, 1]))
    tensor([-1.3863, -0.2877])
    """

    def __init__(
        self,
        class_weights: Tensor | Sequence[float] | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        if not 0 <= label_smoothing <= 1:
            raise OptionError(f"label_smoothing is {label_smoothing}, but must lie in 0 ... 1.")
        self.class_weights = None if class_weights is None else _checked_weights(class_weights)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    @property
    def plain(self) -> bool:
        """Whether it is the usual log p(y), without any of the options."""
        return self.class_weights is None and self.ignore_index is None and not self.label_smoothing

    def __call__(self, log_probs: Tensor, targets: Tensor) -> Tensor:
        """The log-likelihood of each example, (N,), in at least float32.

        Log-probabilities are (N, C, ...), targets class numbers (N, ...) or class probabilities (N, C, ...).
        """
        weighted = self._weighted(at_least_single(log_probs))
        labels = (log_probs.shape[0], *log_probs.shape[2:])
        counted: Tensor | None = None
        if targets.is_floating_point() and targets.shape == log_probs.shape:
            if self.ignore_index is not None:
                raise OptionError(
                    f"ignore_index is {self.ignore_index}, but the targets are class probabilities, which have no "
                    "label to ignore: leave it out, or give class numbers."
                )
            picked = (targets * weighted).sum(1)
        elif not targets.is_floating_point() and targets.shape == labels:
            targets = targets.long()
            if self.ignore_index is not None:
                counted = targets != self.ignore_index
                targets = targets.where(counted, 0)
            _require_known_classes(targets, log_probs.shape[1])
            picked = -F.nll_loss(weighted, targets, ignore_index=NO_LABEL, reduction="none")
        else:
            raise ShapeError(
                f"The targets have shape {tuple(targets.shape)} and type {targets.dtype}, but must be class numbers of "
                f"shape {labels} or class probabilities of shape {tuple(log_probs.shape)}."
            )
        if self.label_smoothing:
            picked = (1 - self.label_smoothing) * picked + self.label_smoothing * weighted.mean(1)
        if counted is not None:
            picked = picked.where(counted, 0)
        return picked.flatten(1).sum(1) if picked.dim() > 1 else picked

    def _weighted(self, log_probs: Tensor) -> Tensor:
        """w_c log p_c."""
        if self.class_weights is None:
            return log_probs
        if len(self.class_weights) != log_probs.shape[1]:
            raise ShapeError(
                f"There are {len(self.class_weights)} class weights, but the network has {log_probs.shape[1]} classes."
            )
        return log_probs * self.class_weights.to(log_probs).view(-1, *(1,) * (log_probs.dim() - 2))


def categorical_log_likelihood(log_probs: Tensor, targets: Tensor, **options: Unpack[LabelOptions]) -> Tensor:
    """The log-likelihood of each example; see :class:`CategoricalLikelihood`."""
    return CategoricalLikelihood(**options)(log_probs, targets)


def _checked_weights(given: Tensor | Sequence[float]) -> Tensor:
    weights = torch.as_tensor(given).detach()
    weights = weights if weights.is_floating_point() else weights.float()
    if weights.dim() != 1 or not bool(((weights >= 0) & weights.isfinite()).all()) or not bool((weights > 0).any()):
        raise OptionError(
            f"class_weights is {given!r}, but must be one finite number for each class, none negative and not all 0."
        )
    return weights


def balanced_class_weights(labels: Tensor, num_classes: int) -> Tensor:
    """Weights N / (K n_k) that give every class the same total weight, for the N labels of a training set.

    K is the number of classes that occur, and n_k how often; a class that does not occur has weight 1. The mean weight
    of the labels is 1, so the balance between likelihood and KL does not change.

    >>> balanced_class_weights(torch.tensor([0, 0, 0, 1]), 2)
    tensor([0.6667, 2.0000])
    """
    if labels.dim() != 1 or labels.is_floating_point() or not len(labels):
        raise ShapeError(
            f"The labels have shape {tuple(labels.shape)} and type {labels.dtype}, but must be class numbers (N,)."
        )
    labels = labels.long()
    _require_known_classes(labels, num_classes)
    counts = torch.bincount(labels, minlength=num_classes).double()
    weights = len(labels) / (int((counts > 0).sum()) * counts)
    return weights.where(counts > 0, 1.0).float()


def _require_known_classes(targets: Tensor, num_classes: int) -> None:
    if targets.device.type != "cpu" or targets.numel() == 0 or torch.compiler.is_compiling():
        return  # looking at values would stall an accelerator or break a graph
    if torch.func.debug_unwrap(targets, recurse=False) is not targets:
        return  # a transform of torch.func shows no values
    low, high = (int(v) for v in targets.aminmax())
    if low < 0 or high >= num_classes:
        raise ShapeError(
            f"The targets go from {low} to {high}, but the network has {num_classes} classes, so they must lie in "
            f"0 ... {num_classes - 1}."
        )
