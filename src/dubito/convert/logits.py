"""Networks that return more than a tensor of logits, such as those of Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from dubito.errors import ShapeError
from dubito.heads import Head, attach_head, resolve_head


class Logits(nn.Module):
    """A network whose output is the tensor of logits among what `model` returns.

    That is the attribute or key ``logits`` of what it returns (Hugging Face), its key ``out`` (dense networks of
    torchvision), the first element of a tuple, or the tensor itself. ELBO and predict then take it like any network.

    Args:
        model: any network; it is not copied.
        head: how the logits become probabilities; None for the model's own, if it has one.

    >>> class Classifier(nn.Module):
    ...     def forward(self, x):
    ...         return {"logits": x, "hidden_states": None}
    >>> import torch
    >>> Logits(Classifier())(torch.ones(1, 2))
    tensor([[1., 1.]])
    """

    def __init__(self, model: nn.Module, head: str | Head | None = None) -> None:
        super().__init__()
        self.model = model
        self.draws_dropout = bool(getattr(model, "draws_dropout", False))
        if head is not None or hasattr(model, "probability_head"):
            attach_head(self, resolve_head(model, head))

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The logits for these inputs of the model."""
        output = self.model(*inputs, **options)
        found = output
        if isinstance(output, Mapping):
            found = output.get("logits", output.get("out"))
        elif hasattr(output, "logits"):
            found = output.logits
        elif isinstance(output, (tuple, list)) and output:
            found = output[0]
        if found is None or isinstance(found, (Mapping, tuple, list, nn.Module)):
            raise ShapeError(
                f"{type(self.model).__name__} returned {type(output).__name__}, which has no logits: wrap the "
                "network in a module that returns them."
            )
        return found
