"""Archives of strangers: one sentence each, no pickle, and no more memory than the limit."""

from __future__ import annotations

import gzip
import io
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dubito.data import load, open_dataset
from dubito.data.archive import Arrays
from dubito.data.formats import read_idx_images
from dubito.errors import DataError

PIXELS, LABELS = np.zeros((10, 8, 8), np.uint8), np.arange(10) % 2
MEGABYTE = 2**20


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Numpy and Python may not have more memory at a time than this."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def declared(header: str, content: bytes = b"", version: int = 1) -> bytes:
    """An .npy file that says of itself what it likes."""
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + header.encode("latin1") + content


def array(shape: object, descr: str = "|u1", content: bytes = b"") -> bytes:
    return declared(f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}", content)


def archive(path: Path, images: bytes, labels: bytes = npy(LABELS), **options: int) -> Path:
    with zipfile.ZipFile(path, "w", **options) as made:  # type: ignore[arg-type]
        made.writestr("images.npy", images)
        made.writestr("labels.npy", labels)
    return path


NASTY: dict[str, tuple[bytes, str]] = {
    "terabyte": (array((10, 10**6, 10**5)), "takes 1000000000000 bytes, .* set DUBITO_MAX_UNPACKED_BYTES"),
    "negative side": (array((10, -8, 8)), "it has the shape"),
    "truth for a side": (array((10, True, 8)), "it has the shape"),
    "short": (array((10, 8, 8), content=b"abc"), "more or fewer bytes"),
    "long": (npy(PIXELS) + b"x", "more or fewer bytes"),
    "not numpy": (b"GIF89a", "cannot be read"),
    "empty": (b"", "cannot be read"),
    "other version": (declared("{}", version=3), "version 3.0"),
    "header that ends": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{'descr'", "cannot be read"),
    "header of a megabyte": (declared(" " * MEGABYTE, version=2), "cannot be read"),
    "deep header": (declared("-" * 9000 + "1"), "cannot be read"),
    "nested header": (declared("(" * 5000 + ")" * 5000), "cannot be read"),
    "no dictionary": (declared("[1, 2]"), "cannot be read"),
    "objects": (npy(np.array([{}] * 10)), "Object arrays are pickles"),
    "records": (npy(np.zeros(10, [("a", "u1"), ("b", "f4")])), "neither numbers nor text"),
    "nothing for an item": (array((10**15, 1, 1), "|V0"), "neither numbers nor text"),
    "dates": (npy(np.zeros((10, 8, 8), "M8[s]")), "neither numbers nor text"),
    "text": (npy(np.full((10, 8, 8), "a")), "must be uint8"),
    "unknown type": (array((10, 8, 8), "|x9"), "cannot be read"),
}


@pytest.mark.parametrize("fault", NASTY)
def test_arrays_that_lie_are_refused_in_a_sentence(tmp_path: Path, fault: str) -> None:
    content, reason = NASTY[fault]
    path = archive(tmp_path / "own.npz", content)
    with at_most(4 * MEGABYTE), pytest.raises(DataError, match=reason) as error:
        load(path, "train")
    text = str(error.value)
    assert str(path) in text
    assert text.endswith(".")
    assert "\n" not in text
    assert len(text) < 600


LABELLINGS = {
    "beyond 64 bits": (npy(np.full(10, 2**63 + 1, np.uint64)), "has the label 9223372036854775809"),
    "one number": (npy(np.array(3)), "must be a non-empty vector"),
    "far too many": (array((2**28,)), "labels .* takes"),
    "another number of them": (npy(LABELS[:9]), "holds 10 images, but 9 labels"),
}


@pytest.mark.parametrize("fault", LABELLINGS)
def test_labels_that_lie_are_refused_in_a_sentence(tmp_path: Path, fault: str) -> None:
    content, reason = LABELLINGS[fault]
    with pytest.raises(DataError, match=reason):
        load(archive(tmp_path / "own.npz", npy(PIXELS), content), "train")


def test_a_small_archive_cannot_unpack_to_gigabytes(tmp_path: Path) -> None:
    """Neither in the archive, nor by enlarging its images."""
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        with made.open("images.npy", "w") as member:
            member.write(array((300, 1024, 1024)))
            for _ in range(300):
                member.write(bytes(MEGABYTE))
        made.writestr("labels.npy", npy(np.arange(300) % 2))
    with at_most(4 * MEGABYTE), pytest.raises(DataError, match="takes 314572800 bytes, but a file of"):
        load(tmp_path / "bomb.npz", "train")
    tiny = archive(tmp_path / "tiny.npz", npy(np.zeros((300_000, 1, 1), np.uint8)), npy(np.arange(300_000) % 2))
    with at_most(16 * MEGABYTE), pytest.raises(DataError, match="at 32 x 32 pixels takes 307200000 bytes"):
        load(tiny, "train")


def test_the_bound_of_unpacked_bytes_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.npz"
    np.savez_compressed(path, images=np.zeros((100, 32, 32), np.uint8), labels=np.arange(100) % 2)
    assert len(load(path, "train")) == 80
    monkeypatch.setenv("DUBITO_MAX_UNPACKED_BYTES", "50000")
    with pytest.raises(DataError, match="takes 102400 bytes"):
        load(path, "train")
    monkeypatch.setenv("DUBITO_MAX_UNPACKED_RATIO", "1000")
    assert len(load(path, "train")) == 80


def encrypted(path: Path) -> None:
    """Set the bit that says so, before each member and in the directory."""
    content = path.read_bytes().replace(b"PK\x03\x04\x14\x00\x00", b"PK\x03\x04\x14\x00\x01")
    path.write_bytes(content.replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"))


def corrupted(path: Path) -> None:
    content = path.read_bytes()
    place = content.index(b"\x93NUMPY") + 200
    path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "encrypted": (encrypted, "it is encrypted"),
    "checksum": (corrupted, "cannot be read: Bad CRC-32"),
    "cut": (cut, r"own\.npz cannot be read as an \.npz of arrays"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_odd_zip_files_are_refused_in_a_sentence(tmp_path: Path, fault: str) -> None:
    change, reason = FAULTS[fault]
    path = archive(tmp_path / "own.npz", npy(PIXELS))
    change(path)
    with pytest.raises(DataError, match=reason):
        load(path, "train")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_ways_of_packing_that_numpy_does_not_have_are_refused(tmp_path: Path, method: int) -> None:
    path = archive(tmp_path / "own.npz", npy(PIXELS), compression=method)
    with pytest.raises(DataError, match="a compression that numpy does not use"):
        load(path, "train")


def test_arrays_come_back_as_numpy_wrote_them(tmp_path: Path) -> None:
    values = {
        "c": np.arange(24, dtype=">i2").reshape(2, 3, 4),
        "fortran": np.asfortranarray(np.arange(24.0).reshape(4, 6)),
        "text": np.array(["a", "bc"]),
        "scalar": np.array(3),
        "none": np.zeros((0, 4)),
    }
    np.savez_compressed(tmp_path / "all.npz", **values)  # type: ignore[arg-type]
    arrays = Arrays(tmp_path / "all.npz")
    assert arrays.names == set(values)
    for name, value in values.items():
        found = arrays.read(name)
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        assert np.array_equal(found, value)


def test_class_names_of_an_archive_may_be_bytes_but_not_anything(tmp_path: Path) -> None:
    def named(names: np.ndarray) -> tuple[str, ...]:
        np.savez(tmp_path / "own.npz", images=PIXELS, labels=LABELS, class_names=names)
        return open_dataset(tmp_path / "own.npz").class_names

    assert named(np.array([b"no", b"yes"])) == ("no", "yes")
    assert named(np.array([7, 9])) == ("7", "9")
    for names in (np.array([b"\xff", b"a"]), np.array([0.5, 1.5]), np.array([["a", "b"]]), np.array(["a\x1b[2J", "b"])):
        with pytest.raises(DataError, match=r"own\.npz"):
            named(names)
    beyond = np.array([2**31 - 1, 65], np.uint32).view("U1")
    with pytest.raises(DataError, match=r"class_names of .* cannot be read"):
        named(beyond)
    with pytest.raises(DataError, match="There are 40000 classes, but there must be 1 to 30000"):
        named(np.full(40_000, "a"))


def test_a_small_idx_file_cannot_unpack_to_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(np.array([0x803, 300, 1024, 1024], ">u4").tobytes())
        for _ in range(300):
            stream.write(bytes(MEGABYTE))
    with at_most(4 * MEGABYTE), pytest.raises(DataError, match="takes 314572800 bytes"):
        read_idx_images(path)
    with gzip.open(path, "wb") as stream:
        stream.write(np.array([0x803, 2**32 - 1, 4096, 4096], ">u4").tobytes())
    with at_most(4 * MEGABYTE), pytest.raises(DataError, match="takes 72057594021150720 bytes"):
        read_idx_images(path)
