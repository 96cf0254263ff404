"""The user's own images: files that a listing names, or an .npz of arrays."""

from __future__ import annotations

import os
import statistics
import warnings
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dubito.class_names import check_class_count
from dubito.data.archive import Arrays, require_unpacked
from dubito.data.fitting import Fit
from dubito.data.images import FileFacts, inspect_image, resize_all
from dubito.data.listing import TEST_FRACTION, Listing
from dubito.data.reading import WORKERS, ImageFiles, Images, read_ahead, with_channels
from dubito.data.registry import Split
from dubito.data.splits import split_validation
from dubito.errors import DataError, DubitoWarning
from dubito.harmless import printable
from dubito.progress import progress_bar

LARGEST_NATURAL_SIZE, STEP = 224, 32
SMALL_SIZE = 64
"""Images of up to this many pixels a side are small: they are kept in memory, if all together are no more than ..."""
MEMORY = 500_000_000
"""... this many bytes."""
SHOWN = 100
"""Unreadable files that are listed by name."""


def natural_size(sides: Iterable[int]) -> int:
    """The size of images whose shorter sides have these pixels: 224, or less where most are smaller.

    >>> natural_size([300, 240, 600]), natural_size([28, 28, 28]), natural_size([100, 90, 3000])
    (224, 32, 96)
    """
    typical = statistics.median_low(sides)
    return min(max(STEP * round(typical / STEP), STEP), LARGEST_NATURAL_SIZE)


class ListedFiles:
    """Image files of a listing: each is looked at before it is read, and those that cannot be read are left out.

    Data without splits of its own is looked at as a whole, so that all such files are listed at once. The files of
    splits that the data has are not opened before they are read. Whether images are gray or coloured, and their size,
    are decided by the training images alone.
    """

    def __init__(self, listing: Listing, *, strict: bool = False, workers: int = WORKERS) -> None:
        self.listing = listing
        self.strict = strict
        self.workers = workers
        self.class_names = listing.class_names
        self._facts: dict[Split | None, list[FileFacts | DataError]] = {}
        self._told: set[Split | None] = set()
        self._readable: dict[Split | None, tuple[list[str], Tensor, list[FileFacts]]] = {}

    @property
    def has_validation(self) -> bool:
        """Whether the data has validation images of its own."""
        return "validation" in self.listing.splits

    @property
    def has_splits(self) -> bool:
        """Whether the data has splits of its own."""
        return bool(self.listing.splits)

    @cached_property
    def channels(self) -> int:
        """1 if every training image is gray by its format, else 3."""
        return 1 if all(facts.gray for facts in self._look("train")[2]) else 3

    @cached_property
    def natural_size(self) -> int:
        """The size that suits the training images."""
        return natural_size(min(facts.width, facts.height) for facts in self._look("train")[2])

    def read(self, split: Split | None, size: int, fit: Fit, channels: int) -> tuple[Images, Tensor]:
        """Images (N, C, size, size) and labels (N,) of a split; small images are in memory, others on disk."""
        paths, labels, _ = self._look(split)
        files = ImageFiles(paths, channels, size, fit=fit, workers=self.workers)
        small = size <= SMALL_SIZE and files.shape.numel() <= MEMORY
        return (files.read() if small else files), labels

    def files(self, split: Split | None) -> tuple[str, ...]:
        """The readable files of a split, in the order of its images."""
        return tuple(self._look(split)[0])

    def _look(self, split: Split | None) -> tuple[list[str], Tensor, list[FileFacts]]:
        """The readable files of a split, their labels, and what they say of themselves."""
        if split not in self._readable:
            self.listing.require(split)
            paths, labels = self.listing.files(split)
            found = self._inspected(split)
            good = [number for number, facts in enumerate(found) if isinstance(facts, FileFacts)]
            readable = [facts for facts in found if isinstance(facts, FileFacts)]
            if not good:
                what = self._unreadable(split, len(paths), len(paths))
                raise DataError(f"{what}, which is all of them: {printable(str(found[0]))}")
            self._tell(split if self.has_splits else None)
            self._readable[split] = [os.fspath(paths[number]) for number in good], labels[good], readable
        return self._readable[split]

    def _inspected(self, split: Split | None) -> list[FileFacts | DataError]:
        """The facts of the files of a split, or why they cannot be read."""
        part = split if self.has_splits else None
        if part not in self._facts:
            self._facts[part] = self._inspect(part)
        if part == split:
            return self._facts[part]
        assert split is not None
        return [self._facts[part][number] for number in self.listing.share(split).tolist()]

    def _inspect(self, part: Split | None) -> list[FileFacts | DataError]:
        paths, _ = self.listing.files(part)
        title = f"Looking at the {part} images" if part else "Looking at the images"
        found = []
        with progress_bar(title, len(paths), shown=len(paths) > 1000) as advance:
            for facts in read_ahead(_facts_or_error, paths, max(self.workers, os.cpu_count() or 1)):
                found.append(facts)
                advance()
        return found

    def _tell(self, part: Split | None) -> None:
        """Warn once about all files that cannot be read, a line each, or refuse them."""
        errors = [printable(str(facts)) for facts in self._facts[part] if isinstance(facts, DataError)]
        if not errors or part in self._told:
            return
        what = self._unreadable(part, len(errors), len(self._facts[part]))
        more = [f"... and {len(errors) - SHOWN:,} more"] if len(errors) > SHOWN else []
        names = "\n".join(f"  {line}" for line in [*errors[:SHOWN], *more])
        if self.strict:
            raise DataError(f"{what}, which --strict refuses: {' '.join([*errors[:SHOWN], *more])}")
        self._told.add(part)
        warnings.warn(f"{what} and are left out:\n{names}", DubitoWarning, stacklevel=5)

    def _unreadable(self, part: Split | None, count: int, total: int) -> str:
        kind = f"{part} images" if part else "images"
        return f"{count:,} of the {total:,} {kind} of {self.listing.place} cannot be read"


def _facts_or_error(path: Path) -> FileFacts | DataError:
    try:
        return inspect_image(path)
    except DataError as error:
        return error


class NumpyArchive:
    """An .npz with `x_train`, `y_train`, `x_test`, `y_test`, or `images` and `labels`; optionally `class_names`.

    Images are (N, H, W), (N, H, W, C) or (N, C, H, W) with one or three channels, uint8 or floats in [0, 1]. Arrays are
    read when their split is asked for, after their headers have been checked. Without test arrays, a fifth of the
    images, drawn by `seed` from each class, is the test split.
    """

    has_validation = False

    def __init__(self, path: str | os.PathLike[str], seed: int = 0) -> None:
        self.path = Path(path)
        self.seed = seed
        self._arrays = Arrays(path)
        names = self._arrays.names
        if {"x_train", "y_train", "x_test", "y_test"} <= names:
            self._keys: dict[Split, tuple[str, str]] = {"train": ("x_train", "y_train"), "test": ("x_test", "y_test")}
        elif {"images", "labels"} <= names:
            self._keys = {"train": ("images", "labels"), "test": ("images", "labels")}
        else:
            raise DataError(
                f"{self.path} holds the arrays {', '.join(sorted(names)) or 'none'}, but must hold x_train, y_train, "
                "x_test and y_test, or images and labels."
            )
        self.has_splits = self._keys["train"] != self._keys["test"]
        self._has_names = "class_names" in names

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The names in the file, else the numbers of the classes that occur in the training labels."""
        if self._has_names:
            return _texts(self._arrays.read("class_names"), self._arrays.where("class_names"))
        key = self._keys["train"][1]
        unique = np.unique(self._labels(key))  # sorted
        check_class_count(len(unique))
        present = unique.tolist()
        absent = next((number for number, label in enumerate(present) if number != label), None)
        if absent is not None:
            raise DataError(
                f"{self.path} has labels up to {present[-1]} in {key}, but none is {absent}; number the classes from 0 "
                "on without gaps, or add class_names."
            )
        return tuple(str(label) for label in present)

    @cached_property
    def channels(self) -> int:
        """1 or 3, by the shape of the training images."""
        return self._shape("train")[1]

    @cached_property
    def natural_size(self) -> int:
        """The size that suits the training images."""
        return natural_size([min(self._shape("train")[2:])])

    def read(self, split: Split | None, size: int, fit: Fit, channels: int) -> tuple[Images, Tensor]:
        """Images (N, C, size, size) and labels (N,) of a split; None for all of a file without splits."""
        image_key, label_key = self._keys[split or "train"]
        self._require_possible(split or "train", size, channels)
        labels = torch.from_numpy(self._labels(label_key).astype(np.int64, copy=False))
        if int(labels.max()) >= len(self.class_names):
            raise DataError(
                f"{self.path} has the label {int(labels.max())} in {label_key}, but the {len(self.class_names)} "
                f"classes are numbered 0 to {len(self.class_names) - 1}."
            )
        images = _channels_first(self._arrays.read(image_key), self._arrays.where(image_key))
        if not self.has_splits and split is not None:
            train, test = split_validation(labels, TEST_FRACTION, self.seed)
            chosen = train if split == "train" else test
            images, labels = images[chosen.numpy()], labels[chosen]
        pixels = resize_all(_to_bytes(images, self._arrays.where(image_key)), size, fit=fit)
        return with_channels(pixels, channels), labels

    def _require_possible(self, split: Split, size: int, channels: int) -> None:
        """Check what the headers say, before anything is unpacked."""
        image_key, label_key = self._keys[split]
        count, own, *_ = self._shape(split)
        labels = self._count_labels(label_key)
        if count != labels:
            raise DataError(f"{self.path} holds {count} {image_key}, but {labels} {label_key}.")
        if own != self.channels:
            raise DataError(
                f"{self._arrays.where(image_key)} has {own} channels, but the training images have {self.channels}."
            )
        resized = f"{self._arrays.where(image_key)} at {size} x {size} pixels"
        require_unpacked(count * max(own, channels) * size**2, self.path, resized)

    def _shape(self, split: Split) -> tuple[int, ...]:
        """(N, C, H, W) of the images of a split."""
        key = self._keys[split][0]
        shape = self._arrays.header(key).shape
        axis = _channel_axis(shape, self._arrays.where(key))
        if axis is None:
            return (shape[0], 1, *shape[1:])
        return (shape[0], shape[axis], *(side for number, side in enumerate(shape) if number not in (0, axis)))

    def _labels(self, key: str) -> npt.NDArray[np.integer[Any]]:
        """The labels (N,) in an array, as they are stored."""
        self._count_labels(key)
        labels = self._arrays.read(key).reshape(-1)
        if labels.min() < 0 or labels.max() > np.iinfo(np.int64).max:
            wrong = labels.min() if labels.min() < 0 else labels.max()
            raise DataError(f"{self._arrays.where(key)} has the label {wrong}, but must hold class numbers from 0 on.")
        return labels

    def _count_labels(self, key: str) -> int:
        """How many labels an array holds, by its header."""
        header, where = self._arrays.header(key), self._arrays.where(key)
        shape = header.shape[:1] if header.shape[1:] == (1,) else header.shape
        if len(shape) != 1 or header.dtype.kind not in "iu" or header.size == 0:
            raise DataError(
                f"{where} is {header.dtype} {header.shape}, but must be a non-empty vector of class numbers from 0 on."
            )
        require_unpacked(_LABEL_BYTES * header.size, self.path, where)
        return header.size


_LABEL_BYTES = 16
"""What a label takes: 8 bytes, and as many to find out which there are."""


def _texts(names: npt.NDArray[Any], where: str) -> tuple[str, ...]:
    """An array of class names as texts."""
    if names.ndim > 1 or names.dtype.kind not in "SUiu":
        raise DataError(f"{where} is {names.dtype} {names.shape}, but must be a list of names.")
    check_class_count(names.size)
    try:
        values = np.atleast_1d(names).tolist()
        return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in values)
    except (ValueError, SystemError) as error:  # bytes or numbers that are no characters
        raise DataError(f"{where} cannot be read: {error}.") from error


def _channel_axis(shape: tuple[int, ...], where: str) -> int | None:
    """Which axis of images (N, H, W), (N, H, W, C) or (N, C, H, W) is the channels; None if there is none."""
    if len(shape) == 3 and all(shape):
        return None
    if len(shape) == 4 and all(shape):
        for axis in (3, 1):
            if shape[axis] in (1, 3):
                return axis
    raise DataError(
        f"{where} has the shape {shape}, but must have (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels."
    )


def _channels_first(images: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    """Images of any of these shapes as (N, C, H, W)."""
    axis = _channel_axis(images.shape, where)
    return images[:, None] if axis is None else np.moveaxis(images, axis, 1)


def _to_bytes(images: npt.NDArray[Any], where: str) -> npt.NDArray[np.uint8]:
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind != "f":
        raise DataError(f"{where} is {images.dtype}, but must be uint8, or floats in [0, 1].")
    if not (np.isfinite(images).all() and images.min() >= 0 and images.max() <= 1):
        raise DataError(
            f"{where} has floats from {images.min():g} to {images.max():g}, but floats must lie in [0, 1]; scale them."
        )
    scaled = images * 255
    return np.rint(scaled, out=scaled).astype(np.uint8)
