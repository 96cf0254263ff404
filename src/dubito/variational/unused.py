"""Posteriors that a network has but does not use, found from the graph that torch records for gradients.

KL counts every posterior, and a reader takes each for a source of epistemic uncertainty. So the first free energy and
the first prediction of a network name those that its outputs do not depend on.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from weakref import WeakSet

from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from dubito.errors import DubitoWarning

looked_at: WeakSet[nn.Module] = WeakSet()
"""Networks whose posteriors were looked at: once is enough for any number of objectives and predictors."""


def unused(output: Tensor, tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of those tensors that `output` does not depend on; nothing is computed.

    Tensors that need no gradient, and what checkpoints hide, count as used.

    >>> import torch
    >>> a, b = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    >>> unused(2 * a, {"a": a, "b": b})
    ['b']
    """
    wanted = {name: get_gradient_edge(tensor).node for name, tensor in tensors.items() if tensor.requires_grad}
    if output.grad_fn is None or not wanted:
        return []
    reached: set[Node] = set()
    waiting: list[Node] = [get_gradient_edge(output).node]
    while waiting:
        node = waiting.pop()
        if node in reached:
            continue
        if node.name() == "CheckpointFunctionBackward":  # which knows its inputs, but not the weights inside
            return []
        reached.add(node)
        waiting.extend(source for source, _ in node.next_functions if source is not None)
    return [name for name, node in wanted.items() if node not in reached]


def warn_of_unused(names: list[str], who: str, but: str, stacklevel: int) -> None:
    """Warn that `who` did not use the posteriors of these names, `but` they matter."""
    if names:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        warnings.warn(
            f"{who} did not use {shown}, but {but}: leave those layers out with to_bayesian(only=...), or check that "
            "the network calls them.",
            DubitoWarning,
            stacklevel=stacklevel + 1,
        )
