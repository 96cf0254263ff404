"""The user's own images: a folder with a sub-folder for each class, or an .npz of arrays."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dubito.data.images import IMAGE_SUFFIXES, is_gray, read_image, resize_all
from dubito.data.registry import Split
from dubito.data.splits import split_validation
from dubito.errors import DataError

__all__ = ["TEST_FRACTION", "ClassFolders", "NumpyArchive"]

TEST_FRACTION = 0.2
"""The share of images that become the test split of data that has none of its own."""


class ClassFolders:
    """Images in a folder with a sub-folder per class, or with `train` and `test` folders of that kind.

    Without a `test` folder, a fifth of the images, drawn by `seed` from each class, is the test split. Whether images
    are gray or coloured is decided by the training images alone; a split's files are opened when it is read.
    """

    def __init__(self, folder: str | os.PathLike[str], seed: int = 0) -> None:
        self.folder = Path(folder)
        self.seed = seed
        train, test = self.folder / "train", self.folder / "test"
        has_train, has_test = _holds_folders(train), _holds_folders(test)
        if has_train != has_test:
            there, lacking = ("train", "test") if has_train else ("test", "train")
            raise DataError(
                f"{self.folder} has a folder {there!r} with classes but no such folder {lacking!r}; add it, or give "
                f"{self.folder / there} itself to have it split."
            )
        self._roots: dict[Split, Path] = {"train": train, "test": test} if has_train else {}
        self.class_names = tuple(folder.name for folder in _class_folders(self._roots.get("train", self.folder)))

    @cached_property
    def channels(self) -> int:
        """1 if every training image is gray by its format, else 3."""
        return 1 if all(is_gray(path) for path in self.paths("train")[0]) else 3

    def paths(self, split: Split) -> tuple[list[Path], Tensor]:
        """The files of a split in a fixed order, and their labels."""
        if self._roots:
            return self._listed(self._roots[split])
        paths, labels = self._listed(self.folder)
        train, test = split_validation(labels, TEST_FRACTION, self.seed)
        chosen = train if split == "train" else test
        return [paths[index] for index in chosen.tolist()], labels[chosen]

    def read(self, split: Split, size: int) -> tuple[Tensor, Tensor]:
        """Images (N, C, size, size) and labels (N,) of a split."""
        paths, labels = self.paths(split)
        images = torch.empty(len(paths), self.channels, size, size, dtype=torch.uint8)
        for index, path in enumerate(paths):
            images[index] = read_image(path, self.channels, size)
        return images, labels

    def _listed(self, root: Path) -> tuple[list[Path], Tensor]:
        paths: list[Path] = []
        labels: list[int] = []
        for folder in _class_folders(root):
            if folder.name not in self.class_names:
                raise DataError(f"{folder} is a class that the training images do not have; remove or rename it.")
            files = sorted(path for path in folder.rglob("*") if _is_image(path, folder))
            if not files and root != self._roots.get("test"):
                raise DataError(f"{folder} holds no images; add some ({_suffixes()}) or remove the folder.")
            paths += files
            labels += [self.class_names.index(folder.name)] * len(files)
        if not paths:
            raise DataError(f"{root} holds no images; put some ({_suffixes()}) into a folder for each class.")
        return paths, torch.tensor(labels)


class NumpyArchive:
    """An .npz with `x_train`, `y_train`, `x_test`, `y_test`, or `images` and `labels`; optionally `class_names`.

    Images are (N, H, W), (N, H, W, C) or (N, C, H, W) with one or three channels, uint8 or floats in [0, 1]. Arrays are
    read when their split is asked for. Without test arrays, a fifth of the images, drawn by `seed` from each class,
    is the test split.
    """

    def __init__(self, path: str | os.PathLike[str], seed: int = 0) -> None:
        self.path = Path(path)
        self.seed = seed
        names = self._array_names()
        if {"x_train", "y_train", "x_test", "y_test"} <= names:
            self._keys: dict[Split, tuple[str, str]] = {"train": ("x_train", "y_train"), "test": ("x_test", "y_test")}
        elif {"images", "labels"} <= names:
            self._keys = {"train": ("images", "labels"), "test": ("images", "labels")}
        else:
            raise DataError(
                f"{self.path} holds the arrays {', '.join(sorted(names)) or 'none'}, but must hold x_train, y_train, "
                "x_test and y_test, or images and labels."
            )
        self._has_names = "class_names" in names

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The names in the file, else the numbers of the classes that occur in the training labels."""
        key = self._keys["train"][1]
        labels = self._labels(key)
        if self._has_names:
            names = tuple(str(name) for name in np.atleast_1d(self._array("class_names")))
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise DataError(f"{self.path} has several classes called {twice[0]!r}; give each a name of its own.")
            return names
        present = labels.unique().tolist()  # sorted
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
        return _channels_first(self._array(self._keys["train"][0]), self._where(self._keys["train"][0])).shape[1]

    def read(self, split: Split, size: int) -> tuple[Tensor, Tensor]:
        """Images (N, C, size, size) and labels (N,) of a split."""
        image_key, label_key = self._keys[split]
        labels = self._labels(label_key)
        images = _channels_first(self._array(image_key), self._where(image_key))
        if len(images) != len(labels):
            raise DataError(f"{self.path} holds {len(images)} {image_key}, but {len(labels)} {label_key}.")
        if int(labels.max()) >= len(self.class_names):
            raise DataError(
                f"{self.path} has the label {int(labels.max())} in {label_key}, but the {len(self.class_names)} "
                f"classes are numbered 0 to {len(self.class_names) - 1}."
            )
        if self._keys["train"] == self._keys["test"]:
            train, test = split_validation(labels, TEST_FRACTION, self.seed)
            chosen = train if split == "train" else test
            images, labels = images[chosen.numpy()], labels[chosen]
        if split == "test" and images.shape[1] != self.channels:
            raise DataError(
                f"{self._where(image_key)} has {images.shape[1]} channels, but the training images have "
                f"{self.channels}."
            )
        return resize_all(_to_bytes(images, self._where(image_key)), size), labels

    def _labels(self, key: str) -> Tensor:
        labels = self._array(key)
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.ndim == 1 and labels.dtype.kind == "i" and labels.size and labels.min() < 0:
            raise DataError(f"{self._where(key)} has the label {labels.min()}, but must hold class numbers from 0 on.")
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.size == 0:
            raise DataError(
                f"{self._where(key)} is {labels.dtype} {labels.shape}, but must be a non-empty vector of class numbers "
                "from 0 on."
            )
        return torch.from_numpy(labels.astype(np.int64))

    def _array_names(self) -> set[str]:
        try:
            loaded = np.load(self.path, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise DataError(f"{self.path} is a single array, but must be an .npz with images and labels.")
            with loaded as arrays:
                return set(arrays.files)
        except DataError:
            raise
        except _READ_ERRORS as error:
            raise DataError(f"{self.path} cannot be read as an .npz of arrays: {_first_line(error)}.") from error

    def _array(self, key: str) -> npt.NDArray[Any]:
        try:
            with np.load(self.path, allow_pickle=False) as arrays:
                return np.asarray(arrays[key])
        except _READ_ERRORS as error:
            raise DataError(f"{self._where(key)} cannot be read: {_first_line(error)}.") from error

    def _where(self, key: str) -> str:
        return f"array {key} of {self.path}"


_READ_ERRORS = (OSError, ValueError, EOFError, KeyError, SyntaxError, zipfile.BadZipFile, zlib.error)


def _channels_first(images: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    """(N, H, W), (N, H, W, C) or (N, C, H, W) as (N, C, H, W)."""
    if images.ndim == 3 and images.size:
        return images[:, None]
    if images.ndim == 4 and images.size:
        if images.shape[-1] in (1, 3):
            return images.transpose(0, 3, 1, 2)
        if images.shape[1] in (1, 3):
            return images
    raise DataError(
        f"{where} has the shape {images.shape}, but must have (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 "
        "channels."
    )


def _to_bytes(images: npt.NDArray[Any], where: str) -> npt.NDArray[np.uint8]:
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind != "f":
        raise DataError(f"{where} is {images.dtype}, but must be uint8, or floats in [0, 1].")
    if not (np.isfinite(images).all() and images.min() >= 0 and images.max() <= 1):
        raise DataError(
            f"{where} has floats from {images.min():g} to {images.max():g}, but floats must lie in [0, 1]; scale them."
        )
    return np.rint(images * 255).astype(np.uint8)


def _class_folders(root: Path) -> list[Path]:
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not folders:
        raise DataError(f"{root} has no sub-folders, but must have one for each class, with its images in it.")
    return folders


def _holds_folders(folder: Path) -> bool:
    return folder.is_dir() and any(path.is_dir() and not path.name.startswith(".") for path in folder.iterdir())


def _is_image(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return path.suffix.lower() in IMAGE_SUFFIXES and not hidden and path.is_file()


def _suffixes() -> str:
    common: Sequence[str] = ("png", "jpg", "bmp", "gif", "webp", "tiff")
    return ", ".join(common)


def _first_line(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (text.splitlines() or [type(error).__name__])[0].strip().rstrip(".") or type(error).__name__
