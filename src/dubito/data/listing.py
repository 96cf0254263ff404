"""Which image files there are, of which class and split: class folders, a table of paths, or a plain folder."""

from __future__ import annotations

import csv
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from dubito.data.images import is_image_file, is_other_file
from dubito.data.registry import Split
from dubito.data.splits import split_validation
from dubito.errors import DataError
from dubito.foreign import read_lines, reason_of

TEST_FRACTION = 0.2
"""The share of images that become the test split of data that has none of its own."""

OTHERS_SHOWN = 5
"""Kinds of files beside the images that are named."""

SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "validation": "validation",
    "val": "validation",
    "valid": "validation",
    "test": "test",
}
"""What folders and tables may call their splits."""

Files = tuple[list[Path], Tensor]
"""Paths in a fixed order, and their labels."""


class Listing(ABC):
    """The image files of a data set. Nothing is opened; whether a file can be read is not known here.

    A data set without splits of its own gets a test split: a fifth of the images, drawn by `seed` from each class.
    """

    class_names: tuple[str, ...]
    splits: tuple[Split, ...]
    """The splits that the data has of its own; none if it is to be split."""

    def __init__(self, place: str | os.PathLike[str], seed: int = 0) -> None:
        self.place = Path(place)
        self.seed = seed
        self._listed: dict[Split | None, Files] = {}

    @abstractmethod
    def _list(self, split: Split | None) -> Files:
        """The files of one of its own splits, or, None, all."""

    def files(self, split: Split | None) -> Files:
        """The files of a split in a fixed order, and their labels; None for all files of data without splits."""
        if split not in self._listed:
            self._listed[split] = self._list(split) if self.splits or split is None else self._shared(split)
        return self._listed[split]

    def share(self, split: Split) -> Tensor:
        """Which of all files are those of a split, for data without splits of its own."""
        train, test = split_validation(self.files(None)[1], TEST_FRACTION, self.seed)
        return train if split == "train" else test

    def _shared(self, split: Split) -> Files:
        paths, labels = self.files(None)
        chosen = self.share(split)
        return [paths[index] for index in chosen.tolist()], labels[chosen]

    def describe(self) -> str:
        """How the images are split, as a sentence."""
        if not self.splits:
            return (
                f"{self.place} has no test images: {TEST_FRACTION:.0%} of each class are set aside for "
                f"testing (seed {self.seed})."
            ).replace("%", " %")
        counts = [f"{len(self.files(split)[0]):,} {split}" for split in self.splits]
        return f"{self.place} is already split: {', '.join(counts[:-1])} and {counts[-1]} images."

    def require(self, split: Split | None) -> None:
        """Raise an error if the data has splits, but not this one."""
        if self.splits and split not in self.splits:
            raise DataError(f"{self.place} has no {split} images, only {' and '.join(self.splits)}.")


class ClassFolders(Listing):
    """A folder with a sub-folder per class, or with `train`, `validation` and `test` folders of that kind."""

    def __init__(self, folder: str | os.PathLike[str], seed: int = 0) -> None:
        super().__init__(folder, seed)
        self._roots = folder_splits(self.place)
        if self._roots and ("train" not in self._roots or len(self._roots) == 1):
            there = next(iter(self._roots))
            lacking = "test" if there == "train" else "train"
            raise DataError(
                f"{self.place} has a folder {there!r} with classes but no such folder {lacking!r}; add it, or give "
                f"{self.place / there} itself to have it split."
            )
        self.splits = tuple(self._roots)
        self.class_names = tuple(folder.name for folder in _class_folders(self._roots.get("train", self.place)))

    def _list(self, split: Split | None) -> Files:
        root = self.place if split is None else self._roots[split]
        paths: list[Path] = []
        labels: list[int] = []
        numbers = {name: number for number, name in enumerate(self.class_names)}
        for folder in _class_folders(root):
            if folder.name not in numbers:
                raise DataError(f"{folder} is a class that the training images do not have; remove or rename it.")
            files = sorted(path for path in folder.rglob("*") if is_image_file(path, folder))
            if not files and split in (None, "train"):
                raise DataError(f"{folder} holds no images; add some ({_SUFFIXES}) or remove the folder.")
            paths += files
            labels += [numbers[folder.name]] * len(files)
        if not paths:
            raise DataError(f"{root} holds no images; put some ({_SUFFIXES}) into a folder for each class.")
        return paths, torch.tensor(labels)

    def describe(self) -> str:
        """How the images are split, and which files are left out: a phone's own format would go unnoticed."""
        roots = self._roots.values() or [self.place]
        kinds: Counter[str] = Counter()
        for folder in (folder for root in roots for folder in _class_folders(root)):
            kinds.update(path.suffix.lower() or path.name for path in folder.rglob("*") if is_other_file(path, folder))
        splits = super().describe()
        if not kinds:
            return splits
        listed = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(OTHERS_SHOWN))
        more = ", ..." if len(kinds) > OTHERS_SHOWN else ""
        return f"{splits}\nFiles that are not images ({_SUFFIXES}) are left out: {listed}{more}."


class PathTable(Listing):
    """A CSV file with the columns `path` and `label`, and `split` if the images are split: train, validation, test.

    Paths are relative to the folder of the table.
    """

    def __init__(self, path: str | os.PathLike[str], seed: int = 0) -> None:
        super().__init__(path, seed)
        self._rows = labelled_paths(self.place)
        present = {row[2] for row in self._rows}
        self.splits = tuple(split for split in ("train", "validation", "test") if split in present)
        if self.splits and (self.splits[0] != "train" or len(self.splits) == 1):
            lacking = "train" if self.splits[0] != "train" else "test"
            raise DataError(f"{self.place} has no row with the split {lacking!r}; add some, or leave the column out.")
        first = self.splits[0] if self.splits else None
        self.class_names = tuple(sorted({label for _, label, split in self._rows if split == first}))

    def _list(self, split: Split | None) -> Files:
        numbers = {name: number for number, name in enumerate(self.class_names)}
        chosen = [(path, label) for path, label, own in self._rows if own == split]
        other = next((label for _, label in chosen if label not in numbers), None)
        if other is not None:
            raise DataError(f"{self.place} has the {split} class {other!r}, which the training images do not have.")
        return [path for path, _ in chosen], torch.tensor([numbers[label] for _, label in chosen])


PREDICTED = frozenset(("confidence", "aleatoric", "epistemic", "error"))
"""Columns of a table that `dubito predict` wrote, in which the label is no truth."""


def named_paths(place: Path) -> list[tuple[Path, str | None]]:
    """The paths of a table and their true classes; of a table of predictions, those in its column truth, if any."""
    return [(path, label) for path, label, _ in _rows(place)]


def labelled_paths(place: Path) -> list[tuple[Path, str, Split | None]]:
    """The lines of a table: path, label, and split if there is such a column."""
    return [(path, label, split) for path, label, split in _rows(place, labelled=True) if label is not None]


def _rows(place: Path, labelled: bool = False) -> list[tuple[Path, str | None, Split | None]]:
    rows: list[tuple[Path, str | None, Split | None]] = []
    try:
        table = csv.DictReader(read_lines(place, "utf-8-sig"))
        columns = table.fieldnames or []
        if not {"path", "label"} <= set(columns):  # which it has is not told: it may link to another file
            raise DataError(f"{place} must have the columns path and label, named in its first line.")
        predicted = PREDICTED.issubset(columns)
        if predicted and labelled:
            raise DataError(
                f"{place} was written by dubito predict, so its labels are predictions and no truth; give a table with "
                "the true labels, and without the other columns."
            )
        for number, row in enumerate(table, start=2):
            if predicted:
                rows.append((place.parent / (row["path"] or ""), row.get("truth") or None, None))
                continue
            rows.append(_labelled_path(place, row, number, "split" in columns))
    except DataError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{place} cannot be read as a table: {reason_of(error)}.") from None
    if not rows:
        raise DataError(f"{place} has no rows, but must name images: path,label.")
    return rows


def _labelled_path(
    place: Path, row: dict[str, str | None], number: int, has_split: bool
) -> tuple[Path, str, Split | None]:
    path, label = row["path"], row["label"]
    if not path or not label:
        raise DataError(f"Line {number} of {place} lacks a path or a label.")
    split = SPLIT_NAMES.get((row["split"] or "").strip().lower()) if has_split else None
    if has_split and split is None:
        raise DataError(
            f"Line {number} of {place} has the split {row['split']!r}, but it must be train, validation or test."
        )
    return place.parent / path, label, split


class PlainFolder(Listing):
    """All images of a folder and its sub-folders, whatever their class."""

    class_names = ("unlabelled",)
    splits = ("test",)

    @cached_property
    def _all(self) -> Files:
        paths = sorted(path for path in self.place.rglob("*") if is_image_file(path, self.place))
        if not paths:
            raise DataError(f"{self.place} holds no images; put some ({_SUFFIXES}) into it.")
        return paths, torch.zeros(len(paths), dtype=torch.int64)

    def _list(self, split: Split | None) -> Files:
        return self._all


def folder_splits(folder: Path) -> dict[Split, Path]:
    """The folders `train`, `validation` and `test` in a folder, where these hold folders themselves."""
    found = {split: folder / name for name, split in reversed(SPLIT_NAMES.items()) if _holds_folders(folder / name)}
    order: Sequence[Split] = ("train", "validation", "test")
    # Folders `train` and `valid` beside others may be classes, so without train or test there are no splits.
    return {split: found[split] for split in order if split in found} if {"train", "test"} & set(found) else {}


def _class_folders(root: Path) -> list[Path]:
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not folders:
        raise DataError(f"{root} has no sub-folders, but must have one for each class, with its images in it.")
    return folders


def _holds_folders(folder: Path) -> bool:
    return folder.is_dir() and any(path.is_dir() and not path.name.startswith(".") for path in folder.iterdir())


_SUFFIXES = "png, jpg, bmp, gif, webp, tiff"
