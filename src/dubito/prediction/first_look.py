"""The first prediction of a network names the posteriors that it does not use."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dubito.convert.copying import deep_copy
from dubito.estimators import Mean, forced
from dubito.variational.draws import one_pass
from dubito.variational.posterior import posteriors
from dubito.variational.unused import looked_at, unused, warn_of_unused

IMAGES = 8
"""How many images the look takes at most."""

Followed = tuple[Any, dict[str, Tensor]]
"""Outputs, and the weights by name that they may be followed back to."""


class FirstLook:
    """Passes a few images through a network once, and warns of posteriors that its outputs do not depend on.

    Later predictions, of other predictors of the same network too, cost nothing.

    Args:
        model: the network that was given to the predictor, which does not keep it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.is_due = model not in looked_at and bool(posteriors(model))
        self._model = weakref.ref(model)

    def __call__(self, batch: Tensor, follow: Callable[[Tensor], Followed]) -> None:
        """Look, if that is due; `follow` gives the outputs for some images with the weights behind them."""
        if not self.is_due or torch.compiler.is_compiling():
            return
        self.is_due, model = False, self._model()
        if model is None or model in looked_at:
            return
        looked_at.add(model)
        try:
            with torch.enable_grad():
                outputs, weights = follow(batch[:IMAGES].clone())
        except Exception:  # not all can be differentiated; what else is wrong with it, the prediction itself will say
            return
        if isinstance(outputs, Tensor):
            names = unused(outputs, weights)
            warn_of_unused(names, "The prediction", "they have posteriors, whose uncertainty it lacks", stacklevel=2)


def at_mean(network: nn.Module, images: Tensor) -> Followed:
    """The outputs of a network at the means of its posteriors, and these means; on a copy of it."""
    copied = deep_copy(network)
    means = {name: q.mean.requires_grad_() for name, q in posteriors(copied).items()}
    with one_pass(), forced(copied, Mean()):
        return copied(images), means
