"""The Lightning data module: training and validation batches of a data set, never its test split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
from torch import Tensor

from dubito.data import Batches, Dataset, open_dataset, split_validation
from dubito.errors import DataError
from dubito.runs.run import DataDescription
from dubito.training.classifier import Progress

__all__ = ["ImageData"]


class ImageData(pl.LightningDataModule):
    """Training and validation batches of a data set by name or path.

    The validation split is stratified and seeded; the test split is not read. `batch_size` counts the images of all
    processes together. Images are scaled to `size` x `size` pixels; None is the data set's own size.
    """

    def __init__(
        self,
        data: str,
        batch_size: int = 128,
        *,
        augment: bool = True,
        crop: int = 2,
        validation_fraction: float = 0.1,
        seed: int = 0,
        size: int | None = None,
        start: Progress | None = None,
    ) -> None:
        super().__init__()
        self.source = open_dataset(data, size=size)
        self.batch_size = batch_size
        self.augment = replace(self.source.augmentation, padding=crop) if augment else None
        self.seed = seed
        self.start = start or Progress()
        images = self.source.train()
        if len(images.class_names) < 2:
            raise DataError(f"{data} has only the class {images.class_names[0]}, but needs two or more.")
        kept, held_out = split_validation(images.labels, validation_fraction, seed)
        if not len(kept) or not len(held_out):
            raise DataError(
                f"{data} has {len(images)} training images, too few to hold out a share of {validation_fraction}."
            )
        self.train_part = images.part(kept)
        self.validation_part = images.part(held_out)

    def describe(self) -> DataDescription:
        """What the trained network must know about the data."""
        part, source = self.train_part, self.source
        names, count = part.class_names, len(part.labels)
        return DataDescription(
            source.name, part.channels, names, part.mean, part.std, source.padding, count, source.size
        )

    def batches(self, part: Dataset, *, train: bool) -> Batches:
        """This process's batches of one part."""
        trainer = self.trainer
        rank, world = (trainer.global_rank, trainer.world_size) if trainer is not None else (0, 1)
        return Batches(
            part.images,
            part.labels,
            self.batch_size // world if train else 256,
            shuffle=train,
            seed=self.seed,
            augment=self.augment if train else None,
            mean=part.mean,
            std=part.std,
            rank=rank,
            world_size=world,
        )

    def train_dataloader(self) -> Any:
        """Shuffled and augmented batches, from the place where a resumed training continues."""
        return _Epochs(self)

    def val_dataloader(self) -> Any:
        """The validation part in order."""
        return self.batches(self.validation_part, train=False)


class _Epochs:
    """Batches of the Trainer's current epoch; the first epoch starts at the batch where a resumed training continues.

    Lightning may ask for an iterator more than once per epoch, so this keeps no count of its own. It has no length,
    for the first epoch may be shorter than the others.
    """

    def __init__(self, images: ImageData) -> None:
        self._images = images
        self._batches = images.batches(images.train_part, train=True)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        trainer, start = self._images.trainer, self._images.start
        epoch = trainer.current_epoch if trainer is not None else 0
        self._batches.set_epoch(start.epoch + epoch)
        return self._batches.iter_from(start.batch if epoch == 0 else 0)
