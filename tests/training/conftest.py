from __future__ import annotations

from pathlib import Path

import pytest
from training_runs import SMALL, quiet

from dubito.training import configure, train


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(configure(**SMALL), folder, console=quiet)
    return folder
