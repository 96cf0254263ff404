"""Which parameters of a network can have a posterior, which get one by default, and which the user picks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from dubito.errors import OptionError
from dubito.layers import TWINS, BayesLayer, DrawingModule
from dubito.variational.posterior import Posterior

Choice: TypeAlias = str | type[nn.Module] | Callable[[str, nn.Module], bool]
"""Picks layers: by a pattern of names, by a type, or by a function of name and layer."""

Picked: TypeAlias = dict[str, list[str]]
"""Names of parameters by the name of their module."""

LINEAR_MAPS = (*TWINS, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase, nn.Embedding, nn.EmbeddingBag)
"""Modules whose parameters get posteriors by default, subclasses included."""


def own_parameters(module: nn.Module) -> list[str]:
    """The names of a module's own parameters that can have a posterior: real numbers, not yet drawn."""
    if isinstance(module, (DrawingModule, Posterior)) or obstacle(module, by_default=False) is not None:
        return []
    return [name for name, p in module.named_parameters(recurse=False) if p.is_floating_point()]


def obstacle(module: nn.Module, by_default: bool = True) -> str | None:
    """Why a module's own parameters get no posteriors by default, or cannot have any; None if nothing is in the way.

    >>> obstacle(nn.Linear(2, 2)), obstacle(nn.BatchNorm2d(3))
    (None, 'normalisation layers are converted only if `only` names their parameters')
    """
    kind = type(module)
    if isinstance(module, DrawingModule):
        return "it is Bayesian already"
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        return "it has no weights yet: pass one batch through the network first"
    if is_parametrized(module):
        if any(isinstance(part[0], DrawingModule) for part in module.parametrizations.values()):  # type: ignore[operator]
            return "it is Bayesian already"
        return "its weights are computed: torch.nn.utils.parametrize.remove_parametrizations first"
    computed = [name for name in ("weight", "bias") if isinstance(vars(module).get(name), Tensor)]
    if computed and isinstance(module, LINEAR_MAPS):
        sources = ", ".join(name for name, _ in module.named_parameters() if name.startswith(computed[0]))
        return f"its {computed[0]} is computed from {sources}: remove that (torch.nn.utils) first"
    own = list(module.parameters(recurse=False))
    if own and not any(parameter.is_floating_point() for parameter in own):
        return f"its weights are {own[0].dtype}, not real numbers"
    if not by_default or isinstance(module, LINEAR_MAPS) or kind.__name__ == "Conv1D":
        return None
    if "norm" in kind.__name__.lower():
        return "normalisation layers are converted only if `only` names their parameters"
    return "parameters of the module itself are converted only if `only` names them"


def choose_parameters(
    module: nn.Module, only: Choice | Sequence[Choice] | None, last_layer: bool, option: str = "only"
) -> Picked:
    """The parameters to draw, by module; those that have posteriors already count, but are not among them.

    `option` is what an error calls the choice.
    """
    named = dict(module.named_modules())
    able = {name: own_parameters(part) for name, part in named.items() if _is_default(part) or _is_bayesian(part)}
    if only is not None:
        choices: list[Any] = list(only) if isinstance(only, (list, tuple)) else [only]
        picked: Picked = {}
        for choice in choices:
            for name, parameters in _pick(choice, module, able, option).items():
                picked[name] = list(dict.fromkeys([*picked.get(name, []), *parameters]))
        able = {name: picked[name] for name in named if name in picked}
    if not able:
        raise OptionError(
            f"The network ({type(module).__name__}) has no layer that can be made Bayesian{_refusals(named, named)}"
        )
    return dict([list(able.items())[-1]]) if last_layer else able


def _is_default(module: nn.Module) -> bool:
    return obstacle(module) is None and bool(own_parameters(module))


def _is_bayesian(module: nn.Module) -> bool:
    return obstacle(module) == "it is Bayesian already" and not isinstance(module, Posterior)


def _pick(choice: Choice, module: nn.Module, able: Picked, option: str) -> Picked:
    """What a choice picks, at least one parameter; a shared layer answers to each of its names."""
    named = dict(module.named_modules())
    hit: set[str] = set()
    if isinstance(choice, (str, type)):
        first = {part: name for name, part in named.items()}
        everywhere = list(module.named_modules(remove_duplicate=False))
        fits = {name for name, part in everywhere if _fits(choice, name, part)}
        hit = {first[part] for name, part in everywhere if not fits.isdisjoint(places(name))}
    elif callable(choice):
        hit = {name for name in able if choice(name, named[name])}
    else:
        raise OptionError(f"{option} has {choice!r}, but must be a pattern of names, a type, or a function of both.")
    found = {name: able[name] for name in able if name in hit}
    if isinstance(choice, str):
        found |= _named_parameters(choice, named)
    if not found:
        shown = getattr(choice, "__name__", choice)
        known = ", ".join(list(able)[:5]) + (", ..." if len(able) > 5 else "")
        raise OptionError(
            f"{option}={shown} picks no layer that can be made Bayesian"
            f"{_refusals(hit, named, else_say=f' among {known}.')}"
        )
    return found


def _named_parameters(pattern: str, named: dict[str, nn.Module]) -> Picked:
    """Parameters whose full name fits a pattern that ends with the name of a parameter, such as ``*.norm1.weight``."""
    last = pattern.rsplit(".", 1)[-1]
    found: Picked = {}
    for name, part in named.items():
        fitting = [p for p in own_parameters(part) if p == last and fnmatchcase(f"{name}.{p}".lstrip("."), pattern)]
        if fitting:
            found[name] = fitting
    return found


def _fits(choice: str | type[nn.Module], name: str, module: nn.Module) -> bool:
    return fnmatchcase(name, choice) if isinstance(choice, str) else isinstance(module, choice)


def places(name: str) -> Iterator[str]:
    """The names of a module and of all that it is inside of.

    >>> list(places("a.b"))
    ['', 'a', 'a.b']
    """
    yield ""
    parts = name.split(".") if name else []
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _refusals(names: Iterable[str], named: dict[str, nn.Module], else_say: str = ": it has no weights.") -> str:
    """Which modules with weights of their own stand in the way, where, and why."""
    refused = [(name, named[name]) for name in sorted(names) if any(True for _ in named[name].parameters(False))]
    if not refused:
        return else_say
    shown = [f"{name or 'the root'} ({type(part).__name__}): {obstacle(part)}" for name, part in refused[:3]]
    more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
    return ": " + "; ".join(shown) + more + "."


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
