"""Docstrings as pages show them: their doctests become blocks of code, and roles of reStructuredText plain code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

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

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Make its docstring readable."""
        if obj.docstring:
            obj.docstring.value = readable(obj.docstring.value)
