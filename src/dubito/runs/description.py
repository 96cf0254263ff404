"""What a trained network must know about its data, so that images can be prepared without the training images."""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, BinaryIO

from dubito.class_names import check_class_names

if TYPE_CHECKING:
    from torch import Tensor

    from dubito.data import DataSource, Fit

LARGEST_SIZE = 4096
LONGEST_NAME = 10_000


@dataclass(frozen=True)
class DataDescription:
    """What a trained network knows about its data.

    Attributes:
        name: the data set's name or path.
        channels: 1 for gray images, 3 for colour.
        class_names: the classes in the order of the network's outputs.
        mean, std: of each channel, for pixels in [0, 1].
        padding: black pixels on each side of an image, included in `size`.
        num_data: training images.
        size: height and width of the images that the network takes. Runs without a recorded size have 32.
        fit: what becomes of the proportions of an image that is not square: ``crop``, ``pad`` or ``stretch``. Runs
            without a recorded one were stretched.
    """

    name: str
    channels: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    padding: int
    num_data: int
    size: int = 32
    fit: Fit = "stretch"

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> DataDescription:
        """Read and check the part ``data`` of a run's configuration; a ValueError says what makes no sense.

        >>> content = {"name": "two", "channels": 1, "class_names": ["a", "b"], "mean": [0.5], "std": [0.2]}
        >>> DataDescription.of({**content, "padding": 0, "num_data": 9, "size": 64}).size
        64
        """
        given = {f.name: content[f.name] for f in fields(cls) if f.name in content or f.default is MISSING}
        given["class_names"] = check_class_names(_listed("class_names", given["class_names"]))
        for name in ("mean", "std"):
            given[name] = tuple(float(value) for value in _listed(name, given[name])[:4])
            if not all(map(math.isfinite, given[name])) or (name == "std" and min(given[name], default=1.0) <= 0):
                raise ValueError(f"{name} is {list(given[name])}")
        if not isinstance(given["name"], str) or len(given["name"]) > LONGEST_NAME:
            raise ValueError(f"name is of type {type(given['name']).__name__} or too long")
        from dubito.data.fitting import FITS

        size = given.setdefault("size", cls.size)
        if not isinstance(given.setdefault("fit", cls.fit), str) or given["fit"] not in FITS:
            raise ValueError(f"fit is {reprlib.repr(given['fit'])}")
        ranges = {"channels": (1, 3), "size": (1, LARGEST_SIZE), "num_data": (0, math.inf)}
        for name, (least, most) in ranges.items():
            _check_whole(name, given[name], least, most)
        _check_whole("padding", given["padding"], 0, (size - 1) // 2)
        if given["channels"] == 2 or not len(given["mean"]) == len(given["std"]) == given["channels"]:
            raise ValueError(f"channels is {given['channels']}, with {len(given['mean'])} means")
        return cls(**given)

    def read(self, source: str | os.PathLike[str] | BinaryIO) -> Tensor:
        """An image file as the network's data was read: (channels, size, size) bytes."""
        from dubito.data import read_image

        return read_image(source, self.channels, self.size, self.padding, self.fit)

    def open(self, data: str, *, labelled: bool = True, **options: Any) -> DataSource:
        """A data set, its images made as the network takes them.

        `labelled` is False for images of other classes, see :func:`dubito.data.open_dataset`.
        """
        from dubito.data import open_dataset

        own: dict[str, Any] = {"size": self.size, "fit": self.fit, "channels": self.channels}
        return open_dataset(data, labelled=labelled, statistics=(self.mean, self.std), **own, **options)


def _check_whole(name: str, value: Any, least: int, most: float) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} is {reprlib.repr(value)}")


def _listed(name: str, values: Any) -> list[Any]:
    if not isinstance(values, (list, tuple)):
        raise ValueError(f"{name} is of type {type(values).__name__}, but must be a list")
    return list(values)
