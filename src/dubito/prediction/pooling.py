"""One prediction from several of the same images, as the members of an ensemble make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dubito.errors import OptionError
from dubito.heads.split import Prediction


def pool(predictions: Sequence[Prediction], weights: Sequence[float] | None = None) -> Prediction:
    """One prediction from several of the same images: the mixture of their draws.

    Args:
        predictions: of the same images and classes.
        weights: how much each counts; None for its number of draws, as if all had been decomposed at once.

    Novelty is that of the first prediction that has it: an ensemble measures it in its first member.

    `epistemic_unbiased` takes the predictions for draws that are independent of each other, as the members of an
    ensemble are, which were trained apart: it is half the mean squared difference of draws of different members.

    >>> import dubito
    >>> draws = torch.tensor([[[0.9, 0.1]], [[0.7, 0.3]], [[0.2, 0.8]]])
    >>> whole, parts = dubito.decompose(draws), pool([dubito.decompose(draws[:2]), dubito.decompose(draws[2:])])
    >>> whole.epistemic, parts.epistemic
    (tensor([0.0867]), tensor([0.0867]))
    """
    if not predictions:
        raise OptionError("There are no predictions, but pooling needs at least 1.")
    if any(part.probs.shape != predictions[0].probs.shape for part in predictions[1:]):
        raise OptionError("The predictions are not of the same images and classes, so they cannot be pooled.")
    if len(predictions) == 1:
        return predictions[0]
    given = weights or [part.samples for part in predictions]
    shares = [weight / sum(given) for weight in given]

    def mean(of: Callable[[Prediction], Tensor]) -> Tensor:
        return torch.stack([of(part) * share for part, share in zip(predictions, shares, strict=True)]).sum(0)

    probs = mean(lambda part: part.probs)
    entropy = torch.special.entr(probs).sum(1)
    expected = mean(lambda part: part.entropy - part.mutual_information)
    between = mean(lambda part: (part.probs - probs).square())
    unequal = [part.epistemic_per_class * share * (1 - share) for part, share in zip(predictions, shares, strict=True)]
    unbiased = (torch.stack(unequal).sum(0) + between) / (1 - sum(share**2 for share in shares))
    matrices: dict[str, Any] = {}
    if all(part.epistemic_covariance is not None for part in predictions):
        matrices["aleatoric_covariance"] = mean(lambda part: _matrix(part.aleatoric_covariance))
        matrices["epistemic_covariance"] = mean(
            lambda part: _matrix(part.epistemic_covariance) + _outer(part.probs - probs)
        )
    return Prediction(
        probs=probs,
        aleatoric_per_class=mean(lambda part: part.aleatoric_per_class),
        epistemic_per_class=mean(lambda part: part.epistemic_per_class) + between,
        entropy=entropy,
        mutual_information=(entropy - expected).clamp_min(0),
        samples=sum(part.samples for part in predictions),
        epistemic_unbiased_per_class=unbiased,
        novelty=next((part.novelty for part in predictions if part.novelty is not None), None),
        **matrices,
    )


def _matrix(covariance: Tensor | None) -> Tensor:
    assert covariance is not None
    return covariance


def _outer(x: Tensor) -> Tensor:
    return x.unsqueeze(2) * x.unsqueeze(1)
