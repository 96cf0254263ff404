"""Toy data for the budget ``smoke``: a few embedded digits in place of every data set of the paper."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dubito.data import Dataset, load
from dubito.files import write_atomically

TRAIN, TEST = 36, 20
SHAPES = {"mnist": (1, 10), "cifar10": (3, 10), "cifar100": (3, 100)}
"""Channels and classes of each data set, which its toy shares."""


def write_standins(folder: Path) -> None:
    """Write NAME.npz for every data set of the paper, unless it is there."""
    for name, (channels, classes) in SHAPES.items():
        path = folder / f"{name}.npz"
        if path.exists():
            continue
        train = _toy(load("digits", "train"), channels, classes, TRAIN)
        test = _toy(load("digits", "test"), channels, classes, TEST)
        content = io.BytesIO()
        np.savez(
            content,
            x_train=train[0],
            y_train=train[1],
            x_test=test[0],
            y_test=test[1],
            class_names=np.array([str(number) for number in range(classes)]),
        )
        write_atomically(path, content.getvalue())


def _toy(digits: Dataset, channels: int, classes: int, count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The first digits, in colours if there are channels for it; of a hundred classes, thirty occur."""
    images, labels = digits.images[:count].expand(-1, channels, -1, -1).clone(), digits.labels[:count]
    colour = torch.arange(count) % 3
    if channels == 3:
        images[torch.arange(count), colour] //= 2
    return images.numpy(), (labels + 10 * colour if classes == 100 else labels).numpy()
