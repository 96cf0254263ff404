"""Engines: what carries a predictor over many images. A new engine is a file here and a line in `ENGINES`."""

from __future__ import annotations

from dubito.engines.base import Engine
from dubito.engines.local import LocalEngine
from dubito.errors import OptionError, unknown

__all__ = ["ENGINES", "Engine", "LocalEngine", "get_engine"]

ENGINES: dict[str, type[Engine]] = {kind.name: kind for kind in (LocalEngine,)}


def get_engine(name: str) -> Engine:
    """The engine of that name.

    >>> get_engine("local").name
    'local'
    """
    if name not in ENGINES:
        raise OptionError(unknown("engine", name, ENGINES))
    return ENGINES[name]()
