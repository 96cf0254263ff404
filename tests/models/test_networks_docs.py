"""docs/reference/networks.md is true: its function is a network, and its commands run on a folder of photographs."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import dubito
from dubito import cli

TEXT = (Path(__file__).parents[2] / "docs/reference/networks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.slow
def test_the_commands_run_on_a_folder_of_photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog"):
        Path("photos", name).mkdir(parents=True)
        for number in range(8):
            pixels = torch.randint(256, (30, 40, 3), dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(f"photos/{name}/{number}.png")
    (function,) = [code for language, code in BLOCKS if language == "python"]
    Path("networks.py").write_text(function)
    weights = dubito.models.build("resnet18", 1000, inference="frequentist", image_size=32).state_dict()
    save_file(weights, "resnet18.safetensors")
    short = ["--epochs", "1", "--batch-size", "8", "--no-novelty"]
    plain = ["--data", "photos/", "--model", "resnet18", "--inference", "frequentist", "--out", "runs/plain"]
    assert cli.run(["train", *plain, *short]) == 0
    lines = [line for language, code in BLOCKS if not language for line in code.splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("dubito train")]
    assert len(commands) == 3
    for words in commands:
        assert cli.run([*words, *short]) == 0, words
    sys.modules.pop("networks", None)
