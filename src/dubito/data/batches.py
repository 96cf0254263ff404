"""Batches from memory or disk: images stay uint8 until a whole batch is cropped, flipped and normalised at once.

Order and augmentation are a pure function of (seed, epoch, batch index, rank), so a run that resumes at any batch sees
the batches it would have seen, and nothing here uses or changes the global random state.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from dubito.data.augmentation import Augmentation, PhotoAugmentation, augment
from dubito.data.fitting import Window
from dubito.data.normalization import channel_constants, per_channel, standardize
from dubito.data.reading import Images, read_ahead
from dubito.errors import DataError, DubitoWarning, OptionError, ShapeError

AHEAD = 2
"""Batches that are read from disk before they are wanted."""

_ORDER, _AUGMENT = 0, 1
_WORD = (1 << 64) - 1


class Batches:
    """An iterable of (images, labels) batches: normalised images on the device, int64 labels.

    Every loop over them is an epoch of its own, with a new order and new augmentation: the first is epoch 0, or the one
    that `set_epoch` was given, and each `iter()` begins the next. `iter_from` begins none.

    Images on disk are read by threads, a few batches ahead. A file that cannot be read any more is left out of its
    batch, with a warning.

    Args:
        images: (N, C, H, W), uint8, or :class:`dubito.data.ImageFiles`.
        labels: (N,).
        batch_size: Images in a batch, on each rank.
        shuffle: A new order in every epoch.
        seed: Together with the epoch, decides order and augmentation.
        augment: Random crops and flips, or None. :class:`PhotoAugmentation` needs images on disk.
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
    >>> batches.epoch
    4
    >>> resumed = batches.iter_from(2)
    >>> torch.equal(next(resumed)[1], list(batches)[2][1])
    True
    """

    def __init__(
        self,
        images: Images,
        labels: Tensor,
        batch_size: int = 128,
        *,
        shuffle: bool = False,
        seed: int = 0,
        augment: Augmentation | PhotoAugmentation | None = None,
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
        if isinstance(augment, PhotoAugmentation) and isinstance(images, Tensor):
            raise OptionError("augment is a PhotoAugmentation, which needs images on disk, but these are in memory.")
        if batch_size < 1:
            raise OptionError(f"batch_size is {batch_size}, but must be at least 1.")
        if not 0 <= rank < world_size:
            raise OptionError(f"rank is {rank}, but must be from 0 to world_size - 1 = {world_size - 1}.")
        if seed < 0:
            raise OptionError(f"seed is {seed}, but must be 0 or more.")
        self.images = images.contiguous() if isinstance(images, Tensor) else images
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
        """Set the epoch of the next loop, and of `iter_from`."""
        if epoch < 0:
            raise OptionError(f"epoch is {epoch}, but must be 0 or more.")
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        batches = self.iter_from(0)
        self.epoch += 1
        return batches

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
        if isinstance(self.images, Tensor):
            found = self._in_memory(self.images, first, epoch)
        else:
            found = self._on_disk(first, epoch)
        for batch, (images, labels) in enumerate(found, start=first):
            images = images.to(self.device, non_blocking=True)
            if isinstance(self.augment, Augmentation):
                images = augment(images, self.augment, self._generator(epoch, batch))
            images = standardize(images, self._shift, self._scale, self.dtype)
            yield images, labels.to(self.device, non_blocking=True)

    def _in_memory(self, whole: Tensor, first: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = self.order(epoch).to(whole.device)
        in_order = not self.shuffle and self.world_size == 1
        for batch in range(first, len(self)):
            part = self._part(batch)
            if in_order:  # a view is enough
                yield whole[part], self.labels[part]
            else:
                index = order[part]
                yield whole.index_select(0, index), self.labels.index_select(0, index.to(self.labels.device))

    def _on_disk(self, first: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Each image is read with its own window, which its place in the epoch decides: workers change nothing."""
        assert not isinstance(self.images, Tensor)
        order = self.order(epoch)

        def tasks() -> Iterator[tuple[int, Window | None]]:
            for batch in range(first, len(self)):
                index = order[self._part(batch)].tolist()
                windows: Sequence[Window | None] = [None] * len(index)
                if isinstance(self.augment, PhotoAugmentation):
                    windows = self.augment.windows(len(index), self._generator(epoch, batch))
                yield from zip(index, windows, strict=True)

        results = read_ahead(self.images.try_pixels, tasks(), self.images.workers, AHEAD * self.batch_size)
        for batch in range(first, len(self)):
            index = order[self._part(batch)]
            found = list(islice(results, len(index)))
            errors = [result for result in found if isinstance(result, DataError)]
            if len(errors) == len(found):
                raise errors[0]
            for error in errors:
                warnings.warn(f"{error} It is left out of its batch.", DubitoWarning, stacklevel=2)
            images = [result for result in found if not isinstance(result, DataError)]
            readable = torch.tensor([not isinstance(result, DataError) for result in found])
            yield torch.from_numpy(np.stack(images)), self.labels[index[readable].to(self.labels.device)]

    def _part(self, batch: int) -> slice:
        """Where a batch lies in the order of the epoch."""
        return slice(batch * self.batch_size, min((batch + 1) * self.batch_size, self.num_images))

    def _generator(self, epoch: int, batch: int) -> torch.Generator:
        """The random numbers of a batch's augmentation, drawn on the CPU so that every device sees the same."""
        return _generator(self.seed, epoch, _AUGMENT, batch, self.rank)


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
