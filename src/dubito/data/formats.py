"""The official file formats: IDX (MNIST family) and the CIFAR binary records.

Every reader refuses a file that is truncated, corrupt or mislabelled with a sentence that names the file and the
reason. Nothing is ever unpickled.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from dubito.data.archive import read_bytes, require_unpacked
from dubito.data.registry import DatasetInfo, Split
from dubito.errors import DataError
from dubito.foreign import open_file, read_text

Bytes = npt.NDArray[np.uint8]

_IMAGES_MAGIC = 0x00000803
_LABELS_MAGIC = 0x00000801
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_PIXELS = 3 * 32 * 32
_AGAIN = "delete it and download it again"


def read_idx_images(path: str | os.PathLike[str], count: int | None = None) -> Bytes:
    """The (N, H, W) images of a gzipped IDX file; `count` is how many there must be, if that is known."""
    return _read_idx(Path(path), _IMAGES_MAGIC, "images", count)


def read_idx_labels(path: str | os.PathLike[str], classes: int, count: int | None = None) -> Bytes:
    """The (N,) labels of a gzipped IDX file, each below `classes`."""
    labels = _read_idx(Path(path), _LABELS_MAGIC, "labels", count)
    _check_labels(Path(path), labels, classes)
    return labels


def _read_idx(path: Path, magic: int, what: str, count: int | None) -> Bytes:
    """Header and content of an IDX file: magic number, number of items, their sides, then one byte a value."""
    dimensions = magic & 0xFF
    try:
        with open_file(path) as packed, gzip.open(packed, "rb") as stream:
            header = stream.read(4 + 4 * dimensions)
            if len(header) < 4 + 4 * dimensions:
                raise DataError(f"{path} ends inside its header, so it is truncated; {_AGAIN}.")
            found, items, *sides = (int(value) for value in np.frombuffer(header, dtype=">u4"))
            if found != magic:
                raise DataError(
                    f"{path} starts with the magic number {found:#010x}, but a file of {what} starts with "
                    f"{magic:#010x}; {_AGAIN}."
                )
            if count is not None and items != count:
                raise DataError(f"{path} holds {items} {what}, but must hold {count}; {_AGAIN}.")
            if sides and not all(0 < side <= 4096 for side in sides):
                raise DataError(
                    f"{path} gives {sides[0]} x {sides[1]} as the size of its images, so it is corrupt; {_AGAIN}."
                )
            size = items * math.prod(sides)
            require_unpacked(size, path, str(path))
            # One byte more than there should be: it shows surplus bytes, and makes gzip verify its checksum.
            content = read_bytes(cast(IO[bytes], stream), size + 1)
    except FileNotFoundError:
        raise _missing(path) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a complete gzip file ({_reason(error)}); {_AGAIN}.") from error
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {_reason(error)}.") from error
    if len(content) != size:
        fault = "fewer" if len(content) < size else "more"
        raise DataError(f"{path} holds {fault} bytes than the {items} {what} of its header need; {_AGAIN}.")
    return content.reshape(items, *sides)


def read_cifar(
    path: str | os.PathLike[str], label_bytes: int, classes: int, count: int | None = None
) -> tuple[Bytes, Bytes]:
    """Images (N, 3, 32, 32) and labels (N,) of one file of CIFAR records.

    A record is `label_bytes` labels (CIFAR-10: the class; CIFAR-100: coarse, then fine, of which the last counts)
    and 3,072 pixels: red, green and blue planes.
    """
    path = Path(path)
    record = label_bytes + _CIFAR_PIXELS
    try:
        with open_file(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size == 0 or size % record or (count is not None and size != count * record):
                wanted = f"{count * record}" if count is not None else f"a multiple of {record}"
                raise DataError(f"{path} has {size} bytes, but must have {wanted}; {_AGAIN}.")
            records = read_bytes(stream, size).reshape(-1, record)
    except FileNotFoundError:
        raise _missing(path) from None
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {_reason(error)}.") from error
    labels = records[:, label_bytes - 1]
    _check_labels(path, labels, classes)
    return records[:, label_bytes:].reshape(-1, *_CIFAR_SHAPE), labels


def read_class_names(path: str | os.PathLike[str], expected: Sequence[str] | None = None) -> tuple[str, ...]:
    """One class name a line; refused if they are not the `expected` ones, for then the labels mean something else."""
    path = Path(path)
    try:
        names = tuple(line.strip() for line in read_text(path).splitlines() if line.strip())
    except FileNotFoundError:
        raise _missing(path) from None
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {_reason(error)}.") from error
    if expected is not None and names != tuple(expected):
        different = next(
            (f"{i} is {a!r} instead of {b!r}" for i, (a, b) in enumerate(zip(names, expected, strict=False)) if a != b),
            f"{len(names)} names instead of {len(expected)}",
        )
        raise DataError(f"{path} does not list the official classes ({different}); {_AGAIN}.")
    return names


def read_official(info: DatasetInfo, folder: str | os.PathLike[str], split: Split) -> tuple[Bytes, Bytes]:
    """Images (N, C, H, W) and labels (N,) of one split of a data set whose files lie in `folder`."""
    folder = Path(folder)
    if info.format == "idx":
        images, labels = _read_idx_pair(info, folder, split)
    else:
        images, labels = _read_cifar_files(info, folder, split)
    if len(labels) != info.count(split):
        raise DataError(
            f"{folder} holds {len(labels)} {split} images of {info.name}, but must hold {info.count(split)}; {_AGAIN}."
        )
    return images, labels


def _read_idx_pair(info: DatasetInfo, folder: Path, split: Split) -> tuple[Bytes, Bytes]:
    images_file, labels_file = (folder / file.name for file in info.files_for(split))
    labels = read_idx_labels(labels_file, info.num_classes)
    images = read_idx_images(images_file)
    if len(images) != len(labels):
        raise DataError(f"{images_file} holds {len(images)} images, but {labels_file} {len(labels)} labels; {_AGAIN}.")
    side = info.size - 2 * info.padding
    if images.shape[1:] != (side, side):
        shape = " x ".join(str(n) for n in images.shape[1:])
        raise DataError(f"{images_file} holds images of {shape} pixels, but must hold {side} x {side}; {_AGAIN}.")
    return images[:, None], labels


def _read_cifar_files(info: DatasetInfo, folder: Path, split: Split) -> tuple[Bytes, Bytes]:
    label_bytes = 1 if info.format == "cifar10" else 2
    images: list[Bytes] = []
    labels: list[Bytes] = []
    for file in info.files_for(split):
        if file.name.endswith(".txt"):
            read_class_names(folder / file.name, info.class_names)
            continue
        count = file.size // (label_bytes + _CIFAR_PIXELS)
        pair = read_cifar(folder / file.name, label_bytes, info.num_classes, count)
        images.append(pair[0])
        labels.append(pair[1])
    return np.concatenate(images), np.concatenate(labels)


def _check_labels(path: Path, labels: npt.NDArray[Any], classes: int) -> None:
    wrong: Iterable[int] = np.flatnonzero(labels >= classes)[:1].tolist()
    for index in wrong:
        raise DataError(
            f"{path} gives image {index} the label {int(labels[index])}, but labels go from 0 to {classes - 1}; "
            f"{_AGAIN}."
        )


def _missing(path: Path) -> DataError:
    return DataError(f"{path} does not exist; fetch the data set again.")


def _reason(error: BaseException) -> str:
    """The reason alone: an OSError's text without the path, which the sentence already names."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.strip().rstrip(".") or type(error).__name__
