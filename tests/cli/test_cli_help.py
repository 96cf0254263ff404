from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import dubito as package
from dubito.runs.config import TrainingConfig
from dubito.scores import SCORES

COMMANDS = [
    *(
        "",
        "train",
        "predict",
        "evaluate",
        "decide",
        "compare",
        "ensemble",
        "report",
        "prune",
        "export",
        "serve",
        "reproduce",
        "bench",
    ),
    *("data", "data list", "data get", "models"),
]
HEAVY = ("torch", "pytorch_lightning", "pooch", "numpy", "sklearn", "pyarrow")
PROGRAM = """
import contextlib, io, json, sys
from dubito.cli import run
printed = {}
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        assert run([*command.split(), "--help"]) == 0
    printed[command] = text.getvalue()
print(json.dumps({"printed": printed, "modules": list(sys.modules)}))
"""


def test_help_has_an_example_and_imports_nothing_heavy() -> None:
    arguments = [sys.executable, "-c", PROGRAM, json.dumps(COMMANDS)]
    done = subprocess.run(arguments, capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not set(HEAVY) & set(found["modules"])
    for command, text in found["printed"].items():
        assert "Example" in text, command
        assert f"dubito {command}".strip() in text.split("Example", 1)[1]
        assert "--debug" in text
        assert not re.search(r"<\w", text), f"{command} shows a type of Python"
        assert all(len(line.rstrip()) <= 80 for line in text.splitlines()), command


def test_every_setting_is_a_flag_with_its_default(dubito, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = dubito("train", "--help").out.splitlines()
    for field in fields(TrainingConfig):
        flag = "--" + field.name.replace("_", "-")
        (line,) = [line for line in lines if line.split()[1:2] == [flag]]
        assert field.metadata["help"] in line
        assert "[default: " in line
    (line,) = [line for line in lines if "--learning-rate " in line]
    assert "[default: 0.002; alexnet: 0.001; vgg16: 0.0002; paper: 0.001; finetune: 0.03; natural: 0.2]" in line


def test_bare_commands_print_their_help(dubito) -> None:
    for command in ([], ["data"]):
        result = dubito(*command)
        assert result.code == 0
        assert "Usage: dubito" in result.out
        assert "Example" in result.out


def test_scores_to_choose_from_are_those_there_are(dubito, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert f"Score to rank predictions by: {', '.join(SCORES)}." in dubito("decide", "--help").out


@pytest.mark.parametrize(
    "command",
    [
        "train --data digits --out",
        "zoo lenet5-mnist --out",
        "ensemble a b --out",
        "prune run --curve --out",
        "evaluate run --folder",
        "reproduce table1 --results",
    ],
)
def test_a_folder_cannot_be_printed(dubito, command: str) -> None:
    *arguments, option = command.split()
    result = dubito(*arguments, option, "-")
    assert (result.code, result.out) == (1, "")
    assert result.err == f"{option} is -, but several files are written, not one to print: name a folder.\n"
    assert not Path("-").exists()


@pytest.mark.parametrize("command", ["evaluate run", "compare a b", "bench"])
def test_metrics_are_written_as_json_alone(dubito, command: str) -> None:
    result = dubito(*command.split(), "--out", "metrics.csv")
    assert (result.code, result.out) == (1, "")
    assert result.err == "--out is metrics.csv, but must end in .json, or be - to print it.\n"


def test_version(dubito) -> None:
    assert dubito("--version").out == f"dubito {package.__version__}\n"
