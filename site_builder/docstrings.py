"""Docstrings and signatures as pages show them: doctests become code, and private parameters are left out."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Function, Object

DOCTEST = re.compile(r"^(?P<indent>[ ]*)>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
ROLE = re.compile(r":[a-z]+:`~?([^`]+)`")


def readable(text: str) -> str:
    """The docstring as Markdown.

    >>> print(readable("See :func:`add`.\\n\\n>>> 1 + 1\\n2"))
    See `add`.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """

    def fenced(match: re.Match[str]) -> str:
        indent = match["indent"]
        return f"{indent}```pycon\n{match[0]}\n{indent}```"

    return DOCTEST.sub(fenced, ROLE.sub(r"`\1`", text))


class Docstrings(Extension):
    """What mkdocstrings asks about every object that it has read."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        """Leave out parameters that begin with an underscore, which are for dubito itself."""
        for name in [parameter.name for parameter in func.parameters if parameter.name.startswith("_")]:
            del func.parameters[name]

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Make its docstring readable."""
        if obj.docstring:
            obj.docstring.value = readable(obj.docstring.value)
