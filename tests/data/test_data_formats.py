"""Official files: read exactly, and refused with a sentence that names the file and the reason."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import cifar_records, idx, write_cifar, write_gzip, write_mnist
from PIL import Image

from dubito.data import load, open_dataset, read_image, statistics
from dubito.data.formats import read_cifar, read_class_names, read_idx_images, read_idx_labels
from dubito.data.registry import DatasetInfo
from dubito.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 28, 28)).astype(np.uint8)


def sentence(error: pytest.ExceptionInfo[DataError], *parts: str) -> None:
    text = str(error.value)
    assert text.endswith(".")
    assert "\n" not in text
    for part in parts:
        assert part in text


def test_idx_images_and_labels_come_back_as_written(tmp_path: Path) -> None:
    images = write_gzip(tmp_path / "images.gz", idx(IMAGES))
    labels = write_gzip(tmp_path / "labels.gz", idx(np.arange(7)))
    assert np.array_equal(read_idx_images(images, count=7), IMAGES)
    assert read_idx_labels(labels, classes=10, count=7).tolist() == list(range(7))


WHOLE = gzip.compress(idx(IMAGES))
BROKEN = {
    "not gzip": (idx(IMAGES), "not a complete gzip file"),
    "empty": (b"", "truncated"),
    "cut gzip": (WHOLE[:-2000], "not a complete gzip file"),
    "cut gzip checksum": (WHOLE[:-4], "not a complete gzip file"),
    "flipped gzip bit": (WHOLE[:-6] + bytes([WHOLE[-6] ^ 1]) + WHOLE[-5:], "not a complete gzip file"),
    "cut header": (gzip.compress(idx(IMAGES)[:10]), "truncated"),
    "wrong magic": (gzip.compress(idx(np.arange(40))), "0x00000801"),
    "too few bytes": (gzip.compress(idx(IMAGES)[:-1]), "fewer bytes"),
    "too many bytes": (gzip.compress(idx(IMAGES) + b"x"), "more bytes"),
    "wrong count": (gzip.compress(idx(IMAGES[:6])), "holds 6 images, but must hold 7"),
    "absurd sides": (gzip.compress(np.array([0x803, 7, 1 << 30, 1], ">u4").tobytes()), "corrupt"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_idx_files_are_refused_by_name_and_reason(tmp_path: Path, fault: str) -> None:
    content, reason = BROKEN[fault]
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_idx_images(path, count=7)
    sentence(error, str(path), reason)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for read in (read_idx_images, read_class_names, lambda path: read_cifar(path, 1, 10)):
        with pytest.raises(DataError) as error:
            read(tmp_path / "absent")
        sentence(error, str(tmp_path / "absent"), "does not exist")


def test_idx_labels_out_of_range_are_refused(tmp_path: Path) -> None:
    path = write_gzip(tmp_path / "labels.gz", idx(np.array([0, 9, 10])))
    with pytest.raises(DataError) as error:
        read_idx_labels(path, classes=10)
    sentence(error, str(path), "image 2 the label 10", "0 to 9")


@pytest.mark.parametrize(("label_bytes", "classes"), [(1, 10), (2, 100)])
def test_cifar_records_come_back_as_written(tmp_path: Path, label_bytes: int, classes: int) -> None:
    records = cifar_records(12, classes, label_bytes)
    records.tofile(tmp_path / "batch.bin")
    images, labels = read_cifar(tmp_path / "batch.bin", label_bytes, classes, count=12)
    assert labels.tolist() == [i % classes for i in range(12)]
    # red plane, then green, then blue, each row by row
    assert images[3, 1, 2, 5] == records[3, label_bytes + 1024 + 2 * 32 + 5]
    assert np.array_equal(images.reshape(12, -1), records[:, label_bytes:])


@pytest.mark.parametrize("change", [-1, 1, -3073, -12 * 3073])
def test_cifar_files_of_the_wrong_size_are_refused(tmp_path: Path, change: int) -> None:
    content = cifar_records(12, 10, 1).tobytes() + b"x"
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(content[: 12 * 3073 + change])
    with pytest.raises(DataError) as error:
        read_cifar(path, 1, 10, count=12)
    sentence(error, str(path), f"has {12 * 3073 + change} bytes", f"must have {12 * 3073}")


def test_cifar_labels_out_of_range_are_refused(tmp_path: Path) -> None:
    records = cifar_records(5, 10, 1)
    records[4, 0] = 77
    records.tofile(tmp_path / "test_batch.bin")
    with pytest.raises(DataError) as error:
        read_cifar(tmp_path / "test_batch.bin", 1, 10)
    sentence(error, "test_batch.bin", "image 4 the label 77")


def test_class_names_must_be_the_official_ones(tmp_path: Path) -> None:
    path = tmp_path / "batches.meta.txt"
    path.write_text("cat\ndog\n\n")
    assert read_class_names(path, ["cat", "dog"]) == ("cat", "dog")
    for expected, reason in ((["dog", "cat"], "0 is 'cat' instead of 'dog'"), (["cat"], "2 names instead of 1")):
        with pytest.raises(DataError) as error:
            read_class_names(path, expected)
        sentence(error, str(path), reason)


@pytest.mark.usefixtures("tiny")
def test_mnist_is_padded_with_black_to_32(tmp_path: Path) -> None:
    arrays = write_mnist(tmp_path)
    for split, prefix in (("train", "train"), ("test", "t10k")):
        data = load("mnist", split, mirror=tmp_path)  # type: ignore[arg-type]
        original = torch.from_numpy(arrays[f"{prefix}-images-idx3-ubyte.gz"])
        assert data.images.dtype == torch.uint8
        assert data.labels.dtype == torch.int64
        assert torch.equal(data.images[:, 0, 2:30, 2:30].long(), original)
        assert int(data.images.long().sum()) == int(original.sum())
        assert data.labels.tolist() == arrays[f"{prefix}-labels-idx1-ubyte.gz"].tolist()


@pytest.mark.usefixtures("tiny")
def test_known_data_at_another_size_is_as_an_image_file_would_be(tmp_path: Path) -> None:
    """Resized between black frames that grow with the image, and normalised by statistics of its own."""
    arrays = write_mnist(tmp_path)
    source = open_dataset("mnist", mirror=tmp_path, size=48)
    data = source.train()
    assert (source.padding, data.images.shape[1:]) == (3, (1, 48, 48))
    file = tmp_path / "first.png"
    Image.fromarray(arrays["train-images-idx3-ubyte.gz"][0].astype(np.uint8)).save(file)
    assert torch.equal(data.images[0], read_image(file, 1, size=48, padding=source.padding))
    assert (data.mean, data.std) == statistics(data.images) == source.statistics
    test = source.test()
    assert (test.mean, test.std) == (data.mean, data.std)


def test_cifar_splits_are_the_official_files_in_order(tmp_path: Path, tiny: dict[str, DatasetInfo]) -> None:
    for name in ("cifar10", "cifar100"):
        arrays = write_cifar(tmp_path, tiny[name])
        label_bytes = 1 if name == "cifar10" else 2
        for split, files in (
            ("train", [f for f in arrays if "test" not in f]),
            ("test", [f for f in arrays if "test" in f]),
        ):
            data = load(name, split, mirror=tmp_path)  # type: ignore[arg-type]
            records = np.concatenate([arrays[file] for file in files])
            assert np.array_equal(data.images.numpy().reshape(len(records), -1), records[:, label_bytes:])
            assert data.labels.tolist() == records[:, label_bytes - 1].tolist()
            assert data.class_names == tiny[name].class_names


@pytest.mark.usefixtures("tiny")
def test_mislabelled_mnist_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    labels = write_gzip(tmp_path / "mnist" / "train-labels-idx1-ubyte.gz", idx(np.arange(19) % 10))
    with pytest.raises(DataError) as error:
        load("mnist", "train", mirror=tmp_path)
    sentence(error, "20 images", str(labels), "19 labels")
    write_gzip(tmp_path / "mnist" / "train-images-idx3-ubyte.gz", idx(np.zeros((19, 28, 28))))
    with pytest.raises(DataError) as error:
        load("mnist", "train", mirror=tmp_path)
    sentence(error, "19 train images", "must hold 20")
    write_gzip(tmp_path / "mnist" / "train-images-idx3-ubyte.gz", idx(np.zeros((19, 32, 32))))
    with pytest.raises(DataError) as error:
        load("mnist", "train", mirror=tmp_path)
    sentence(error, "train-images", "32 x 32", "28 x 28")
