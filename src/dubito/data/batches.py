"""Batches straight from memory: images stay uint8 until a whole batch is cropped, flipped and normalised at once.

Order and augmentation are a pure function of (seed, epoch, batch index, rank), so a run that resumes at any batch sees
the batches it would have seen, and nothing here uses or changes the global random state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from dubito.data.normalization import channel_constants, per_channel, standardize
from dubito.errors import DataError, OptionError, ShapeError

__all__ = ["Augmentation", "Batches", "crop_and_flip", "key_seed"]

_ORDER, _AUGMENT = 0, 1
_WORD = (1 << 64) - 1


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


class Batches:
    """An iterable of (images, labels) batches: normalised images on the device, int64 labels.

    Args:
        images: (N, C, H, W), uint8.
        labels: (N,).
        batch_size: Images in a batch, on each rank.
        shuffle: A new order in every epoch.
        seed: Together with the epoch, decides order and augmentation.
        augment: Random crops and flips, or None.
        drop_last: Leave out a last batch that is not full.
        mean, std: Of each channel, for pixels in [0, 1]; None leaves pixels in [0, 1].
        dtype: Of the images that come out.
        device: Where batches go; None is where the images are.
        rank, world_size: This process and how many there are. Each gets every world_size-th image of the same order,
            which is repeated from its start until all have equally many.

    >>> images = torch.zeros(10, 1, 32, 32, dtype=torch.uint8)
    >>> batches = Batches(images, torch.arange(10), batch_size=4, shuffle=True, seed=1)
    >>> batches.set_epoch(3)
    >>> [len(labels) for _, labels in batches]
    [4, 4, 2]
    >>> resumed = batches.iter_from(2)
    >>> torch.equal(next(resumed)[1], list(batches)[2][1])
    True
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        batch_size: int = 128,
        *,
        shuffle: bool = False,
        seed: int = 0,
        augment: Augmentation | None = None,
        drop_last: bool = False,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if images.ndim != 4 or images.dtype != torch.uint8:
            raise ShapeError(f"images are {images.dtype} {tuple(images.shape)}, but must be torch.uint8 (N, C, H, W).")
        if labels.shape != images.shape[:1]:
            raise ShapeError(f"labels are {tuple(labels.shape)}, but {len(images)} images need ({len(images)},).")
        if len(images) == 0:
            raise DataError("there are no images to make batches of.")
        if batch_size < 1:
            raise OptionError(f"batch_size is {batch_size}, but must be at least 1.")
        if not 0 <= rank < world_size:
            raise OptionError(f"rank is {rank}, but must be from 0 to world_size - 1 = {world_size - 1}.")
        if seed < 0:
            raise OptionError(f"seed is {seed}, but must be 0 or more.")
        self.images = images.contiguous()
        self.labels = labels.to(torch.int64)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.augment = augment
        self.drop_last = drop_last
        self.dtype = dtype
        self.device = torch.device(device) if device is not None else images.device
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.mean, self.std = per_channel(images.shape[1], mean, std)
        self._shift, self._scale = channel_constants(self.mean, self.std, dtype, self.device)

    @property
    def num_images(self) -> int:
        """Images that an epoch gives on this rank."""
        own = -(-len(self.images) // self.world_size)
        return own - own % self.batch_size if self.drop_last else own

    def __len__(self) -> int:
        return -(-self.num_images // self.batch_size)

    @property
    def sampler(self) -> Batches:
        """This object; Lightning calls `sampler.set_epoch` of a loader at the start of every epoch."""
        return self

    @property
    def batch_sampler(self) -> Batches:
        """This object too; Lightning asks for both."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the iterators that are made from now on."""
        if epoch < 0:
            raise OptionError(f"epoch is {epoch}, but must be 0 or more.")
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.iter_from(0)

    def iter_from(self, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The current epoch from batch number `batch` on; the skipped ones cost nothing."""
        if not 0 <= batch <= len(self):
            raise OptionError(f"batch is {batch}, but this epoch has batches 0 to {len(self) - 1}.")
        return self._batches(batch, self.epoch)

    def order(self, epoch: int | None = None) -> Tensor:
        """The indices of the images that this rank sees in an epoch, in their order."""
        total = len(self.images)
        if self.shuffle:
            generator = _generator(self.seed, self.epoch if epoch is None else epoch, _ORDER)
            order = torch.randperm(total, generator=generator)
        else:
            order = torch.arange(total)
        if self.world_size > 1:
            own = -(-total // self.world_size)
            order = order.repeat(-(-own * self.world_size // total))[: own * self.world_size]
            order = order[self.rank :: self.world_size]
        return order[: self.num_images]

    def _batches(self, first: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = self.order(epoch).to(self.images.device)
        in_order = not self.shuffle and self.world_size == 1
        for batch in range(first, len(self)):
            start, end = batch * self.batch_size, min((batch + 1) * self.batch_size, self.num_images)
            if in_order:  # a view is enough
                images, labels = self.images[start:end], self.labels[start:end]
            else:
                index = order[start:end]
                images = self.images.index_select(0, index)
                labels = self.labels.index_select(0, index.to(self.labels.device))
            images = images.to(self.device, non_blocking=True)
            if self.augment is not None:
                generator = _generator(self.seed, epoch, _AUGMENT, batch, self.rank)
                images = _augment(images, self.augment, generator)
            images = standardize(images, self._shift, self._scale, self.dtype)
            yield images, labels.to(self.device, non_blocking=True)


def _augment(images: Tensor, augment: Augmentation, generator: torch.Generator) -> Tensor:
    """Draw offsets and flips on the CPU, so that every device sees the same, and apply them."""
    count = len(images)
    offsets = torch.randint(0, 2 * augment.padding + 1, (2, count), generator=generator)
    flips = torch.rand(count, generator=generator) < 0.5
    return crop_and_flip(images, augment.padding, offsets[0], offsets[1], flips if augment.flip else None)


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


def key_seed(*key: int) -> int:
    """A seed of its own for each key; the mixing function of SplitMix64 makes neighbouring keys independent."""
    state = 0
    for part in key:
        state = (state + part + 0x9E3779B97F4A7C15) & _WORD
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _WORD
        state ^= state >> 31
    return state >> 1


def _generator(*key: int) -> torch.Generator:
    return torch.Generator().manual_seed(key_seed(*key))
