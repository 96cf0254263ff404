"""Images that stay on disk until they are wanted, read by a few threads with a bounded number of them in memory.

Threads suffice: Pillow lets others run while it decodes and resizes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from dubito.data.fitting import Fit, Window
from dubito.data.images import read_pixels
from dubito.errors import DataError

WORKERS = 2
"""Threads that read images, unless another number is asked for."""

PIXELS_AT_ONCE = 2**21
"""Pixels of the images that a network is given at once: 256 images of 90 x 90."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def read_ahead(
    read: Callable[[Item], Result], items: Iterable[Item], workers: int = WORKERS, ahead: int = 64
) -> Iterator[Result]:
    """`read` of each item in their order, done by threads while the caller works on earlier ones.

    At most `ahead` results wait. Threads end with the iterator, also if it is not used up.

    >>> list(read_ahead(abs, [-1, -2, -3]))
    [1, 2, 3]
    """
    remaining = iter(items)
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="dubito-reader")
    try:
        waiting.extend(pool.submit(read, item) for item in islice(remaining, max(ahead, workers)))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(read, item) for item in islice(remaining, 1))
            yield result
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class ImageFiles:
    """Images of one size on disk: what a uint8 tensor (N, C, size, size) is in memory.

    A number as index reads that image; slices, lists, masks and tensors of numbers choose files and read nothing.

    Args:
        paths: the files.
        channels, size, padding, fit: as :func:`dubito.data.read_image` takes them.
        workers: threads that read.
    """

    dtype = torch.uint8
    device = torch.device("cpu")
    ndim = 4

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        channels: int,
        size: int,
        padding: int = 0,
        fit: Fit = "crop",
        workers: int = WORKERS,
    ) -> None:
        self.paths = [os.fspath(path) for path in paths]
        self.channels, self.size, self.padding, self.fit = channels, size, padding, fit
        self.workers = workers

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"ImageFiles({len(self)} files, channels={self.channels}, size={self.size}, fit={self.fit!r})"

    @property
    def shape(self) -> torch.Size:
        """(N, C, size, size)."""
        return torch.Size((len(self), self.channels, self.size, self.size))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int):
            return torch.from_numpy(self.pixels(index))
        chosen = torch.arange(len(self))[index].flatten().tolist()
        return self.like([self.paths[number] for number in chosen])

    def like(self, paths: Sequence[str], *, channels: int | None = None, workers: int | None = None) -> ImageFiles:
        """Other files that are read in the same way, but for what is given."""
        return ImageFiles(paths, channels or self.channels, self.size, self.padding, self.fit, workers or self.workers)

    def pixels(self, number: int, window: Window | None = None) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """One image (C, size, size); a DataError if its file cannot be read."""
        return read_pixels(self.paths[number], self.channels, self.size, self.padding, self.fit, window)

    def try_pixels(self, task: tuple[int, Window | None]) -> np.ndarray[Any, np.dtype[np.uint8]] | DataError:
        """One image, or why its file cannot be read."""
        try:
            return self.pixels(*task)
        except DataError as error:
            return error

    def split(self, size: int) -> Iterator[Tensor]:
        """All images in tensors of `size`; one that cannot be read any more is an error that names it."""
        images = read_ahead(self.pixels, range(len(self)), self.workers, ahead=size)
        while part := list(islice(images, size)):
            yield torch.from_numpy(np.stack(part))

    def read(self) -> Tensor:
        """All images in one tensor."""
        whole = torch.empty(self.shape, dtype=torch.uint8)
        start = 0
        for part in self.split(64):
            whole[start : start + len(part)] = part
            start += len(part)
        return whole


def images_at_once(size: int, most: int = 256) -> int:
    """How many images of `size` pixels a side a network should be given at once, so that memory stays small.

    >>> images_at_once(32), images_at_once(224)
    (256, 41)
    """
    return max(1, min(most, PIXELS_AT_ONCE // size**2))


Images = Tensor | ImageFiles
"""Images (N, C, H, W) of bytes, in memory or on disk."""


def in_memory(images: Images) -> Tensor:
    """The images as a tensor, read if they are on disk."""
    return images if isinstance(images, Tensor) else images.read()


def shrunk(images: Images, largest: int) -> Tensor:
    """The images with at most `largest` pixels a side, in memory."""
    size = images.shape[-1]
    if size <= largest:
        return in_memory(images)
    if isinstance(images, ImageFiles):
        small = ImageFiles(images.paths, images.channels, largest, 0, images.fit, images.workers)
        return small.read()
    parts = [
        interpolate(part.float(), (largest, largest), mode="bilinear", antialias=True) for part in images.split(256)
    ]
    return torch.cat([part.round().clamp(0, 255).byte() for part in parts])


def with_channels(images: Images, channels: int) -> Images:
    """Gray uint8 images (N, C, H, W) as colour or colour as gray, as Pillow does it with files.

    >>> with_channels(torch.full((1, 3, 1, 1), 7, dtype=torch.uint8), 1)
    tensor([[[[7]]]], dtype=torch.uint8)
    """
    if images.shape[1] == channels:
        return images
    if isinstance(images, ImageFiles):
        return images.like(images.paths, channels=channels)
    if channels == 3:
        return images.expand(-1, 3, -1, -1).contiguous()
    weights = torch.tensor([19595, 38470, 7471]).view(1, 3, 1, 1)  # ITU-R 601-2, in 16 bits
    parts = [((part.int() * weights).sum(1, keepdim=True) + 0x8000 >> 16).byte() for part in images.split(1000)]
    return torch.cat(parts)
