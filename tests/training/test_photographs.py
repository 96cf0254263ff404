"""Training data from a folder of photographs: what is decided, described and repeated."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dubito.data import Augmentation, ImageFiles, PhotoAugmentation, read_image
from dubito.runs.description import DataDescription
from dubito.tables import Listing
from dubito.training import ImageData


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    random = np.random.default_rng(0)
    for split, count in (("train", 6), ("validation", 3), ("test", 2)):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (100, 130, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.jpg")
    return folder


def test_a_folder_of_photographs_is_described_and_read_from_disk(photographs: Path) -> None:
    images = ImageData(str(photographs), batch_size=4)
    data = images.describe()
    assert (data.size, data.fit, data.padding, data.num_data) == (96, "crop", 0, 12)
    assert isinstance(images.train_part.images, ImageFiles)
    assert len(images.validation_part) == 6
    assert images.augment == PhotoAugmentation(flip=True)
    assert ImageData(str(photographs), flip=False).augment == PhotoAugmentation(flip=False)
    small = ImageData(str(photographs), size=48, fit="pad", crop=3)
    assert isinstance(small.train_part.images, torch.Tensor)
    assert small.augment == Augmentation(padding=3, flip=False)
    assert small.describe().fit == "pad"
    batch, labels = next(iter(images.batches(images.train_part, train=True)))
    assert batch.shape == (4, 3, 96, 96)
    assert set(labels.tolist()) <= {0, 1}


def test_a_description_repeats_how_files_become_images(photographs: Path) -> None:
    data = ImageData(str(photographs), size=80, fit="pad").describe()
    again = DataDescription.of(asdict(data))
    assert again == data
    path = photographs / "test" / "cat" / "0.jpg"
    assert torch.equal(again.read(path), read_image(path, 3, 80, fit="pad"))
    assert torch.equal(again.open(str(photographs)).test().images[0], again.read(path))
    old = {name: value for name, value in asdict(data).items() if name != "fit"}
    assert DataDescription.of(old).fit == "stretch"  # as files were read when nothing was recorded
    with pytest.raises(ValueError, match="fit is 'squeeze'"):
        DataDescription.of({**asdict(data), "fit": "squeeze"})


def test_files_in_class_folders_have_a_true_class(photographs: Path) -> None:
    data = replace(ImageData(str(photographs)).describe(), class_names=("cat", "horse"))

    def truths(place: Path) -> list[str | None]:
        return [truth for chunk in Listing([str(place)], data).chunks() for truth in chunk.read(data).truths]

    assert truths(photographs / "test") == ["cat", "cat", None, None]
    whole = truths(photographs)
    assert whole.count("cat") == len(whole) / 2
    assert truths(photographs / "test" / "cat" / "0.jpg") == [None]
