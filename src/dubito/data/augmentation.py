"""Random changes of training images that keep their label."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from dubito.data.fitting import Window
from dubito.errors import OptionError


@dataclass(frozen=True)
class Augmentation:
    """Random changes that keep the label.

    `padding` black pixels are added on each side before a window of the original size is cut out at random, and with
    `flip` half of the images are mirrored left to right.
    """

    padding: int = 4
    flip: bool = False

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise OptionError(f"padding is {self.padding}, but must be 0 or more pixels.")


@dataclass(frozen=True)
class PhotoAugmentation:
    """Random parts of photographs, scaled to the network's size when they are read from disk.

    A part has a share of the photograph's area drawn from `area`, and a ratio of width to height whose logarithm is
    drawn between those of `ratio`. With `flip` half of them are mirrored left to right.
    """

    area: tuple[float, float] = (0.35, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise OptionError(f"area is {self.area}, but must be two rising shares above 0 and up to 1.")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise OptionError(f"ratio is {self.ratio}, but must be two rising positive numbers.")

    def windows(self, count: int, generator: torch.Generator) -> list[Window]:
        """A random window for each of `count` images.

        >>> len(PhotoAugmentation().windows(3, torch.Generator().manual_seed(0)))
        3
        """
        area, ratio, x, y, flip = torch.rand(5, count, generator=generator, dtype=torch.float64)
        area = self.area[0] + area * (self.area[1] - self.area[0])
        low, high = map(math.log, self.ratio)
        ratio = (low + ratio * (high - low)).exp()
        rows = zip(*(column.tolist() for column in (area, ratio, x, y, flip)), strict=True)
        return [Window(a, r, left, top, self.flip and turned < 0.5) for a, r, left, top, turned in rows]


def augment(images: Tensor, how: Augmentation, generator: torch.Generator) -> Tensor:
    """Draw offsets and flips on the CPU, so that every device sees the same, and apply them."""
    count = len(images)
    offsets = torch.randint(0, 2 * how.padding + 1, (2, count), generator=generator)
    flips = torch.rand(count, generator=generator) < 0.5
    return crop_and_flip(images, how.padding, offsets[0], offsets[1], flips if how.flip else None)


def crop_and_flip(images: Tensor, padding: int, top: Tensor, left: Tensor, flips: Tensor | None = None) -> Tensor:
    """Cut a window out of each zero-padded image at (top, left), then mirror those that `flips` marks.

    Every image row is a contiguous run of bytes in the padded batch, so an overlapping view of all such runs turns
    the whole batch into a single index_select of rows.

    >>> image = torch.arange(4, dtype=torch.uint8).reshape(1, 1, 2, 2)
    >>> crop_and_flip(image, 1, torch.tensor([0]), torch.tensor([1]), torch.tensor([True])).flatten().tolist()
    [0, 0, 1, 0]
    """
    count, channels, height, width = images.shape
    tall, wide = height + 2 * padding, width + 2 * padding
    padded = images.new_zeros(count, channels, tall, wide)
    inside = padded[:, :, padding : padding + height, padding : padding + width]
    place = torch.arange(count)  # of each image in the padded batch
    top, left = top.cpu(), left.cpu()
    if flips is None:
        inside.copy_(images)
    else:
        # Straight images first, mirrored ones behind them: two large copies instead of a choice for every pixel.
        flips = flips.cpu()
        order = torch.argsort(flips.to(torch.uint8), stable=True)
        place[order] = torch.arange(count)
        straight = count - int(flips.sum())
        index = order.to(images.device)
        inside[:straight] = images.index_select(0, index[:straight])
        inside[straight:] = images.index_select(0, index[straight:]).flip(-1)
        left = torch.where(flips, 2 * padding - left, left)  # the window's place in the mirrored image
    runs = padded.as_strided((padded.numel() - width + 1, width), (1, 1))
    first = (place * (channels * tall) + top) * wide + left
    rows = first.to(images.device)[:, None] + _row_offsets(channels, height, tall, wide, images.device)
    return runs.index_select(0, rows.view(-1)).view(count, channels, height, width)


@lru_cache(maxsize=16)
def _row_offsets(channels: int, height: int, tall: int, wide: int, device: torch.device) -> Tensor:
    """Where the rows of a window lie, counted from its first pixel, in images of `tall` x `wide` pixels."""
    planes = torch.arange(channels, device=device)[:, None] * tall
    return ((planes + torch.arange(height, device=device)) * wide).view(1, -1)
