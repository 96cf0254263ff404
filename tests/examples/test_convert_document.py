"""docs/convert.md is true: its code runs in order, its output is as printed, its tables are those of the results."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "convert.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", DOCUMENT, flags=re.DOTALL)


def test_code_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    names: dict[str, object] = {}
    for language, code in BLOCKS:
        if language == "python":
            exec(compile(code, "docs/convert.md", "exec"), names)
    (printed,) = [code for language, code in BLOCKS if language == "text"]
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("name", ["recipe", "recipe-augmented", "recipe-alexnet"])
def test_recipe_tables_are_those_of_the_results(name: str) -> None:
    result = json.loads((ROOT / "results" / f"{name}.json").read_text())
    expected = [
        f"| {network} | {100 * row['accuracy']:.2f} % | {row['nll']:.3f} | {row['ece']:.3f} | "
        f"{result['seconds'][network]:.0f} |"
        for network, row in result["test"].items()
    ]
    table = DOCUMENT.split(f"| `results/{name}.json` |")[1].split("\n\n")[0].splitlines()[2:]
    assert table == expected


@pytest.mark.parametrize("name", ["recipe", "recipe-augmented"])
def test_what_is_said_of_the_recipe_holds(name: str) -> None:
    frequentist, *others = json.loads((ROOT / "results" / f"{name}.json").read_text())["test"].values()
    for other in others:
        assert other["accuracy"] > frequentist["accuracy"] - 0.005
        assert other["nll"] < frequentist["nll"]
        assert (other["ece"] < frequentist["ece"]) == (name == "recipe")  # as the text says


def test_named_command_is_the_one_that_made_the_results() -> None:
    assert json.loads((ROOT / "results" / "recipe.json").read_text())["command"] in DOCUMENT


def test_pruning_table_is_that_of_the_results() -> None:
    accuracy = {}
    for temperature in ("1", "0.05"):
        with (ROOT / "results" / "pruning" / f"temperature-{temperature}.csv").open(newline="") as file:
            accuracy[temperature] = {float(row["sparsity"]): float(row["accuracy"]) for row in csv.DictReader(file)}
    rows = re.findall(r"^\| (\d+) % \| ([\d.]+) % \| ([\d.]+) % \|$", DOCUMENT, flags=re.MULTILINE)
    assert len(rows) == 6
    for sparsity, exact, cold in rows:
        at = int(sparsity) / 100
        assert (exact, cold) == (f"{100 * accuracy['1'][at]:.2f}", f"{100 * accuracy['0.05'][at]:.2f}")


def test_every_picture_is_there() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", DOCUMENT)
    assert len(pictures) == 3
    assert all((ROOT / "docs" / picture).exists() for picture in pictures)
