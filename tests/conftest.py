"""What all tests share: one thread, fixed random numbers, and one training.

Fixtures for any folder of tests:

`digits_run`      session  folder of a Bayesian LeNet-5 trained for five epochs on the embedded digits
`frequentist_run` session  folder of its frequentist twin
`own_run`         test     a copy of `digits_run` that the test may write to
`copy_of`         test     a function that copies any run folder: copy_of(frequentist_run)
`made_once`       session  a function that makes any folder once for all worker processes: made_once("name", make)

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
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import HealthCheck, settings

EPOCHS = 5
MadeOnce = Callable[[str, Callable[[Path], object]], Path]

# A busy machine is no reason to fail, and the same examples are tried in every run.
settings.register_profile("suite", deadline=None, derandomize=True, database=None, suppress_health_check=HealthCheck)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    config.option.randomly_reset_seed = False  # pytest-randomly orders the tests; `same_start` seeds them


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for the browser has its marker."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    seed = getattr(terminalreporter.config.option, "randomly_seed", None)
    if exitstatus == pytest.ExitCode.TESTS_FAILED and seed is not None:
        terminalreporter.write_line(f"The same order again: --randomly-seed={seed}")


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
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """Makes a folder in the first worker process that asks for it; the others wait, and get the same folder."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # a worker's own is in that of all

    def make_once(name: str, make: Callable[[Path], object]) -> Path:
        made, unfinished = shared / name, shared / f"{name}-unfinished"
        with FileLock(shared / f"{name}.lock"):
            if not made.exists():
                shutil.rmtree(unfinished, ignore_errors=True)  # of a process that failed
                unfinished.mkdir()
                make(unfinished)
                unfinished.rename(made)
        return made

    return make_once


@pytest.fixture(scope="session")
def digits_run(made_once: MadeOnce) -> Iterator[Path]:
    """The folder of a small Bayesian LeNet-5, to read only."""
    with unchanged(made_once("digits-vi", lambda folder: train(folder / "run", "vi")) / "run") as run:
        yield run


@pytest.fixture(scope="session")
def frequentist_run(made_once: MadeOnce) -> Iterator[Path]:
    """The folder of its frequentist twin, to read only."""
    with unchanged(made_once("digits-frequentist", lambda folder: train(folder / "run", "frequentist")) / "run") as run:
        yield run


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path], Path]:
    """Copies a run folder into the folder of this test."""

    def copy(run: Path) -> Path:
        return Path(shutil.copytree(run, tmp_path / "own" / run.parent.name))

    return copy


@pytest.fixture
def own_run(digits_run: Path, copy_of: Callable[[Path], Path]) -> Path:
    """A copy of the Bayesian run, to change."""
    return copy_of(digits_run)


@contextmanager
def unchanged(folder: Path) -> Iterator[Path]:
    """A folder that has to be as it was at the end."""
    before = contents(folder)
    yield folder
    assert contents(folder) == before, f"A test changed {folder}: let it use own_run or copy_of instead."


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
