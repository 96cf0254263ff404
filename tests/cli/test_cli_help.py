from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import fields

import pytest

import dubito as package
from dubito.runs.config import TrainingConfig

COMMANDS = [
    "",
    "train",
    "predict",
    "evaluate",
    "compare",
    "report",
    "prune",
    "export",
    "reproduce",
    "bench",
    "data",
    "data list",
    "data get",
    "models",
]
HEAVY = "torch pytorch_lightning pooch numpy sklearn pyarrow"
PROGRAM = f"""
import sys
from dubito.cli import main
try:
    main()
except SystemExit as stop:
    loaded = [name for name in {HEAVY!r}.split() if name in sys.modules]
    sys.exit(f"imported {{loaded}}" if loaded else stop.code)
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_appears_within_a_second_and_has_an_example(command: str) -> None:
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        arguments = [sys.executable, "-c", PROGRAM, *command.split(), "--help"]
        done = subprocess.run(arguments, capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"})
        best = min(best, time.perf_counter() - began)
        if best < 1:
            break
    assert done.returncode == 0, done.stderr
    assert best < 1
    assert "Example" in done.stdout
    assert f"dubito {command}".strip() in done.stdout.split("Example", 1)[1]
    assert "--debug" in done.stdout
    assert all(len(line.rstrip()) <= 80 for line in done.stdout.splitlines())


def test_every_setting_is_a_flag_with_its_default(dubito, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = dubito("train", "--help").out.splitlines()
    for field in fields(TrainingConfig):
        flag = "--" + field.name.replace("_", "-")
        (line,) = [line for line in lines if line.split()[1:2] == [flag]]
        assert field.metadata["help"] in line
        assert "[default: " in line
    (line,) = [line for line in lines if "--learning-rate " in line]
    assert "[default: 0.002; alexnet: 0.001; vgg16: 0.0002; paper: 0.001]" in line


def test_bare_commands_print_their_help(dubito) -> None:
    for command in ([], ["data"]):
        result = dubito(*command)
        assert result.code == 0
        assert "Usage: dubito" in result.out
        assert "Example" in result.out


def test_version(dubito) -> None:
    assert dubito("--version").out == f"dubito {package.__version__}\n"
