"""Names of strangers do nothing to a terminal or a spreadsheet."""

from __future__ import annotations

import ast
import csv
import io
import os
from pathlib import Path

import pytest
import torch
from rich.console import Console

import dubito
from dubito.evaluation.predictions import Evaluated
from dubito.harmless import printable, say, to_csv
from dubito.prediction import decompose
from dubito.progress import progress_bar

ESCAPES = ["\x1b[2J", "\x9b31m", "a\x07b", "\x7f", "a\rb", "a\tb", "a\nb", "a\u2028b", "a\u202eb", "caf\udce9"]


@pytest.mark.parametrize("text", ESCAPES)
def test_what_a_terminal_obeys_is_written_out(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown.encode().decode("unicode_escape", "surrogatepass") == text
    say(f"first {text}\nlast", err=True)
    lines = capsys.readouterr().err.split("\n")
    assert all(line.isprintable() for line in lines)
    assert lines[-2:] == ["last", ""]


@pytest.mark.parametrize("text", ["cat.png", "Käse", "日本", "نان", "👩‍🔬", "a\u00a0b", ""])
def test_names_of_any_language_stay_as_they_are(text: str) -> None:
    assert printable(text) == text
    assert to_csv(["name"], [[text, 1]]) == f"name\n{text},1\n"


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\uff1d", "\t=", "\r=", "\n="])
def test_no_cell_of_a_csv_file_begins_like_a_formula(begin: str) -> None:
    text = to_csv([f"{begin}cmd"], [[f"{begin}cmd|' /C calc'!A0"], [-0.5], [None]])
    header, name, number, nothing = csv.reader(io.StringIO(text))
    assert header[0][0] in "'\\"
    assert name[0][0] in "'\\"
    assert (number, nothing) == (["-0.5"], [""])


def test_a_progress_bar_neither_obeys_nor_reads_markup() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    with progress_bar("[red]a\x1b[2Jb", 2, console=console) as advance:
        advance(what="[bold]c\x1b]0;title\x07")
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert r"[red]a\x1b[2Jb" in shown or r"[bold]c\x1b]0;title\x07" in shown
    assert "\x1b[2J" not in shown
    assert "\x07" not in shown


DOORS = ("print", "typer.echo", "traceback.print_exc", "sys.stdout.write", "sys.stderr.write")
OWN = ("typer.echo(context.get_help())", "typer.echo(f'dubito {__version__}')")


def test_everything_that_is_said_goes_through_one_door() -> None:
    """But help, which is our own text."""
    others = []
    for path in Path(dubito.__file__).parent.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        said = [call for call in calls if ast.unparse(call.func) in DOORS and path.name != "harmless.py"]
        others += [f"{path}:{call.lineno}" for call in said if ast.unparse(call) not in OWN]
    assert not others, f"use dubito.harmless.say in {others}"


def test_reports_name_files_that_are_no_utf8() -> None:
    name = os.fsdecode(b"folder/caf\xe9\x1b[2J.png")
    prediction = decompose(torch.full((2, 1, 2), 0.5))
    some = Evaluated("own/test", torch.zeros(1, 1, 1, 1, dtype=torch.uint8), None, prediction, files=(name,))
    assert some.name_of(0) == r"folder/caf\udce9\x1b[2J.png"
