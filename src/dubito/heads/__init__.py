"""Heads: how a network's outputs become a prediction. Training and prediction use the same head.

A head belongs to a model: :func:`attach_head` puts it there, and `ELBO` and `Predictor` find it.

- ``softplus``: the paper's normalisation.
- ``softmax``: the usual one.
- ``kendall_gal``: 2K outputs, means and variances of K logits.
- ``gaussian``: regression with known noise.

A new head is a new file and a line in `HEADS`.
"""

from __future__ import annotations

import warnings
from typing import TypeVar

from torch import nn

from dubito.errors import DubitoWarning, HeadError, OptionError, unknown
from dubito.heads.base import ClassificationHead, Head, Split
from dubito.heads.categorical import CategoricalLikelihood, balanced_class_weights, categorical_log_likelihood
from dubito.heads.gaussian import GaussianHead
from dubito.heads.kendall_gal import KendallGalHead
from dubito.heads.softmax import SoftmaxHead
from dubito.heads.softplus import SoftplusHead, log_softplus_normalize, softplus_normalize

__all__ = [
    "HEADS",
    "CategoricalLikelihood",
    "ClassificationHead",
    "GaussianHead",
    "Head",
    "KendallGalHead",
    "SoftmaxHead",
    "SoftplusHead",
    "Split",
    "attach_head",
    "balanced_class_weights",
    "categorical_log_likelihood",
    "get_head",
    "log_softplus_normalize",
    "resolve_head",
    "softplus_normalize",
]

HEADS: dict[str, type[Head]] = {head.name: head for head in (SoftplusHead, SoftmaxHead, KendallGalHead, GaussianHead)}
_ATTRIBUTE = "probability_head"
ModuleType = TypeVar("ModuleType", bound=nn.Module)


def get_head(head: str | Head) -> Head:
    """The head of that name, or the head itself.

    >>> get_head("softplus")
    SoftplusHead(beta=1.0)
    """
    if isinstance(head, Head):
        return head
    if not isinstance(head, str) or head not in HEADS:
        raise OptionError(unknown("head", head, HEADS))
    return HEADS[head]()


def attach_head(model: ModuleType, head: str | Head) -> ModuleType:
    """Make `head` the model's own head, which training and prediction then use; returns the model.

    >>> model = attach_head(nn.Linear(4, 3), "softplus")
    >>> resolve_head(model)
    SoftplusHead(beta=1.0)
    """
    setattr(model, _ATTRIBUTE, get_head(head))
    return model


def resolve_head(model: nn.Module, head: str | Head | None = None) -> Head:
    """`head` if given, else the model's own; an error asks for one if there is neither."""
    own: Head | None = getattr(model, _ATTRIBUTE, None)
    if head is None:
        if own is None:
            raise HeadError(
                f"The model ({type(model).__name__}) has no head, so it is not known how its outputs become "
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
