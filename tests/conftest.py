"""What all tests share: one thread, fixed random numbers, and one training.

Fixtures for any folder of tests:

`digits_run`      session  folder of a Bayesian LeNet-5 trained for five epochs on the embedded digits
`frequentist_run` session  folder of its frequentist twin
`own_run`         test     a copy of `digits_run` that the test may write to
`copy_of`         test     a function that copies any run folder: copy_of(frequentist_run)

The two session folders are trained once for all worker processes. They are for reading only: changing one is an error.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: a thread for each worker process

import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock

EPOCHS = 5


def pytest_configure(config: pytest.Config) -> None:
    config.option.randomly_reset_seed = False  # pytest-randomly orders the tests; `same_start` seeds them


def seed_everything() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    """A fixture of many tests is the same whichever of them comes first."""
    if fixturedef.scope != "function":
        seed_everything()


@pytest.fixture(autouse=True)
def same_start() -> Iterator[None]:
    """Every test begins with the same random numbers and the same torch, whatever ran before it."""
    seed_everything()
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    yield
    torch.set_flush_denormal(False)
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(True)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a small Bayesian LeNet-5, to read only."""
    yield from trained(tmp_path_factory, "vi")


@pytest.fixture(scope="session")
def frequentist_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of its frequentist twin, to read only."""
    yield from trained(tmp_path_factory, "frequentist")


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path], Path]:
    """Copies a run folder into the folder of this test."""

    def copy(run: Path) -> Path:
        return Path(shutil.copytree(run, tmp_path / "own" / run.name))

    return copy


@pytest.fixture
def own_run(digits_run: Path, copy_of: Callable[[Path], Path]) -> Path:
    """A copy of the Bayesian run, to change."""
    return copy_of(digits_run)


def trained(folders: pytest.TempPathFactory, inference: str) -> Iterator[Path]:
    """One training for all worker processes, each of which has its own base folder in a common one."""
    base = folders.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    run = shared / f"digits-{inference}"
    with FileLock(shared / f"{run.name}.lock"):
        if not run.exists():
            unfinished = shared / f"{run.name}-unfinished"
            train(unfinished, inference)
            unfinished.rename(run)
    before = contents(run)
    yield run
    assert contents(run) == before, f"A test changed {run}: let it use own_run or copy_of instead."


def train(folder: Path, inference: str) -> None:
    """Train in a process of its own, which leaves torch and this process as they are."""
    command = [sys.executable, "-m", "dubito", "train", "--model", "lenet5", "--data", "digits"]
    command += ["--inference", inference, "--epochs", str(EPOCHS), "--validation-samples", "1", "--out", str(folder)]
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("DUBITO_")}
    surroundings["DUBITO_CACHE"] = str(folder.parent / "cache")
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
