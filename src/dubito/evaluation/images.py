"""Which images are evaluated: test images, those of other data sets, and those that a training held out.

The test split of a data set is read here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dubito.data import DATASETS, Dataset, open_dataset, with_channels
from dubito.errors import DataError, RunError
from dubito.runs.run import Run

__all__ = ["found_at", "held_out_images", "images_again", "own_test_images", "place_of", "test_images"]


def test_images(data: str, run: Run) -> Dataset:
    """The test split of a data set, in the size and with the channels that the run's network takes."""
    part = open_dataset(data, size=run.data.size).test()
    if not len(part):
        raise DataError(f"{data} has no test images.")
    images = with_channels(part.images, run.data.channels)
    return Dataset(images, part.labels, part.class_names, data, part.mean, part.std)


def own_test_images(run: Run, data: str | None) -> Dataset:
    """The test images of a run's own data set, or of another one with the same classes."""
    if data is None:
        _require_data(run)
        data = run.config.data
    classes, known = open_dataset(data).class_names, run.data.class_names
    if classes != known:
        what = (
            f"{len(classes)} classes, but the network of {run.path} tells {len(known)} apart"
            if len(classes) != len(known)
            else f"the classes {_listed(classes)}, but the network of {run.path} tells {_listed(known)} apart"
        )
        raise DataError(f"{data} has {what}; as other images it can be given as --ood {data}.")
    return test_images(data, run)


def _require_data(run: Run) -> None:
    """An error that says whose data it is and what can be done, if it is not there."""
    try:
        run.open_data()
    except RunError as error:
        raise RunError(f"{str(error).rstrip('.')}; if it has moved, say where it is with --data.") from None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def held_out_images(runs: Sequence[Run], moved: str | None = None) -> Dataset:
    """The images that every run held out from its training, in the order of the data set.

    `moved` is where the data may be found if it is not in its place any more.
    """
    whole = runs[0].open_data(moved).train()
    shared = torch.ones(len(whole), dtype=torch.bool)
    for run in runs:
        mine = torch.zeros_like(shared)
        mine[run.split(whole)[1]] = True
        shared &= mine
    images = whole.images[shared]
    return Dataset(images, whole.labels[shared], whole.class_names, whole.name, whole.mean, whole.std)


def images_again(name: str, run: Run, places: Mapping[str, str]) -> Tensor:
    """The images of a stored part, read again; its name is that of the data set and /test.

    `places` are the full paths of data sets that were given by a path, which may be relative to another folder.
    """
    return test_images(found_at(name.removesuffix("/test"), places), run).images


def found_at(data: str, places: Mapping[str, str]) -> str:
    """Where data of this name is: in its place, or, if that is gone, where the name leads from the current folder."""
    return places[data] if data in places and Path(places[data]).exists() else data


def place_of(data: str) -> str:
    """A name that is the same from every folder: that of a known data set, else a full path."""
    return data if data in DATASETS else str(Path(data).expanduser().resolve())
