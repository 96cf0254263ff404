"""Small data sets in the official formats, written by the tests themselves."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np

from dubito.data import registry
from dubito.data.registry import DatasetInfo

TRAIN, TEST = 20, 10


def idx(array: np.ndarray) -> bytes:
    header = np.array([0x800 + array.ndim, *array.shape], dtype=">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def write_gzip(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0))
    return path


def write_mnist(root: Path, folder: str = "mnist", seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = {}
    for prefix, count in (("train", TRAIN), ("t10k", TEST)):
        arrays[f"{prefix}-images-idx3-ubyte.gz"] = rng.integers(0, 256, (count, 28, 28))
        arrays[f"{prefix}-labels-idx1-ubyte.gz"] = np.arange(count) % 10
    for name, array in arrays.items():
        write_gzip(root / folder / name, idx(array))
    return arrays


def cifar_records(count: int, classes: int, label_bytes: int, seed: int = 0) -> np.ndarray:
    records = np.random.default_rng(seed).integers(0, 256, (count, label_bytes + 3072)).astype(np.uint8)
    records[:, :label_bytes] = 19
    records[:, label_bytes - 1] = np.arange(count) % classes
    return records


def write_cifar(root: Path, info: DatasetInfo) -> dict[str, np.ndarray]:
    folder = root / info.folder
    folder.mkdir(parents=True, exist_ok=True)
    label_bytes = 1 if info.format == "cifar10" else 2
    arrays = {}
    for number, file in enumerate(info.files):
        if file.name.endswith(".txt"):
            (folder / file.name).write_text("\n".join(info.class_names) + "\n")
        else:
            count = file.size // (label_bytes + 3072)
            arrays[file.name] = cifar_records(count, info.num_classes, label_bytes, seed=number)
            arrays[file.name].tofile(folder / file.name)
    return arrays


def write_sums(root: Path) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(root).as_posix()}\n" for path in files
    ]
    (root / "SHA256SUMS").write_text("".join(lines))


def tar_of(folder: Path, extra: dict[str, bytes] | None = None, leave_out: str = "") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in (extra or {}).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for path in sorted(folder.iterdir()):
            if path.name != leave_out:
                tar.add(path, f"{folder.name}/{path.name}")
    return stream.getvalue()


def tiny_registry() -> dict[str, DatasetInfo]:
    """The real table with fewer images in each file."""
    table = dict(registry.DATASETS)
    for name in ("mnist", "fashion-mnist"):
        table[name] = dataclasses.replace(table[name], train_count=TRAIN, test_count=TEST)
    for name, label_bytes, train in (("cifar10", 1, 5 * TEST), ("cifar100", 2, TEST)):
        info = table[name]
        files = tuple(
            dataclasses.replace(file, size=TEST * (label_bytes + 3072)) if file.name.endswith(".bin") else file
            for file in info.files
        )
        table[name] = dataclasses.replace(info, files=files, train_count=train, test_count=TEST)
    return table
