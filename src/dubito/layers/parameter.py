"""A posterior for any parameter of any module, by torch's own parametrisations.

Reading the parameter gives a draw in training mode, the same one throughout a pass, and the mean in evaluation mode. So
layers that dubito does not know (attention, recurrent layers, embeddings, subclassed convolutions) are drawn too, as
are networks that read a layer's weight instead of calling the layer.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from dubito.estimators import Weight
from dubito.layers.base import BayesLayer, DrawingModule
from dubito.variational.posterior import Posterior


class DrawnParameter(DrawingModule):
    """What torch calls when a parameter with a posterior is read."""

    def __init__(self, posterior: Posterior) -> None:
        super().__init__()
        self.estimator = Weight()
        self.posterior = posterior

    def forward(self, *stored: Any) -> Tensor:
        """The weights as the pass under way sees them; what torch has stored is not used."""
        return self.active_estimator().read(self.posterior)


def draw_parameter(module: nn.Module, name: str, posterior: Posterior) -> None:
    """Give the parameter `name` of `module` this posterior, whose mean it becomes.

    >>> import torch
    >>> from dubito.variational.families import StdPosterior
    >>> embedding = nn.Embedding(5, 3)
    >>> draw_parameter(embedding, "weight", StdPosterior(embedding.weight))
    >>> torch.equal(embedding.weight, embedding.weight), embedding.eval().weight.requires_grad
    (False, True)
    """
    drawn = DrawnParameter(posterior)
    drawn.train(module.training)
    parametrize.register_parametrization(module, name, drawn, unsafe=True)
    # torch keeps the parameter beside the posterior, which has it as its mean; once is enough.
    stored: Any = module.parametrizations[name]  # type: ignore[index]
    del stored._parameters["original"]
    stored.__dict__["original"] = None


def fan_in(parameter: Tensor) -> int:
    """How many inputs each output sums over, by the shape of the parameter; 1 for a vector."""
    return max(1, math.prod(parameter.shape[1:]))


def drawn_parameters(module: nn.Module) -> dict[str, tuple[Posterior, DrawingModule]]:
    """The posteriors of a module's own parameters, each with what draws it."""
    if isinstance(module, BayesLayer):
        return {name: (q, module) for name, q in module.posteriors.items() if isinstance(q, Posterior)}
    lists = module._modules.get("parametrizations")
    if not isinstance(lists, nn.ModuleDict):
        return {}
    first = {name: next(iter(parts.children())) for name, parts in lists.items()}
    return {name: (part.posterior, part) for name, part in first.items() if isinstance(part, DrawnParameter)}
