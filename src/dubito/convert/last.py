"""Which layer makes a network's outputs: the last one that a forward pass calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dubito.convert.candidates import obstacle, own_parameters
from dubito.errors import OptionError
from dubito.layers import BayesLayer


def last_layer(network: nn.Module, example: Tensor) -> tuple[str, Any]:
    """The name of the last layer of weights that the network calls for an example, and what the network returns.

    Order of definition is not order of use, so the network is run, in the mode that it is in.

    >>> class Network(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.classifier = nn.Linear(4, 2)
    ...         self.features = nn.Linear(3, 4)
    ...     def forward(self, x):
    ...         return self.classifier(self.features(x))
    >>> last_layer(Network(), torch.zeros(1, 3))[0]
    'classifier'
    """
    called: list[str] = []
    hooks = []
    for name, part in network.named_modules():
        if isinstance(part, BayesLayer) or (obstacle(part) is None and own_parameters(part)):
            hooks.append(part.register_forward_hook(lambda *_, name=name: called.append(name)))
    try:
        with torch.no_grad():
            output = network(example)
    finally:
        for hook in hooks:
            hook.remove()
    if not called:
        raise OptionError(f"The network ({type(network).__name__}) calls no layer that has weights of its own.")
    return called[-1], output
