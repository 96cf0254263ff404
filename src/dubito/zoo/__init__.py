"""Trained networks that come with dubito: use ``zoo:NAME`` in place of a run folder.

Each is a folder here, named NAME: a run without what only its training needs, and

    README.md      its card: data, command, commit, figures, decision rule, limits
    figures.json   the figures that the card was written from

``python -m benchmarks.zoo`` trains, measures and writes them all. They are part of the installation, and no command
changes them: ``dubito zoo NAME --out FOLDER`` makes a copy to work on.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dubito.errors import OptionError, RunError, unknown

__all__ = [
    "FOLDER",
    "SCHEME",
    "card",
    "figures",
    "find",
    "is_here",
    "names",
    "place_for",
    "refuse_to_change",
]

SCHEME = "zoo:"
"""What the name of a trained network begins with."""
FOLDER = Path(__file__).resolve().parent
"""Where they are."""
CARD, FIGURES = "README.md", "figures.json"


def names() -> list[str]:
    """The trained networks, in alphabetical order.

    >>> "lenet5-mnist" in names()
    True
    """
    return sorted(path.parent.name for path in FOLDER.glob("*/config.yaml"))


def find(path: str | os.PathLike[str]) -> Path:
    """The folder of ``zoo:NAME``; any other path as it is.

    >>> find("runs/mine").as_posix(), find("zoo:lenet5-mnist").name
    ('runs/mine', 'lenet5-mnist')
    """
    text = os.fspath(path)
    if not text.startswith(SCHEME):
        return Path(path)
    name = text.removeprefix(SCHEME)
    if name not in names():
        raise OptionError(unknown("trained network", name, names()))
    return FOLDER / name


def figures(name: str) -> dict[str, Any]:
    """What was measured of a trained network."""
    content: dict[str, Any] = json.loads((find(SCHEME + name) / FIGURES).read_text(encoding="utf-8"))
    return content


def card(name: str) -> str:
    """The card of a trained network, in Markdown."""
    return (find(SCHEME + name) / CARD).read_text(encoding="utf-8")


def is_here(folder: str | os.PathLike[str]) -> bool:
    """Whether this is the folder of a trained network that came with dubito.

    >>> is_here("runs/mine"), is_here(find("zoo:lenet5-mnist"))
    (False, True)
    """
    return Path(folder).resolve().parent == FOLDER


def place_for(run: Path) -> Path:
    """Where a command writes its results for a run: its folder, or for a network from here a new folder of its name.

    >>> place_for(Path("runs/mine")).as_posix(), place_for(find("zoo:lenet5-mnist")).as_posix()
    ('runs/mine', 'lenet5-mnist')
    """
    return Path(run.resolve().name) if is_here(run) else run


def refuse_to_change(folder: Path) -> None:
    """An error if this is the folder of a trained network that came with dubito.

    >>> refuse_to_change(Path("runs/mine"))
    """
    if is_here(folder):
        name = folder.resolve().name
        raise RunError(
            f"{SCHEME}{name} came with dubito and stays as it is; make a copy with `dubito zoo {name} --out FOLDER` "
            "and use that."
        )
