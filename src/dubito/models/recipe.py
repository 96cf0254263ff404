"""How a network was built: the arguments of `build`, which the network keeps as plain data.

With them a saved network is built again. They are not all of it: what was converted or attached later is in the
network's structure (:mod:`dubito.convert.structure`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn
from typing_extensions import ParamSpec

from dubito.convert.structure import head_from, head_to_dict
from dubito.errors import RunError
from dubito.heads import Head
from dubito.models.trust import require_trust
from dubito.variational.posterior import Posterior

Arguments = ParamSpec("Arguments")
_ATTRIBUTE = "built_as"


def remembered(build: Callable[Arguments, nn.Module]) -> Callable[Arguments, nn.Module]:
    """`build`, whose networks keep the arguments that they were built with."""
    signature = inspect.signature(build)
    variable = {p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD}

    @wraps(build)
    def building(*args: Arguments.args, **options: Arguments.kwargs) -> nn.Module:
        network = build(*args, **options)
        given = signature.bind(*args, **options)
        given.apply_defaults()
        whole = {name: value for name, value in given.arguments.items() if name not in variable}
        for name in variable & given.arguments.keys():
            whole |= given.arguments[name]
        del whole["init"]  # its weights are in the network by now
        whole["name"] = getattr(network, "portable_name", whole["name"])
        setattr(network, _ATTRIBUTE, {name: _plain(value) for name, value in whole.items() if _can_be_kept(value)})
        return network

    return building


def recipe(network: nn.Module) -> dict[str, Any] | None:
    """The arguments that the network was built with, None for one that `build` did not make.

    >>> import dubito
    >>> recipe(dubito.models.build("lenet5", in_channels=1))["in_channels"]
    1
    """
    found = getattr(network, _ATTRIBUTE, None)
    return found if isinstance(found, dict) else None


def build_again(build: Callable[..., nn.Module], content: dict[str, Any]) -> nn.Module:
    """The network of a recipe, with fresh weights; a function of some package is only run if it is trusted.

    A recipe names no other file: it has no weights to start from, and of a network of Hugging Face the configuration.
    """
    given = dict(content)
    if "init" in given or (given["name"].startswith("hf:") and not given["name"].startswith("hf:{")):
        raise RunError("its network is built from another file, but must be complete in itself")
    require_trust(given["name"])
    if isinstance(given.get("head"), dict):
        given["head"] = head_from(given["head"])
    return build(**given)


def _can_be_kept(value: Any) -> bool:
    """Priors and estimators that are objects are part of the network's structure instead."""
    if isinstance(value, (list, tuple)):
        return all(isinstance(part, (str, int, float)) for part in value)
    kinds = (str, int, float, Head)
    return value is None or isinstance(value, kinds) or (isinstance(value, type) and issubclass(value, Posterior))


def _plain(value: Any) -> Any:
    if isinstance(value, Head):
        return head_to_dict(value)
    if isinstance(value, type):
        return value.name  # type: ignore[attr-defined]
    return list(value) if isinstance(value, tuple) else value
