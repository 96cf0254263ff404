"""Callbacks of options are ones that typer can read on every Python that dubito runs on."""

from __future__ import annotations

import inspect
from types import GenericAlias
from typing import get_type_hints

from dubito.cli import app


def test_no_callback_takes_a_generic_type() -> None:
    """On Python 3.10 `list[Path]` counts as a class, of which typer then asks what it inherits."""
    commands = [command.callback for command in app.registered_commands]
    hints = [hint for command in commands for hint in get_type_hints(command, include_extras=True).values()]
    options = [option for hint in hints for option in getattr(hint, "__metadata__", ())]
    callbacks = {option.callback for option in options if getattr(option, "callback", None)}
    assert len(callbacks) >= 4
    for callback in callbacks:
        for name in inspect.signature(callback).parameters:
            annotation = get_type_hints(callback).get(name)
            assert not isinstance(annotation, GenericAlias), (callback, name)
            assert getattr(annotation, "__origin__", None) is None, (callback, name)
