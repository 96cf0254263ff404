"""`to_deterministic`: a plain network of torch from a Bayesian one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from dubito.convert.copying import deep_copy, substitute, take_place
from dubito.layers import BayesLayer, drawn_parameters
from dubito.variational.posterior import Posterior, close_pass, open_pass, posteriors


class Slot(NamedTuple):
    """A place in a plain network that takes the weights of a posterior."""

    module: nn.Module
    name: str
    posterior: Posterior


def to_deterministic(
    module: nn.Module, *, draw: bool = False, generator: torch.Generator | None = None, inplace: bool = False
) -> nn.Module:
    """A copy of `module` with plain layers of torch in place of the Bayesian ones.

    Their weights are the posterior means, or with `draw` one draw from the posterior, reproducible by a `generator`.
    Tied weights stay tied. The copy is a point estimate: it has no epistemic uncertainty.

    >>> import dubito
    >>> network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> back = to_deterministic(dubito.to_bayesian(network))
    >>> type(back[0]).__name__, back[0].weight.equal(network[0].weight)
    ('Linear', True)
    """
    network, slots = plain_network(module, inplace=inplace)
    values: dict[Posterior, Tensor] = {}
    for _, _, q in slots:
        if q not in values:
            weights = q.draw(q.fresh_noise(generator)) if draw else q.mean
            copied = weights.detach() if inplace and not draw else weights.detach().clone()
            values[q] = nn.Parameter(copied, requires_grad=q.mean.requires_grad)
    fill(slots, values)
    return network


def plain_network(module: nn.Module, *, inplace: bool = False, share: bool = False) -> tuple[nn.Module, list[Slot]]:
    """A copy of a network with plain layers whose drawn weights are still missing, and the places for them.

    With `share` the parameters that are not drawn are those of `module` itself; buffers are always copied.
    """
    network = module
    if not inplace:
        layers = [part for part in module.modules() if isinstance(part, BayesLayer)]
        kept: dict[int, object] = {id(q): q for q in (*posteriors(module).values(), *(p.posteriors for p in layers))}
        if share:
            kept |= {id(p): p for p in module.parameters()}
        network = deep_copy(module, kept)
    slots: list[Slot] = []
    plain: dict[int, nn.Module] = {}
    for layer in list(network.modules()):
        if isinstance(layer, BayesLayer):
            plain[id(layer)] = _plain_layer(layer, slots)
        elif is_parametrized(layer):
            _plain_parameters(layer, slots)
    network = substitute(network, plain)
    _forget_passes(network)
    return network, slots


def fill(slots: list[Slot], values: dict[Posterior, Tensor]) -> None:
    """Put weights into their places."""
    for module, name, q in slots:
        module._parameters[name] = values[q]  # type: ignore[assignment]


def _plain_layer(layer: BayesLayer, slots: list[Slot]) -> nn.Module:
    """The layer of torch, with its drawn weights missing."""
    plain: nn.Module = layer.plain()  # type: ignore[operator]
    for name in ("weight", "bias"):
        if name in layer.posteriors:
            slots.append(Slot(plain, name, layer.posteriors[name]))  # type: ignore[arg-type]
        elif name == "bias":
            plain._parameters["bias"] = layer.point_bias  # type: ignore[assignment]
    take_place(plain, layer)
    return plain


def _plain_parameters(module: nn.Module, slots: list[Slot]) -> None:
    """Take the posteriors of a module's parameters away; the module is a copy of its own."""
    lists = module._modules["parametrizations"]
    for name, (posterior, _) in drawn_parameters(module).items():
        slots.append(Slot(module, name, posterior))
        del lists._modules[name]  # type: ignore[union-attr]
        module._parameters[name] = None
    if not lists._modules:  # type: ignore[union-attr]
        del module._modules["parametrizations"]
        # torch gave it a class that computes its parameters; the copy goes back to the one it had
        module.__class__ = type(module).__bases__[0]


def _forget_passes(network: nn.Module) -> None:
    """A network that draws nothing has no passes."""
    for module in network.modules():
        for hooks, own in ((module._forward_pre_hooks, open_pass), (module._forward_hooks, close_pass)):
            for key in [key for key, hook in hooks.items() if hook is own]:
                del hooks[key]
                module._forward_hooks_always_called.pop(key, None)
