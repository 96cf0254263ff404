"""The README is true: code and commands work. And the figures of the page of results are those measured."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from benchmarks.peers.document import OVERVIEW, with_cost_table

from dubito.paper.cells import TITLES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = (ROOT / OVERVIEW).read_text(encoding="utf-8")
blocks = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_example_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [code for language, code in blocks if language == "python"]
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert re.search(r"right; most in doubt: image \d+$", printed.strip())
    assert float(printed.split("%")[0]) > 80  # it learns: a tenth would be chance


def test_the_two_commands_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    promised = re.findall(r"^make (\w+)", README, flags=re.MULTILINE)
    assert promised == ["demo", "test"]
    assert all(re.search(rf"^{name}:", makefile, flags=re.MULTILINE) for name in [*promised, "docs"])


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
    lines = [line for line in RESULTS.splitlines() if re.match(r"\| (LeNet-5|AlexNet|VGG16) \|", line)]
    assert sorted([cell.strip() for cell in line.strip("|").split("|")] for line in lines) == sorted(expected)


def test_the_costs_are_those_that_the_benchmark_measured() -> None:
    results = json.loads((ROOT / "results" / "benchmark.json").read_text(encoding="utf-8"))
    assert with_cost_table(RESULTS, results) == RESULTS
