"""Networks that draw without Bayesian layers: MC dropout and ensembles, predicted as all others are.

MC dropout (Gal & Ghahramani 2016) draws by leaving dropout on. An ensemble (Lakshminarayanan et al. 2017) has members
as draws: its prediction is their mean, and its epistemic uncertainty their disagreement and that of each member's own
draws.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dubito.errors import OptionError
from dubito.heads import Head, attach_head, resolve_head
from dubito.softplus import at_least_single

ModuleType = TypeVar("ModuleType", bound=nn.Module)


def mc_dropout(model: ModuleType, *, head: str | Head | None = None) -> ModuleType:
    """`model` as MC dropout: :func:`dubito.predict` draws with its dropout layers.

    The result shares its weights with `model`, which itself predicts as before. Only dropout layers are drawn, not
    dropout by `torch.nn.functional`. The layers must get the images along axis 0, because all images share a mask.

    >>> import dubito
    >>> network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3))
    >>> prediction = dubito.predict(mc_dropout(network, head="softmax"), torch.ones(2, 4))
    >>> bool((prediction.epistemic > 0).all())
    True
    """
    if not any(isinstance(part, _DropoutNd) and part.p > 0 for part in model.modules()):
        raise OptionError(
            f"The network ({type(model).__name__}) has no dropout layer that drops anything, so MC dropout has nothing "
            "to draw: add nn.Dropout and train with it, or use to_bayesian."
        )
    view = copy.copy(model)
    view.draws_dropout = True  # type: ignore[assignment]
    return view if head is None else attach_head(view, head)


class Ensemble(nn.Module):
    """Several networks for the same inputs and classes as one; see :func:`ensemble`.

    Called, it gives the logarithm of its members' mean probabilities.
    """

    def __init__(self, members: Iterable[nn.Module], head: str | Head | None = None) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        if not len(self.members):
            raise OptionError("The ensemble has no members, but needs at least 1.")
        self.heads = tuple(_probability_head(member, head, number) for number, member in enumerate(self.members))
        attach_head(self, "softmax")  # of log-probabilities

    def forward(self, x: Tensor) -> Tensor:
        """Log of the mean over the members of their probabilities, each in its own mode."""
        pairs = zip(self.heads, self.members, strict=True)
        probs = torch.stack([at_least_single(head.probs(member(x))) for head, member in pairs]).mean(0)
        return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()

    def heads_for(self, head: str | Head | None) -> list[str | Head | None]:
        """The head of each member, if `head` is asked of the ensemble; members of an inner ensemble have their own."""
        own: list[str | Head | None] = list(self.heads)
        if head is not None:
            own = [_probability_head(member, head, number) for number, member in enumerate(self.members)]
        pairs = zip(self.members, own, strict=True)
        return [head if isinstance(member, Ensemble) else chosen for member, chosen in pairs]


def ensemble(members: Iterable[nn.Module], *, head: str | Head | None = None) -> Ensemble:
    """Several trained networks as one, for :func:`dubito.predict`: Bayesian, MC dropout and plain ones alike.

    Args:
        members: networks for the same inputs and classes; they are not copied.
        head: how their outputs become probabilities; None for each member's own.

    >>> import dubito
    >>> members = [nn.Linear(4, 3) for _ in range(5)]
    >>> prediction = dubito.predict(ensemble(members, head="softmax"), torch.ones(2, 4))
    >>> prediction.samples, bool((prediction.epistemic > 0).all())
    (5, True)
    """
    return Ensemble(members, head)


def _probability_head(member: nn.Module, head: str | Head | None, number: int) -> Head:
    chosen = resolve_head(member, None if isinstance(member, Ensemble) else head)
    if chosen.unit != "probability":
        raise OptionError(
            f"Member {number} of the ensemble ({type(member).__name__}) has the {chosen.name} head, but members need "
            "one whose uncertainties are those of probabilities: softplus or softmax."
        )
    return chosen
