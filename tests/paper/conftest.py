from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from dubito import cli

ONLY = "model=lenet5,data=mnist,data=cifar10"


@dataclass(frozen=True)
class Reproduced:
    """A reproduction at toy size."""

    runs: Path
    results: Path

    @property
    def arguments(self) -> list[str]:
        folders = ["--runs", str(self.runs), "--results", str(self.results)]
        return ["--budget", "smoke", "--jobs", "1", "--threads", "1", *folders]


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reproduced]:
    """A few cells of every experiment that LeNet-5 is part of, on embedded digits; for tests that only read them."""
    folder = tmp_path_factory.mktemp("smoke")
    made = Reproduced(folder / "runs", folder / "results")
    assert cli.run(["reproduce", "all", "--only", ONLY, *made.arguments]) == 0
    torch.set_flush_denormal(False)
    yield made
    shutil.rmtree(folder)
