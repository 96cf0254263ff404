"""The Lightning data module: training and validation batches of a data set, never its test split."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
from torch import Tensor

from dubito.data import Augmentation, Batches, Dataset, Fit, PhotoAugmentation, images_at_once, open_dataset
from dubito.errors import DataError
from dubito.runs.description import DataDescription
from dubito.training.classifier import Progress


class ImageData(pl.LightningDataModule):
    """Training and validation batches of a data set by name or path.

    Validation images are those of the data set, or, if it has none, held out from its training images by class and
    `split_seed`, which is `seed` unless given; the test split is not read. `batch_size` counts the images of all
    processes together. `size`, `fit`, `strict` and `workers` are as in :func:`dubito.data.open_dataset`; `crop` is how
    far small images are shifted, and `flip` whether images are mirrored, None being as suits the data set.
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
        split_seed: int | None = None,
        size: int | None = None,
        fit: Fit | None = None,
        flip: bool | None = None,
        strict: bool = False,
        workers: int = 2,
        start: Progress | None = None,
    ) -> None:
        super().__init__()
        self.source = source = open_dataset(data, size=size, fit=fit, strict=strict, workers=workers)
        self.batch_size = batch_size
        self.seed = seed
        self.start = start or Progress()
        if len(source.class_names) < 2:
            raise DataError(f"{data} has only the class {source.class_names[0]}, but needs two or more.")
        self.augment = self._augmentation(crop, flip) if augment else None
        self.train_part, self.validation_part = source.parts(
            validation_fraction, seed if split_seed is None else split_seed
        )
        if not len(self.train_part) or not len(self.validation_part):
            raise DataError(
                f"{data} has {len(self.train_part) + len(self.validation_part)} training images, too few to hold out a "
                f"share of {validation_fraction}."
            )

    def _augmentation(self, crop: int, flip: bool | None) -> Augmentation | PhotoAugmentation:
        usual = self.source.augmentation
        flip = usual.flip if flip is None else flip
        if isinstance(usual, PhotoAugmentation):
            return replace(usual, flip=flip)
        return replace(usual, padding=crop, flip=flip)

    def reordered(self, seed: int) -> ImageData:
        """The same images with the order and augmentation of another seed, from the start."""
        other = copy.copy(self)
        other.seed, other.start, other.trainer = seed, Progress(), None
        return other

    def describe(self) -> DataDescription:
        """What the trained network will know about the data."""
        part, source = self.train_part, self.source
        names, count = part.class_names, len(part.labels)
        return DataDescription(
            source.name, part.channels, names, part.mean, part.std, source.padding, count, source.size, source.fit
        )

    def batches(self, part: Dataset, *, train: bool) -> Batches:
        """This process's batches of one part."""
        trainer = self.trainer
        rank, world = (trainer.global_rank, trainer.world_size) if trainer is not None else (0, 1)
        return Batches(
            part.images,
            part.labels,
            self.batch_size // world if train else images_at_once(part.size),
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
