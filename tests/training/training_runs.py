"""Small trainings on the embedded digits, and how to compare their results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from dubito.training import Run

SMALL = {"data": "digits", "batch_size": 256, "epochs": 2, "validation_samples": 2}
OWN = {"batch_size": 16, "epochs": 1, "validation_samples": 1, "validation_fraction": 0.25}
quiet = Console(quiet=True)


def tensors(run: Path) -> dict[str, torch.Tensor]:
    return Run.open(run).read_checkpoint("last")[0]


def assert_identical(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert different == []


def own_images(path: Path, labels: list[int], size: int = 8) -> Path:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (len(labels), size, size), dtype=np.uint8)
    np.savez(path, x_train=images, y_train=np.array(labels), x_test=images, y_test=np.array(labels))
    return path
