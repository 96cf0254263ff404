"""Engines run a function for many items. A new engine is a file here and a line in `ENGINES`."""

from __future__ import annotations

from typing import Any

from dubito.engines.base import Engine
from dubito.engines.local import LocalEngine
from dubito.engines.ray import RayEngine
from dubito.errors import OptionError, unknown

__all__ = ["ENGINES", "Engine", "LocalEngine", "RayEngine", "get_engine"]

ENGINES: dict[str, type[Engine]] = {kind.name: kind for kind in (LocalEngine, RayEngine)}


def get_engine(name: str, **options: Any) -> Engine:
    """The engine of that name; the options that are None are its own.

    >>> get_engine("local").name
    'local'
    """
    if name not in ENGINES:
        raise OptionError(unknown("engine", name, ENGINES))
    given = {option: value for option, value in options.items() if value is not None}
    if given and name == LocalEngine.name:
        flags = ", ".join("--" + option.replace("_", "-") for option in given)
        raise OptionError(f"{flags} can only be used with --engine ray.")
    return ENGINES[name](**given)
