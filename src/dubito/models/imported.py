"""Networks that a function of the user's own builds: ``package.module:function``.

The module is imported as Python would from the working directory. The function, or class, is called with those of the
keyword arguments `num_classes`, `in_channels` and `image_size` that it has parameters for, or with a
:class:`~dubito.models.Plan` if it has a parameter `plan`. It also gets `activation`, `norm` and `dropout` if it has
parameters for them and they are asked for. `num_classes` is how many outputs the network must have, which for the head
``kendall_gal`` is two for each class. Plain torch layers are enough.

A run of such a network calls the function again whenever its network is loaded, so the module must be importable then.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from dubito.errors import DubitoError, OptionError
from dubito.models.parts import Activation, Norm
from dubito.models.registry import Inference, Plan


def is_imported(name: str) -> bool:
    """Whether a name has the form ``package.module:function``.

    >>> is_imported("networks.mine:small"), is_imported("lenet5")
    (True, False)
    """
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *function.split(".")))


def imported(name: str) -> Callable[[Plan], nn.Module]:
    """A builder of networks that calls the function of that name.

    >>> from dubito.errors import OptionError
    >>> try:
    ...     imported("math:network")
    ... except OptionError as error:
    ...     print(error)
    model is 'math:network', but the module math has no network; give package.module:function.
    """
    function = _function(name)

    def build(plan: Plan) -> nn.Module:
        arguments = _arguments(name, function, plan)
        try:
            network = function(**arguments)
        except DubitoError:
            raise
        except Exception as error:  # whatever the user's own code raises
            raise OptionError(
                f"{name} failed when it was called with {_listed(arguments)}: {_reason(error)}"
            ) from error
        if not isinstance(network, nn.Module):
            kind = type(network).__name__
            article = "an" if kind[0] in "aeiouAEIOU" else "a"
            raise OptionError(f"{name} returned {article} {kind}, but must return a torch.nn.Module.")
        return network

    return build


def _function(name: str) -> Callable[..., Any]:
    module, _, path = name.partition(":")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise OptionError(f"model is {name!r}, but {module} needs {error.name}, which is missing.") from error
        raise OptionError(
            f"model is {name!r}, but Python finds no module {module}: run from the folder that it is in, or add that "
            "to PYTHONPATH."
        ) from None
    except Exception as error:  # whatever the user's own code raises
        raise OptionError(f"model is {name!r}, but importing {module} failed: {_reason(error)}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise OptionError(
                f"model is {name!r}, but the module {module} has no {path}; give package.module:function."
            )
        found = getattr(found, part)
    if not callable(found):
        raise OptionError(f"model is {name!r}, but that is a {type(found).__name__}, not a function that builds one.")
    return found


def _arguments(name: str, function: Callable[..., Any], plan: Plan) -> dict[str, Any]:
    """What of the plan the function has parameters for; what was asked for and it has none for is refused."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # of some functions that are not written in Python
        return {}
    if "plan" in parameters:
        return {"plan": plan}
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    usual = {"num_classes": plan.num_outputs, "in_channels": plan.in_channels, "image_size": plan.image_size}
    asked: dict[str, Any] = {}
    for option in ("activation", "norm"):
        chosen = getattr(plan, option)
        if chosen not in (Activation.OWN, Norm.OWN):
            asked[option] = chosen.value
    if plan.inference is Inference.DROPOUT and "dropout" in parameters:
        asked["dropout"] = plan.dropout
    if not takes_all:
        refused = [option for option in asked if option not in parameters]
        if refused:
            raise OptionError(f"{refused[0]} is {asked[refused[0]]!r}, but {name} has no parameter {refused[0]}.")
        usual = {option: value for option, value in usual.items() if option in parameters}
    return {**usual, **asked}


def _listed(arguments: dict[str, Any]) -> str:
    """The names and plain values of arguments."""
    shown = (f"{name}={value!r}" if isinstance(value, (int, float, str)) else name for name, value in arguments.items())
    return ", ".join(shown) or "no arguments"


def _reason(error: Exception) -> str:
    """What somebody else's code raised, in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}." if lines else f"{type(error).__name__}."
