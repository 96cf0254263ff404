"""From the arguments of a command to images: files, folders, globs and data sets, read batch by batch."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from dubito.errors import DataError, DubitoError, OptionError

if TYPE_CHECKING:
    from torch import Tensor

    from dubito.training import DataDescription

__all__ = ["Image", "Reader", "find_images"]


@dataclass(frozen=True)
class Image:
    """An image that can be read as (C, H, W) bytes: its name, its true class if known, and its file if it has one."""

    name: str
    read: Callable[[], Tensor]
    truth: str | None = None
    path: Path | None = None


def find_images(arguments: Sequence[str], data: DataDescription) -> list[Image]:
    """Every image that the arguments name, each once, to be read in the same way as the training data."""
    found: dict[str | Path, Image] = {}
    for argument in arguments:
        found.update((image.path or image.name, image) for image in _images(argument, data))
    return list(found.values())


def _images(argument: str, data: DataDescription) -> Iterable[Image]:
    from dubito.data import DATASETS

    path = Path(argument).expanduser()
    if argument in DATASETS or (path.suffix.lower() == ".npz" and path.is_file()):
        return _of_dataset(argument, data)
    return (_of_file(file, data, _truth(file, path, data)) for file in _files(argument, path))


def _files(argument: str, path: Path) -> list[Path]:
    from dubito.data import DATASETS
    from dubito.data.images import IMAGE_SUFFIXES

    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        return [path]
    if glob.has_magic(argument):
        matches = [Path(match) for match in sorted(glob.glob(os.path.expanduser(argument), recursive=True))]
        files = [file for match in matches for file in (_in_folder(match, False) if match.is_dir() else [match])]
        if not files:
            raise DataError(f"No image matches {argument}.")
        return list(dict.fromkeys(files))  # with ** a folder's files match, and so does the folder
    if path.suffix.lower() in IMAGE_SUFFIXES:
        return [path]  # one missing file of many becomes a row with an error, like one that is broken
    raise OptionError(
        f"{argument} does not exist; give image files, folders, a quoted glob, or a data set's name "
        f"({', '.join(DATASETS)})."
    )


def _in_folder(folder: Path, required: bool = True) -> list[Path]:
    """The images in a folder and its subfolders, without hidden ones."""
    from dubito.data.images import IMAGE_SUFFIXES

    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in IMAGE_SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    )
    if required and not files:
        raise DataError(f"{folder} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")
    return files


def _truth(file: Path, folder: Path, data: DataDescription) -> str | None:
    """The class of a file in a labelled folder: the name of the nearest sub-folder that is a class, if there is one."""
    if not folder.is_dir():
        return None
    names = [parent.name for parent in file.relative_to(folder).parents]  # nearest first; the last is the folder itself
    return next((name for name in names[:-1] if name in data.class_names), None)


def _of_file(path: Path, data: DataDescription, truth: str | None = None) -> Image:
    # A file name may be any bytes, but what is printed and written must be text.
    name = os.fsencode(path).decode("utf-8", "replace")
    return Image(name, partial(data.read, path), truth, path)


def _of_dataset(name: str, data: DataDescription) -> Iterator[Image]:
    dataset = data.open(name).test()
    images = dataset.images
    for index, label in enumerate(dataset.labels.tolist()):
        yield Image(f"{name}/test/{index}", partial(images.__getitem__, index), dataset.class_names[label])


class Reader:
    """Reads images into batches, and remembers which could not be read and why."""

    def __init__(self, images: Sequence[Image], data: DataDescription) -> None:
        self.images = images
        self.data = data
        self.errors: dict[int, str] = {}

    def batches(self, size: int, advance: Callable[[int], None] = lambda count: None) -> Iterator[Tensor]:
        """Normalised batches of at most `size` images; no more than one of them is in memory."""
        from dubito.data import normalize

        for images in self.byte_batches(size, advance):
            yield normalize(images, self.data.mean, self.data.std)

    def byte_batches(self, size: int, advance: Callable[[int], None] = lambda count: None) -> Iterator[Tensor]:
        """The same as they were read, (N, C, H, W) of bytes."""
        import torch

        from dubito.data.reading import read_ahead

        results = read_ahead(self._read, range(len(self.images)), ahead=size)
        while chunk := list(islice(results, size)):
            read = [tensor for tensor in chunk if tensor is not None]
            if read:
                yield torch.stack(read)
            advance(len(chunk))

    def _read(self, number: int) -> Tensor | None:
        try:
            return self.images[number].read()
        except (DubitoError, OSError) as error:
            self.errors[number] = " ".join(str(error).split())
            return None
