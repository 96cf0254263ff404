"""docs/how-to/onnx.md is true: its code runs, its commands and outputs exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dubito import cli
from dubito.exporting import OUTPUTS, What

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "how-to" / "onnx.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", DOCUMENT, flags=re.DOTALL)


def test_code_runs(digits_run: Path, digits_onnx: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mnist.onnx").write_bytes(digits_onnx.read_bytes())
    assert cli.run(["export", str(digits_run), "--what", "mean", "--format", "torch", "--out", "mnist.pt2"]) == 0
    capsys.readouterr()
    examples = [code for language, code in BLOCKS if language == "python"]
    assert len(examples) == 2
    for code in examples:
        exec(compile(code, "docs/how-to/onnx.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_every_command_and_flag_exists() -> None:
    (lines,) = [code for language, code in BLOCKS if not language]
    for line in lines.splitlines():
        words = shlex.split(line, comments=True)[1:]
        result = CliRunner().invoke(cli.app, [words[0], "--help"], env={"COLUMNS": "200"})
        assert all(word in result.output for word in words if word.startswith("--"))


def test_every_output_and_way_is_explained() -> None:
    assert all(f"`{name}`" in DOCUMENT for name in (*OUTPUTS, *(what.value for what in What)))
