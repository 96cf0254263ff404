"""Data sets: known ones by name, the user's own by path, and batches of them.

>>> source = open_dataset("digits")
>>> train = source.train()
>>> kept, held_out = split_validation(train.labels, fraction=0.1, seed=0)
>>> batches = Batches(
...     train.images[kept], train.labels[kept], 64, shuffle=True, augment=source.augmentation,
...     mean=train.mean, std=train.std,
... )
>>> images, labels = next(iter(batches))
>>> images.shape, images.dtype
(torch.Size([64, 1, 32, 32]), torch.float32)
"""

from __future__ import annotations

from dubito.data.augmentation import Augmentation, PhotoAugmentation, crop_and_flip
from dubito.data.batches import Batches
from dubito.data.dataset import Dataset, DataSource, load, open_dataset, statistics
from dubito.data.download import Status, cache_folder, fetch, status
from dubito.data.fitting import Fit
from dubito.data.images import read_image
from dubito.data.noise import add_pixel_noise
from dubito.data.normalization import channel_constants, normalize, standardize
from dubito.data.reading import ImageFiles, Images, images_at_once, in_memory, shrunk, with_channels
from dubito.data.registry import DATASETS, IMAGE_SIZE, Archive, DataFile, DatasetInfo, dataset_info
from dubito.data.splits import split_validation

__all__ = [
    "DATASETS",
    "IMAGE_SIZE",
    "Archive",
    "Augmentation",
    "Batches",
    "DataFile",
    "DataSource",
    "Dataset",
    "DatasetInfo",
    "Fit",
    "ImageFiles",
    "Images",
    "PhotoAugmentation",
    "Status",
    "add_pixel_noise",
    "cache_folder",
    "channel_constants",
    "crop_and_flip",
    "dataset_info",
    "fetch",
    "images_at_once",
    "in_memory",
    "load",
    "normalize",
    "open_dataset",
    "read_image",
    "shrunk",
    "split_validation",
    "standardize",
    "statistics",
    "status",
    "with_channels",
]
