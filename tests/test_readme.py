"""The README is true: its code runs, its commands exist, its figures are those of the files that commands wrote."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dubito.cli import app
from dubito.training import configure
from dubito.training.run import Run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
blocks = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_example_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [code for language, code in blocks if language == "python"]
    exec(compile(example, "README.md", "exec"), {})
    assert len(re.findall(r"tensor\(", capsys.readouterr().out)) == 4


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


def test_the_results_are_those_of_the_files_that_training_wrote() -> None:
    rows = re.findall(r"^\| `results/(\S+)` .*\| *([\d.]+) % *\| *([\d.]+) *\| *([\d.]+) *\|$", README, re.MULTILINE)
    assert len(rows) >= 3
    for name, accuracy, nll, ece in rows:
        with (ROOT / "results" / name / "metrics.csv").open(newline="") as file:
            best = min(csv.DictReader(file), key=lambda row: float(row["val_nll"]))
        measured = (100 * float(best["val_accuracy"]), float(best["val_nll"]), float(best["val_ece"]))
        assert (accuracy, nll, ece) == (f"{measured[0]:.2f}", f"{measured[1]:.3f}", f"{measured[2]:.3f}"), name


def test_the_costs_are_those_that_the_benchmark_measured() -> None:
    """A row of the README's table: a system, its step, ten draws, one image by 100 draws, peak memory."""
    stage = json.loads((ROOT / "results" / "benchmark.json").read_text(encoding="utf-8"))["stages"]["alexnet"]
    twin = stage["memory"]["frequentist twin"]
    rows = re.findall(r"^\| `([^`]+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", README, re.MULTILINE)
    assert len(rows) >= 5
    for system, *written in rows:
        medians = [stage["ratios"][system][measure]["median"] for measure in ("step", "predict", "single")]
        decimals = (2, 2, 1, 2)
        measured = [*medians, stage["memory"][system] / twin]
        assert written == [f"{value:.{digits}f}" for value, digits in zip(measured, decimals, strict=True)], system


RUNS = sorted(file.parent for file in (ROOT / "results").glob("*/config.yaml"))


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_the_results_were_made_with_the_default_preset_as_it_is(folder: Path) -> None:
    config = Run.open(folder).config
    assert config == configure(model=config.model, data=config.data, epochs=config.epochs)
