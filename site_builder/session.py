"""The process that a page's blocks are run in: blocks from standard input, what they gave into a file."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[^\n]*\r(?!\n)")
"""Colours and moves of the cursor, and what a carriage return takes back."""


def main() -> None:
    """Run all blocks; the names that Python blocks define are shared."""
    names: dict[str, Any] = {"__name__": "__main__"}
    outcomes: list[dict[str, Any]] = []
    for block in json.load(sys.stdin):
        output = _console(block) if block["language"] == "console" else _python(block, names)
        lines = [line.rstrip() for line in CONTROL.sub("", output).splitlines()]
        outcomes.append({"output": "\n".join(lines).strip("\n"), "figures": _figures(len(outcomes))})
    Path(sys.argv[1]).write_text(json.dumps(outcomes), encoding="utf-8")


def _python(block: dict[str, Any], names: dict[str, Any]) -> str:
    printed = io.StringIO()
    code = "\n" * block["line"] + block["code"]  # so that a traceback has the line of the page
    with redirect_stdout(printed):
        exec(compile(code, "page", "exec"), names)
    return printed.getvalue()


def _console(block: dict[str, Any]) -> str:
    found = subprocess.run(["bash", "-euc", block["code"]], capture_output=True, text=True)
    if found.returncode:
        sys.exit(f"The commands in line {block['line']} failed.\n{found.stdout}\n{found.stderr}")
    return found.stdout


def _figures(number: int) -> list[str]:
    """Save what matplotlib has open, and close it."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    pyplot = sys.modules["matplotlib.pyplot"]
    names = []
    for place in pyplot.get_fignums():
        names.append(f"figure-{number}-{place}.png")
        pyplot.figure(place).savefig(names[-1], dpi=130)
    pyplot.close("all")
    return names


if __name__ == "__main__":
    main()
