"""The README is true: its code runs, its commands exist, its figures are those of the files that commands wrote."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
from benchmarks.peers.document import with_cost_table
from typer.testing import CliRunner

from dubito.cli import app
from dubito.paper.cells import TITLES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
blocks = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_example_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [code for language, code in blocks if language == "python"]
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert len(re.findall(r"tensor\(", printed)) == 4
    assert float(printed.split("%")[0]) > 80  # it learns: a tenth would be chance


def test_every_command_and_flag_in_the_readme_exists() -> None:
    lines = [line for language, code in blocks if not language for line in code.splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("dubito ")]
    assert len(commands) >= 5
    for words in commands:
        name = words[:2] if words[0] == "data" else words[:1]
        result = CliRunner().invoke(app, [*name, "--help"], env={"COLUMNS": "200"})
        assert result.exit_code == 0, words
        for flag in (word for word in words if word.startswith("--")):
            assert flag in result.output, (words, flag)


def test_every_file_that_the_readme_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_the_results_are_those_of_the_reproduction() -> None:
    """A row: network, data, then accuracy, NLL and ECE of the Bayesian network and of its twin, and what is published.

    Every pair of twins that was run has one.
    """
    with (ROOT / "results/reproduction/cpu/table1.csv").open(newline="", encoding="utf-8") as file:
        measured = {(row["model"], row["data"], row["inference"]): row for row in csv.DictReader(file)}
    expected = []
    for (model, data, inference), row in measured.items():
        twin = measured[model, data, "frequentist"]
        if inference != "vi" or not row["measured_nll"] or not twin["measured_nll"]:
            continue
        cells = [TITLES[model], TITLES[data]]
        for name, digits in (("accuracy", 2), ("nll", 3), ("ece", 3)):
            cells += [f"{float(part[f'measured_{name}']):.{digits}f}" for part in (row, twin)]
        expected.append([*cells, row["published_accuracy"].removesuffix(".0"), row["measured_epochs"]])
    lines = [line for line in README.splitlines() if re.match(r"\| (LeNet-5|AlexNet|VGG16) \|", line)]
    assert sorted([cell.strip() for cell in line.strip("|").split("|")] for line in lines) == sorted(expected)


def test_the_costs_are_those_that_the_benchmark_measured() -> None:
    results = json.loads((ROOT / "results" / "benchmark.json").read_text(encoding="utf-8"))
    assert with_cost_table(README, results) == README
