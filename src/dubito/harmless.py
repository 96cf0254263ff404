"""Text of strangers, such as names of files, made harmless for terminals and spreadsheets.

A terminal obeys escape sequences in what it prints, and a spreadsheet computes cells that begin like a formula.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from typing import Any
from unicodedata import bidirectional, category

_CONTROL = {"Cc", "Cs", "Zl", "Zp"}
"""Control characters, halves of characters (which stand for bytes that are no UTF-8), line and paragraph breaks."""
_TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
"""Characters that turn the direction of what follows, and so make a text look like another."""
_LONGEST = 300
"""Characters of a name in a sentence; half as many stay at each end of a longer one."""
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""How a formula begins; spreadsheets take the wide forms for the others."""


def is_control(letter: str) -> bool:
    """Whether a character does something to a terminal instead of being shown.

    >>> is_control("a"), is_control("é"), is_control(chr(27))
    (False, False, True)
    """
    return category(letter) in _CONTROL or bidirectional(letter) in _TURNING


def printable(text: str) -> str:
    """A line of text with every control character written out.

    >>> print(printable("cat" + chr(27) + "[2J.png"))
    cat\\x1b[2J.png
    """
    if text.isprintable():
        return text
    return "".join(letter.encode("unicode_escape").decode() if is_control(letter) else letter for letter in text)


def short(name: str) -> str:
    """A name as a sentence can quote it: on one line, and without the middle of one that is very long.

    >>> short("cat.png"), len(short("\\0" * 100_000))
    ('cat.png', 305)
    """
    shown = printable(name)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST // 2]} ... {shown[-_LONGEST // 2 :]}"


def say(text: str = "", *, err: bool = False) -> None:
    """Print lines of text, on stderr if asked. What the program says goes through here, through a table or a bar.

    >>> say("cat" + chr(27) + "[2J.png")
    cat\\x1b[2J.png
    """
    lines = (printable(line) for line in text.split("\n"))
    print("\n".join(lines), file=sys.stderr if err else sys.stdout, flush=True)


def to_csv(columns: Iterable[str], rows: Iterable[Sequence[Any]]) -> str:
    """A CSV file. In its texts control characters are written out, and an apostrophe stands before = + - @.

    >>> print(to_csv(["path", "score"], [["=1+1.png", -0.5], ["a.png", None]]), end="")
    path,score
    '=1+1.png,-0.5
    a.png,
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([_cell(column) for column in columns])
    lines.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    shown = printable(value)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
