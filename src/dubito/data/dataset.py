"""From a name or a path to tensors: the splits of a data set, each read when it is asked for and not before."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dubito.class_names import check_class_names
from dubito.data import registry
from dubito.data.augmentation import Augmentation, PhotoAugmentation
from dubito.data.download import fetch
from dubito.data.fitting import Fit, check_fit
from dubito.data.formats import read_official
from dubito.data.images import resize_all
from dubito.data.listing import TEST_FRACTION, ClassFolders, Listing, PathTable, PlainFolder, folder_splits
from dubito.data.own import SMALL_SIZE, ListedFiles, NumpyArchive
from dubito.data.reading import WORKERS, Images, with_channels
from dubito.data.registry import DatasetInfo, Split
from dubito.data.splits import split_validation
from dubito.errors import DataError, OptionError, missing, unknown

Statistics = tuple[tuple[float, ...], tuple[float, ...]]

LARGEST_SIZE = 4096
SAMPLE = 2000
"""Training images on disk whose pixels make mean and standard deviation, if there are more."""
PART = 1000
"""Images that are counted at once."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """One split: uint8 images (N, C, H, W) in memory or on disk, int64 labels (N,), and how to normalise them.

    `files` are the paths of the images, where each is a file of its own.
    """

    images: Images
    labels: Tensor
    class_names: tuple[str, ...]
    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    files: tuple[str, ...] = ()

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
        return replace(self, images=self.images[index], labels=self.labels[index], files=chosen(self.files, index))


def chosen(files: tuple[str, ...], index: Any) -> tuple[str, ...]:
    """The files of these indices, of a slice, or of a mask; none if there are none.

    >>> chosen(("a.png", "b.png", "c.png"), torch.tensor([2, 0]))
    ('c.png', 'a.png')
    """
    if not files:
        return ()
    return tuple(files[number] for number in torch.arange(len(files))[index].flatten().tolist())


class Reader(Protocol):
    """What knows the images of a data set and reads a split of them when it is asked for."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes in the order of their labels."""

    @property
    def channels(self) -> int:
        """Of the training images: 1 (gray) or 3 (colour)."""

    @property
    def natural_size(self) -> int:
        """The size that images have unless another is asked for."""

    @property
    def has_validation(self) -> bool:
        """Whether there is a split ``validation``."""

    @property
    def has_splits(self) -> bool:
        """Whether the data is split; if not, its test split is drawn from it."""

    def read(self, split: Split | None, size: int, fit: Fit, channels: int) -> tuple[Images, Tensor]:
        """Images (N, channels, size, size) and labels (N,) of a split; None for all of data without splits."""


class DataSource:
    """A data set that has been found but not read: `train()`, `validation()` and `test()` read their split alone.

    Made by `open_dataset`. For known data sets nothing is read before a split is asked for. For the user's own data,
    and for known data at another size than its own, size, channels, mean and standard deviation come from the
    training images unless they are given, so `test()` opens those too.
    """

    def __init__(
        self,
        name: str,
        reader: Reader,
        *,
        info: DatasetInfo | None = None,
        size: int | None = None,
        fit: Fit | None = None,
        channels: int | None = None,
        statistics: Statistics | None = None,
    ) -> None:
        self.name = name
        self.info = info
        self.fit: Fit = fit or (info.fit if info else "crop")
        self._reader = reader
        self._size, self._channels = size, channels
        if statistics is not None:
            self.__dict__["statistics"] = statistics

    def __repr__(self) -> str:
        return f"DataSource({self.name!r})"

    @property
    def size(self) -> int:
        """Height and width of the images."""
        return self._size or self._reader.natural_size

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The classes in the order of their labels."""
        try:
            return check_class_names(self._reader.class_names)
        except DataError as error:
            raise error if self.name in str(error) else DataError(f"{self.name} cannot be used: {error}") from None

    @property
    def channels(self) -> int:
        """1 (gray) or 3 (colour)."""
        return self._channels or self._reader.channels

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def padding(self) -> int:
        """Black pixels around the original image; `read_image` needs them to treat a file in the same way."""
        return scaled_padding(self.info, self.size) if self.info else 0

    @property
    def augmentation(self) -> Augmentation | PhotoAugmentation:
        """The usual one: random parts and flips for photographs on disk that are more than 64 pixels a side.

        Other images are shifted by up to 4 pixels, and flipped where the data set is known to allow it.
        """
        if isinstance(self._reader, ListedFiles) and self.size > SMALL_SIZE:
            return PhotoAugmentation()
        return Augmentation(padding=4, flip=self.info.flip if self.info else False)

    @cached_property
    def statistics(self) -> Statistics:
        """Mean and standard deviation of each channel, over the training images in [0, 1].

        Of images on disk, up to 2,000, chosen at random but always the same, are read for it.
        """
        return self._known_statistics or _sampled_statistics(self._read("train")[0])

    @property
    def _known_statistics(self) -> Statistics | None:
        info = self.info
        same = info is not None and (self.size, self.channels) == (info.size, info.channels)
        return (info.mean, info.std) if info is not None and same else None

    def train(self) -> Dataset:
        """The training split, without validation images if the data has some of its own."""
        images, labels = self._read("train")
        if "statistics" not in self.__dict__:  # without reading the images a second time
            self.__dict__["statistics"] = self._known_statistics or _sampled_statistics(images)
        return self._dataset("train", images, labels)

    def validation(self) -> Dataset | None:
        """The data set's own validation split; None if it has none, so that training images are to be held out."""
        return self._dataset("validation", *self._read("validation")) if self._reader.has_validation else None

    @property
    def has_splits(self) -> bool:
        """Whether the data has splits of its own; if not, a share of its images is set aside for testing."""
        return self._reader.has_splits

    def test(self, *, whole: bool = False) -> Dataset:
        """The test split. With `whole`, all images of data without splits of its own: where nothing was trained on it.

        >>> len(open_dataset("digits").test(whole=True))  # known data sets are split
        359
        """
        split: Split | None = None if whole and not self.has_splits else "test"
        return self._dataset(split, *self._read(split))

    def parts(self, fraction: float = 0.1, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Images to train on and images for validation.

        The latter are the data set's own validation split, or a `fraction` of the training split, drawn by `seed` from
        each class.

        >>> [len(part) for part in open_dataset("digits").parts(0.1)]
        [1294, 144]
        """
        whole, own = self.train(), self.validation()
        if own is not None:
            return whole, own
        kept, held_out = split_validation(whole.labels, fraction, seed)
        return whole.part(kept), whole.part(held_out)

    def describe_splits(self) -> str:
        """How the images are split, as a sentence; empty where the data set is known."""
        return self._reader.listing.describe() if isinstance(self._reader, ListedFiles) else ""

    def _read(self, split: Split | None) -> tuple[Images, Tensor]:
        self.class_names  # noqa: B018  (names that are refused are refused before images are read)
        return self._reader.read(split, self.size, self.fit, self.channels)

    def _dataset(self, split: Split | None, images: Images, labels: Tensor) -> Dataset:
        mean, std = self.statistics
        files = self._reader.files(split) if isinstance(self._reader, ListedFiles) else ()
        return Dataset(images, labels, self.class_names, self.name, mean, std, files)


def open_dataset(
    spec: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    mirror: str | os.PathLike[str] | None = None,
    seed: int = 0,
    size: int | None = None,
    fit: Fit | None = None,
    channels: int | None = None,
    statistics: Statistics | None = None,
    strict: bool = False,
    workers: int = WORKERS,
    labelled: bool = True,
) -> DataSource:
    """Find a data set by its name, or the user's own by its path.

    That is a folder with a folder for each class (or with folders `train`, `validation` and `test` of that kind), a
    .csv with the columns path, label and perhaps split, or an .npz. A folder in the working directory that has a data
    set's name is reached as `./NAME`.

    Args:
        spec: name or path.
        cache, mirror: where known data sets are kept and looked for.
        seed: decides the test split of own data that has none; known data sets always have the same one.
        size: height and width of the images. None is a known data set's own size, and for own images 224 pixels, or
            less if most of them are smaller.
        fit: what becomes of the proportions, see :func:`read_image`; None is ``crop``, or ``pad`` for digits.
        channels: 1 for gray, 3 for colour; None is as the training images are.
        statistics: mean and standard deviation of each channel; None for those of the training images.
        strict: refuse own data with files that cannot be read, rather than leave them out with a warning.
        workers: threads that read images from disk.
        labelled: False for images whose classes do not matter: all images of a folder without a `test` folder.

    >>> digits = open_dataset("digits")
    >>> digits.class_names[:3], len(digits.train()), len(digits.test())
    (('0', '1', '2'), 1438, 359)
    >>> open_dataset("digits", size=16).test().images.shape
    torch.Size([359, 1, 16, 16])
    """
    given = os.fspath(spec)
    if size is not None and not 1 <= size <= LARGEST_SIZE:
        raise OptionError(f"size is {size}, but images must have 1 to {LARGEST_SIZE} pixels a side.")
    if fit is not None:
        check_fit(fit)
    if not given:
        raise DataError(
            "The data set has no name: give the name of a known data set, a folder of class folders, or an .npz."
        )
    options: dict[str, Any] = {"size": size, "fit": fit, "channels": channels, "statistics": statistics}
    if isinstance(spec, str) and given in registry.DATASETS:
        info = registry.DATASETS[given]
        return DataSource(given, _Known(info, cache, mirror), info=info, **options)
    path = Path(given).expanduser()
    if path.is_file() and path.suffix.lower() == ".npz":
        return DataSource(given, NumpyArchive(path, seed), **options)
    listing = _listing(path, seed, labelled)
    if listing is not None:
        return DataSource(given, ListedFiles(listing, strict=strict, workers=workers), **options)
    if path.is_file():
        raise DataError(
            f"{path} is a file, but own data must be an .npz, a .csv with the columns path and label, or a folder with "
            "a sub-folder per class."
        )
    if path.suffix or len(path.parts) > 1:
        raise DataError(
            f"{path} does not exist; give a folder with a sub-folder per class, a .csv, an .npz, or a data set's name."
        )
    raise OptionError(unknown("data set", given, registry.DATASETS)[:-1] + ", or the path of a folder, .csv or .npz.")


def _listing(path: Path, seed: int, labelled: bool) -> Listing | None:
    if path.is_file() and path.suffix.lower() == ".csv":
        return PathTable(path, seed)
    if not path.is_dir():
        return None
    return ClassFolders(path, seed) if labelled or "test" in folder_splits(path) else PlainFolder(path, seed)


def load(
    spec: str | os.PathLike[str],
    split: Split,
    *,
    cache: str | os.PathLike[str] | None = None,
    mirror: str | os.PathLike[str] | None = None,
    seed: int = 0,
    size: int | None = None,
    fit: Fit | None = None,
) -> Dataset:
    """One split of a data set: `open_dataset(spec).train()`, `.validation()` or `.test()`.

    >>> load("digits", "test").images.shape
    torch.Size([359, 1, 32, 32])
    """
    if split not in ("train", "validation", "test"):
        raise OptionError(unknown("split", split, ("train", "validation", "test")))
    source = open_dataset(spec, cache=cache, mirror=mirror, seed=seed, size=size, fit=fit)
    if split == "validation":
        own = source.validation()
        if own is None:
            raise DataError(f"{spec} has no validation images of its own; `open_dataset(...).parts()` holds some out.")
        return own
    return source.train() if split == "train" else source.test()


def statistics(images: Images) -> Statistics:
    """Mean and standard deviation of each channel of uint8 images, in [0, 1]; exact, by counting values.

    >>> statistics(torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1))
    ((0.5,), (0.5,))
    """
    values = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.zeros(images.shape[1], 256, dtype=torch.float64)
    for part in images.split(PART):
        for channel in range(images.shape[1]):
            counts[channel] += torch.bincount(part[:, channel].flatten(), minlength=256)
    means: list[float] = []
    stds: list[float] = []
    for count in counts:
        weight = count / count.sum()
        mean = float(weight @ values)
        means.append(round(mean, 6))
        # Images of one value would have 0, by which nothing can be divided.
        stds.append(max(round(float((weight @ (values - mean) ** 2).sqrt()), 6), 1 / 255))
    return tuple(means), tuple(stds)


def _sampled_statistics(images: Images) -> Statistics:
    if isinstance(images, Tensor) or len(images) <= SAMPLE:
        return statistics(images)
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:SAMPLE]
    return statistics(images[chosen.sort().values])


def scaled_padding(info: DatasetInfo, size: int) -> int:
    """The black pixels on each side of an image of another size, so that its content keeps its share of the width.

    >>> scaled_padding(registry.DATASETS["mnist"], 64)
    4
    """
    return round(info.padding * size / info.size)


class _Known:
    """A data set of the table, whose files are read, or fetched first."""

    has_validation, has_splits = False, True

    def __init__(
        self, info: DatasetInfo, cache: str | os.PathLike[str] | None, mirror: str | os.PathLike[str] | None
    ) -> None:
        self.class_names, self.channels, self.natural_size = info.class_names, info.channels, info.size
        self._info, self._cache, self._mirror = info, cache, mirror

    def read(self, split: Split | None, size: int, fit: Fit, channels: int) -> tuple[Images, Tensor]:
        """Images and labels of a split; all known images are square, so that nothing has to be fitted."""
        assert split is not None  # they are all split
        info = self._info
        if info.format == "embedded":
            images, labels = _read_digits(split, size)
        else:
            folder = fetch(info.name, cache=self._cache, mirror=self._mirror, split=split)
            pixels, numbers = read_official(info, folder, split)
            images = resize_all(pixels, size, scaled_padding(info, size))
            labels = torch.from_numpy(numbers.astype(np.int64))
        return with_channels(images, channels), labels


def _read_digits(split: Split, size: int) -> tuple[Tensor, Tensor]:
    """The digits that come with scikit-learn, 8 x 8 pixels: values 0 .. 16 become bytes, images are scaled up."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise missing("The data set 'digits'", "scikit-learn", "train") from None
    digits = load_digits()
    labels = torch.from_numpy(digits.target.astype(np.int64))
    train, test = split_validation(labels, TEST_FRACTION, seed=0)
    chosen = train if split == "train" else test
    pixels = np.rint(digits.images[chosen.numpy()] * (255 / 16)).astype(np.uint8)
    return resize_all(pixels[:, None], size), labels[chosen]
