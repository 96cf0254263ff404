"""The reference of the command line: what `--help` prints of each command."""

from __future__ import annotations

from typer.main import get_command
from typer.testing import CliRunner

from dubito.cli import app

PLACE = "<!-- commands -->"
COLUMNS = "88"
"""As many as a page shows without scrolling."""


def help_of(*words: str) -> str:
    """The help of a command as text."""
    found = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": COLUMNS, "NO_COLOR": "1", "TERM": "dumb"})
    if found.exit_code:
        raise ValueError(f"dubito {' '.join(words)} --help fails: {found.output}")
    return "\n".join(line.rstrip() for line in found.output.strip("\n").splitlines()).strip()


def commands() -> list[tuple[str, ...]]:
    """The words of every command, such as ("data", "get")."""
    found: list[tuple[str, ...]] = []
    for name, command in getattr(get_command(app), "commands").items():  # noqa: B009
        found += [(name, inner) for inner in getattr(command, "commands", {})] or [(name,)]
    return found


def command_reference() -> str:
    """A section for each command."""
    return "\n\n".join(f"## dubito {' '.join(words)}\n\n```text\n{help_of(*words)}\n```" for words in commands())
