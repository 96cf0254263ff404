"""Which images are evaluated: test images, those of other data sets, and those that a training held out.

The test split of a data set is read here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from dubito.data import DATASETS, Dataset, in_memory, open_dataset
from dubito.errors import DataError, DubitoError, RunError
from dubito.runs.description import DataDescription
from dubito.runs.run import Run

ALL = "/all"
"""Ends the name of a part that is all images of a data set, where others end in /test."""
COMPARED = 16
"""Images that are compared to tell whether data is a copy of other data."""


def test_images(data: str, run: Run, *, labelled: bool = True, whole: bool = False) -> Dataset:  # noqa: PT028
    """The test split of a data set, in the size and with the channels that the run's network takes.

    With labelled=False classes do not matter, and a folder without a test split is taken whole; with `whole`, any
    data without splits of its own.
    """
    part = run.data.open(data, labelled=labelled).test(whole=whole)
    if not len(part):
        raise DataError(f"{data} has no test images.")
    return part


def is_whole(data: str | None, run: Run) -> bool:
    """Whether all images of a data set are test images: it has no splits of its own, and the run was not trained on it.

    The run's own data may have moved, or been copied. It is known by its place; by its numbers of images if it is not
    in its place any more; else by the images.
    """
    if data is None or place_of(data) == place_of(run.config.data):
        return False
    source = run.data.open(data)
    if source.has_splits:
        return False
    other = source.train()
    if not any(member.may_be_own(other) for member in run.members):
        return True
    try:
        own = run.open_data().train()
    except DubitoError:
        return False
    few = torch.linspace(0, len(other) - 1, COMPARED).long()
    return not (
        torch.equal(own.labels, other.labels) and torch.equal(in_memory(own.images[few]), in_memory(other.images[few]))
    )


def own_test_images(run: Run, data: str | None, *, whole: bool = False) -> Dataset:
    """The test images of a run's own data set, or of another one with the same classes; `whole` as `test_images`."""
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
        raise DataError(f"{data} has {what}. For images of other things there is `dubito evaluate RUN --ood {data}`.")
    return test_images(data, run, whole=whole)


def _require_data(run: Run) -> None:
    """An error that says whose data it is and what can be done, if it is not there."""
    try:
        run.open_data()
    except RunError as error:
        raise RunError(f"{str(error).rstrip('.')}; if it has moved, say where it is with --data.") from None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def held_out_images(runs: Sequence[Run], moved: str | None = None) -> Dataset:
    """The images that every run held out from its training, in the order of the data set: its own, if it has some.

    Of an ensemble, those that every member held out. `moved` is where the data may be found if it is not in its place
    any more.
    """
    source = runs[0].open_data(moved)
    own = source.validation()
    if own is not None:
        return own
    whole = source.train()
    shared = torch.ones(len(whole), dtype=torch.bool)
    for member in (member for run in runs for member in run.members):
        mine = torch.zeros_like(shared)
        mine[member.split(whole)[1]] = True
        shared &= mine
    return whole.part(shared)


def images_again(name: str, run: Run, places: Mapping[str, str], *, labelled: bool = True) -> Dataset:
    """The images of a stored part, read again; its name is that of the data set and /test, or /all if it was whole.

    `places` are the full paths of data sets that were given by a path, which may be relative to another folder.
    """
    whole = name.endswith(ALL)
    data = found_at(name.removesuffix(ALL if whole else "/test"), places)
    return test_images(data, run, labelled=labelled, whole=whole)


def found_at(data: str, places: Mapping[str, str]) -> str:
    """Where data of this name is: in its place, or, if that is gone, where the name leads from the current folder."""
    return places[data] if data in places and Path(places[data]).exists() else data


def place_of(data: str) -> str:
    """A name that is the same from every folder: that of a known data set, else a full path."""
    return data if data in DATASETS else str(Path(data).expanduser().resolve())


def shown(inputs: Sequence[Tensor], data: DataDescription | None) -> Tensor:
    """A network's inputs as bytes (N, C, S, S) to look at; none if they are no images of 1 or 3 channels.

    `data` tells how they were normalised. Without it their whole range goes from black to white, unless it is [0, 1].

    >>> shown([torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1, 1)], None).flatten(), len(shown([torch.zeros(5, 4)], None))
    (tensor([  0, 128, 255], dtype=torch.uint8), 0)
    """
    shapes = {batch.shape[1:] for batch in inputs}
    if len(shapes) != 1 or len(shape := shapes.pop()) != 3 or shape[0] not in (1, 3):
        return torch.zeros(0, dtype=torch.uint8)
    if data is not None and data.channels == shape[0]:
        scale, shift = (torch.tensor(values).view(-1, 1, 1) for values in (data.std, data.mean))
    else:
        low, high = min(float(batch.min()) for batch in inputs), max(float(batch.max()) for batch in inputs)
        low, width = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high - low or 1.0)
        scale, shift = (torch.tensor(value).view(1, 1, 1) for value in (1 / width, -low / width))
    side = max(shape[1:])
    around = (0, side - shape[2], 0, side - shape[1])
    parts = [(batch.detach().cpu().float() * scale + shift).mul(255).round().clamp(0, 255).byte() for batch in inputs]
    return torch.cat([pad(part, around) for part in parts])
