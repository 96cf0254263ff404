"""From a name or a path to tensors: the splits of a data set, each read when it is asked for and not before."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dubito.data import registry
from dubito.data.batches import Augmentation
from dubito.data.download import fetch
from dubito.data.formats import read_official
from dubito.data.images import resize_all
from dubito.data.own import TEST_FRACTION, ClassFolders, NumpyArchive
from dubito.data.registry import IMAGE_SIZE, DatasetInfo, Split
from dubito.data.splits import split_validation
from dubito.errors import DataError, OptionError, unknown

__all__ = ["DataSource", "Dataset", "load", "open_dataset", "statistics"]

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
_Read = Callable[[Split], tuple[Tensor, Tensor]]

LARGEST_SIZE = 4096


@dataclass(frozen=True, eq=False)
class Dataset:
    """One split in memory: uint8 images (N, C, H, W), int64 labels (N,), and how to normalise them."""

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def channels(self) -> int:
        """1 (gray) or 3 (colour)."""
        return self.images.shape[1]

    @property
    def num_classes(self) -> int:
        """The number of classes, whether or not each occurs in this split."""
        return len(self.class_names)

    @property
    def size(self) -> int:
        """Height and width of the images."""
        return self.images.shape[-1]

    def part(self, index: Tensor) -> Dataset:
        """The images of these indices, or of a mask, as a data set of their own."""
        return replace(self, images=self.images[index], labels=self.labels[index])


class DataSource:
    """A data set that has been found but not read: `train()` and `test()` read their split, and only that.

    Made by `open_dataset`. For known data sets nothing is read before a split is asked for. For the user's own data,
    and for known data at another size than its own, mean and standard deviation come from the training images, so
    `test()` reads those too.
    """

    def __init__(
        self,
        name: str,
        read: _Read,
        size: int,
        *,
        info: DatasetInfo | None = None,
        own: ClassFolders | NumpyArchive | None = None,
    ) -> None:
        self.name = name
        self.size = size
        self.info = info
        self._read = read
        self._own = own

    def __repr__(self) -> str:
        return f"DataSource({self.name!r})"

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The classes in the order of their labels."""
        return self._description.class_names

    @cached_property
    def channels(self) -> int:
        """1 (gray) or 3 (colour)."""
        return self._description.channels

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def padding(self) -> int:
        """Black pixels around the original image; `read_image` needs them to treat a file in the same way."""
        return scaled_padding(self.info, self.size) if self.info else 0

    @property
    def augmentation(self) -> Augmentation:
        """The usual one: crops of 4 pixels, and flips where the data set is known to allow them."""
        return Augmentation(padding=4, flip=self.info.flip if self.info else False)

    @cached_property
    def statistics(self) -> Statistics:
        """Mean and standard deviation of each channel, over the training images in [0, 1]."""
        if self.info and self.size == self.info.size:
            return self.info.mean, self.info.std
        return statistics(self._read("train")[0])

    def train(self) -> Dataset:
        """The training split."""
        images, labels = self._read("train")
        if "statistics" not in self.__dict__ and not (self.info and self.size == self.info.size):
            self.__dict__["statistics"] = statistics(images)  # without reading them a second time
        return self._dataset(images, labels)

    def test(self) -> Dataset:
        """The test split."""
        return self._dataset(*self._read("test"))

    def _dataset(self, images: Tensor, labels: Tensor) -> Dataset:
        mean, std = self.statistics
        return Dataset(images, labels, self.class_names, self.name, mean, std)

    @property
    def _description(self) -> DatasetInfo | ClassFolders | NumpyArchive:
        description = self.info or self._own
        assert description is not None
        return description


def open_dataset(
    spec: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    mirror: str | os.PathLike[str] | None = None,
    seed: int = 0,
    size: int | None = None,
) -> DataSource:
    """Find a data set by its name, or the user's own by its path: a folder of class folders, or an .npz.

    `seed` decides the test split of own data that has none; known data sets always have the same one. Images are
    scaled to `size` x `size` pixels; None is the data set's own size. A folder in the working directory that has a
    data set's name is reached as `./NAME`.

    >>> digits = open_dataset("digits")
    >>> digits.class_names[:3], len(digits.train()), len(digits.test())
    (('0', '1', '2'), 1438, 359)
    >>> open_dataset("digits", size=16).test().images.shape
    torch.Size([359, 1, 16, 16])
    """
    given = os.fspath(spec)
    if size is not None and not 1 <= size <= LARGEST_SIZE:
        raise OptionError(f"size is {size}, but images must have 1 to {LARGEST_SIZE} pixels a side.")
    if not given:
        raise DataError("The data set has no name: give that of a known one, a folder of class folders, or an .npz.")
    if isinstance(spec, str) and given in registry.DATASETS:
        info = registry.DATASETS[given]
        side = size or info.size
        if info.format == "embedded":
            return DataSource(given, lambda split: _read_digits(split, side), side, info=info)
        return DataSource(given, lambda split: _read_known(info, split, side, cache, mirror), side, info=info)
    path = Path(given).expanduser()
    own: ClassFolders | NumpyArchive
    if path.is_dir():
        own = ClassFolders(path, seed)
    elif path.is_file():
        if path.suffix.lower() != ".npz":
            raise DataError(f"{path} is a file, but own data must be an .npz or a folder with a sub-folder per class.")
        own = NumpyArchive(path, seed)
    elif path.suffix or len(path.parts) > 1:
        raise DataError(
            f"{path} does not exist; give a folder with a sub-folder per class, an .npz, or a data set's name."
        )
    else:
        raise OptionError(unknown("data set", given, registry.DATASETS)[:-1] + ", or the path of a folder or .npz.")
    side = size or IMAGE_SIZE
    return DataSource(given, lambda split: own.read(split, side), side, own=own)


def load(
    spec: str | os.PathLike[str],
    split: Split,
    *,
    cache: str | os.PathLike[str] | None = None,
    mirror: str | os.PathLike[str] | None = None,
    seed: int = 0,
    size: int | None = None,
) -> Dataset:
    """One split of a data set: `open_dataset(spec).train()` or `.test()`.

    >>> load("digits", "test").images.shape
    torch.Size([359, 1, 32, 32])
    """
    if split not in ("train", "test"):
        raise OptionError(unknown("split", split, ("train", "test")))
    source = open_dataset(spec, cache=cache, mirror=mirror, seed=seed, size=size)
    return source.train() if split == "train" else source.test()


def statistics(images: Tensor) -> Statistics:
    """Mean and standard deviation of each channel of uint8 images, in [0, 1]; exact, by counting values.

    >>> statistics(torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1))
    ((0.5,), (0.5,))
    """
    values = torch.arange(256, dtype=torch.float64) / 255
    means: list[float] = []
    stds: list[float] = []
    for channel in range(images.shape[1]):
        weight = torch.bincount(images[:, channel].flatten(), minlength=256).double()
        weight /= weight.sum()
        mean = float(weight @ values)
        means.append(round(mean, 6))
        # Images of one value would have 0, by which nothing can be divided.
        stds.append(max(round(float((weight @ (values - mean) ** 2).sqrt()), 6), 1 / 255))
    return tuple(means), tuple(stds)


def scaled_padding(info: DatasetInfo, size: int) -> int:
    """The black pixels on each side of an image of another size, so that its content keeps its share of the width.

    >>> scaled_padding(registry.DATASETS["mnist"], 64)
    4
    """
    return round(info.padding * size / info.size)


def _read_known(
    info: DatasetInfo,
    split: Split,
    size: int,
    cache: str | os.PathLike[str] | None,
    mirror: str | os.PathLike[str] | None,
) -> tuple[Tensor, Tensor]:
    folder = fetch(info.name, cache=cache, mirror=mirror, split=split)
    pixels, labels = read_official(info, folder, split)
    images = resize_all(pixels, size, scaled_padding(info, size))
    return images, torch.from_numpy(labels.astype(np.int64))


def _read_digits(split: Split, size: int) -> tuple[Tensor, Tensor]:
    """The digits that come with scikit-learn, 8 x 8 pixels: values 0 .. 16 become bytes, images are scaled up."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError(
            "data set 'digits' comes with scikit-learn, which is missing; pip install scikit-learn."
        ) from None
    digits = load_digits()
    labels = torch.from_numpy(digits.target.astype(np.int64))
    train, test = split_validation(labels, TEST_FRACTION, seed=0)
    chosen = train if split == "train" else test
    pixels = np.rint(digits.images[chosen.numpy()] * (255 / 16)).astype(np.uint8)
    return resize_all(pixels[:, None], size), labels[chosen]
