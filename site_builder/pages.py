"""The pages as text: their fenced blocks, and their links."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

FENCE = re.compile(r"^(?P<fence>`{3,})(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=fence)[ ]*$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?P<before>!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?P<target>[^)\s]+)(?P<after>\))")
INLINE_CODE = re.compile(r"`[^`\n]+`")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the words after it, its code and the line where it begins."""

    language: str
    marks: tuple[str, ...]
    code: str
    line: int

    @property
    def runs(self) -> bool:
        return "run" in self.marks


def block_of(match: re.Match[str], text: str) -> Block:
    language, *marks = match["info"].split() or [""]
    return Block(language, tuple(marks), match["code"], text.count("\n", 0, match.start()) + 1)


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [block_of(match, text) for match in FENCE.finditer(text)]


def outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """The text with `change` applied between its fenced blocks and pieces of code."""
    parts: list[str] = []
    place = 0
    spans = sorted(match.span() for match in FENCE.finditer(text))
    for start, end in [*spans, (len(text), len(text))]:
        parts += [change(text[place:start]), text[start:end]]
        place = end
    return "".join(parts)


def links(text: str) -> list[str]:
    """The targets of a page's links and pictures."""
    found: list[str] = []

    def collect(part: str) -> str:
        found.extend(match["target"] for match in LINK.finditer(INLINE_CODE.sub("``", part)))
        return part

    outside_of_code(text, collect)
    return found


def is_outside(target: str) -> bool:
    """Whether a link leads to another site."""
    return "://" in target or target.startswith("mailto:")
