"""docs/results/photographs.md is true: its tables are those of the results, and its commands have these flags."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from benchmarks.photographs import NETWORKS, with_tables
from typer.testing import CliRunner

from dubito.cli import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/results/photographs.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_results() -> None:
    results = json.loads((ROOT / "results/photographs.json").read_text(encoding="utf-8"))
    assert results["networks"]
    assert with_tables(PAGE, results) == PAGE
    results["networks"]["plain"]["test"]["accuracy"] = 0.123
    assert "| 12.3 (" in with_tables(PAGE, results)


def test_every_command_and_flag_of_the_page_exists() -> None:
    lines = [line for code in re.findall(r"```\n(.*?)```", PAGE, flags=re.DOTALL) for line in code.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("dubito ")]
    assert len(commands) >= 8
    for name, *words in commands:
        shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).output
        for flag in (word for word in words if word.startswith("--")):
            assert flag in shown, (name, flag)


def test_the_page_trains_as_the_benchmark_does() -> None:
    """Apart from what every training of the benchmark is given, and from where its files are."""
    for name in ("plain", "last", "all"):
        (line,) = [line for line in PAGE.splitlines() if line.endswith(f"--out runs/{name}")]
        words = {word for word in NETWORKS[name] if "{" not in word and word not in ("--bayesian", "all")}
        leave = {"--model", "examples.efficientnet_lite:lite0", "--no-novelty"} if name != "plain" else set()
        assert words - leave <= set(shlex.split(line)), name
