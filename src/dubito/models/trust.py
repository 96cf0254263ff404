"""Trust in functions that build networks: ``package.module:function``.

A run or a saved network that came from somebody else may name any function, and opening its network runs it. So it is
run only if the user said so (``trust=True``, ``--trust``), or has trained with the same function before: `train` asks
nothing, for there the user names the function, and remembers it by its name and the place of its package.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import PathFinder
from pathlib import Path

from dubito.errors import RunError
from dubito.files import write_atomically
from dubito.models.imported import is_imported

FILE = "trusted.json"
_TRUSTS: ContextVar[bool] = ContextVar("trusts", default=False)


@contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Inside, functions that runs and saved networks name are run; with False nothing changes."""
    token = _TRUSTS.set(trust or _TRUSTS.get())
    try:
        yield
    finally:
        _TRUSTS.reset(token)


def trusts() -> bool:
    """Whether functions are run here, so that another process that works for this one can be told."""
    return _TRUSTS.get()


def trust_all() -> None:
    """The same until the current context ends: for a command."""
    _TRUSTS.set(True)


def require_trust(name: str) -> None:
    """An error if the network of that name is built by a function that the user has not trusted.

    >>> require_trust("lenet5")
    >>> try:
    ...     require_trust("some.package:network")
    ... except RunError as error:
    ...     print(str(error).split(":")[0])
    opening it runs the function some.package
    """
    if is_imported(name) and not _TRUSTS.get() and _remembered().get(name) != _place(name):
        raise RunError(
            f"opening it runs the function {name}, which builds its network: give --trust (trust=True) if you trust it"
        )


def remember(name: str) -> None:
    """Keep that the user trains with this function, if it is one."""
    known = _remembered()
    if is_imported(name) and known.get(name) != _place(name):
        try:
            write_atomically(_file(), json.dumps({**known, name: _place(name)}, indent=1) + "\n")
        except OSError:
            return  # then --trust is asked for


def _file() -> Path:
    from dubito.data.download import cache_folder

    return cache_folder() / FILE


def _remembered() -> dict[str, str]:
    try:
        found = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _place(name: str) -> str:
    """Where the package of a function is; nothing of it is run."""
    package = name.partition(":")[0].partition(".")[0]
    found = PathFinder.find_spec(package, [*sys.path, os.getcwd()])
    if found is None:
        return "nowhere"
    return os.path.realpath(found.origin or next(iter(found.submodule_search_locations or ()), ""))
