"""The suite itself: tests begin alike in any order, and share one training."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import dubito


@pytest.mark.parametrize("turn", range(2))
def test_every_test_begins_with_the_same_random_numbers(turn: int) -> None:
    drawn = (random.random(), np.random.rand(), torch.rand(()).item())
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    assert drawn == (random.random(), np.random.rand(), torch.rand(()).item())


def test_the_shared_networks_have_learned_the_digits(digits_run: Path, frequentist_run: Path) -> None:
    for run in (digits_run, frequentist_run):
        model = dubito.load(run)
        test = dubito.data.load("digits", "test")
        labels = dubito.Predictor(model, samples=4)(dubito.data.normalize(test.images, test.mean, test.std)).label
        assert (labels == test.labels).float().mean() > 0.8


def test_a_folder_is_made_once_and_not_left_half_made(made_once) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ValueError("broken off")

    with pytest.raises(ValueError, match="broken off"):
        made_once("made", fail)
    made = made_once("made", lambda folder: (folder / "whole").touch())
    assert made_once("made", fail) == made
    assert [path.name for path in made.iterdir()] == ["whole"]


def test_a_copy_can_be_changed(digits_run: Path, own_run: Path) -> None:
    (own_run / "config.yaml").write_text("changed")
    assert (digits_run / "config.yaml").read_text() != "changed"


def test_no_two_files_of_tests_have_one_name() -> None:
    """Pytest would collect only one of them, and report the other as an error."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
