from __future__ import annotations

from pathlib import Path

import pytest
from evaluation_runs import make_run

from dubito.training import Run


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evaluated")


@pytest.fixture(scope="session")
def bayesian(folder: Path) -> Run:
    """A Bayesian network after one epoch, for tests that only read it."""
    return make_run(folder / "bayesian", trained=True)


@pytest.fixture(scope="session")
def frequentist(folder: Path) -> Run:
    """Its frequentist twin, with the same validation part."""
    return make_run(folder / "frequentist", trained=True, inference="frequentist")
