"""Packed arrays of somebody else: an .npz, whose headers are read first, and streams that are unpacked within bounds.

An .npz is a zip of .npy files. Their headers say shape and type, and so how much memory the arrays will take; what
would take too much is refused before it is unpacked. Arrays of objects are pickles, which are never loaded.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from dubito.errors import DataError
from dubito.foreign import open_file
from dubito.limits import file_limits, variable

_HEADER = 2**14
"""Bytes of an .npy file that hold its header; numpy's own take 128."""
_PART = 2**20
_ENCRYPTED = 1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""What numpy writes. Other methods choose themselves how much memory they need."""


def require_unpacked(count: int, path: Path, what: str) -> None:
    """Refuse to unpack more than a file of this size may."""
    most = file_limits().unpacked(path.stat().st_size)
    if count > most:
        raise DataError(
            f"{what} takes {count} bytes, but a file of {path.stat().st_size} bytes may take {most}; set "
            f"{variable('max_unpacked_bytes')} if you trust it."
        )


def read_bytes(stream: IO[bytes], count: int) -> npt.NDArray[np.uint8]:
    """The next `count` bytes of a stream, or fewer if it ends before.

    >>> read_bytes(io.BytesIO(b"abc"), 2).tolist(), len(read_bytes(io.BytesIO(b"abc"), 9))
    ([97, 98], 3)
    """
    content = np.empty(count, np.uint8)  # the system gives its memory as it is filled
    filled = 0
    while filled < count and (part := stream.read(min(_PART, count - filled))):
        content[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
        filled += len(part)
    return content[:filled]


@dataclass(frozen=True)
class ArrayHeader:
    """What an array says of itself before it is read; its content begins at byte `offset` of its file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int

    @property
    def size(self) -> int:
        """Values in the array."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.size * self.dtype.itemsize


class Arrays:
    """The arrays of an .npz by name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/two.npz", a=np.zeros((2, 3)), b=np.ones(4, np.uint8))
    ...     two = Arrays(f"{folder}/two.npz")
    ...     sorted(two.names), two.header("a").shape, two.read("b").tolist()
    (['a', 'b'], (2, 3), [1, 1, 1, 1])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with open_file(self.path) as file:
                if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                    raise DataError(f"{self.path} is a single array, but must be an .npz with images and labels.")
            with zipfile.ZipFile(self.path) as archive:
                members = {member.filename: member for member in archive.infolist()}
        except DataError:
            raise
        except Exception as error:  # zipfile raises nearly anything on bytes that lie about themselves
            raise DataError(f"{self.path} cannot be read as an .npz of arrays: {_reason(error)}.") from error
        self._members = {name.removesuffix(".npy"): member for name, member in members.items()}

    @property
    def names(self) -> frozenset[str]:
        """The names of the arrays."""
        return frozenset(self._members)

    def where(self, name: str) -> str:
        """An array in an error message."""
        return f"array {name} of {self.path}"

    def header(self, name: str) -> ArrayHeader:
        """Shape and type of an array, which may take as much memory as they say."""
        with self._open(name) as stream:
            header = _header(io.BytesIO(stream.read(_HEADER)))
        require_unpacked(header.nbytes, self.path, self.where(name))
        return header

    def read(self, name: str) -> npt.NDArray[Any]:
        """An array, after its header."""
        header = self.header(name)
        with self._open(name) as stream:
            stream.read(header.offset)
            content = read_bytes(stream, header.nbytes)
            if len(content) < header.nbytes or stream.read(1):  # the end, where zipfile compares checksums
                raise ValueError("it has more or fewer bytes than its header says")
            return content.view(header.dtype).reshape(header.shape, order="F" if header.fortran else "C")

    @contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        """The .npy file of an array; whatever goes wrong in its reading is a DataError."""
        try:
            _require_plain(self._members[name])
            with zipfile.ZipFile(self.path) as archive, archive.open(self._members[name]) as stream:
                yield stream
        except Exception as error:
            raise DataError(f"{self.where(name)} cannot be read: {_reason(error)}.") from error


def _require_plain(member: zipfile.ZipInfo) -> None:
    if member.flag_bits & _ENCRYPTED:
        raise ValueError("it is encrypted")
    if member.compress_type not in _METHODS:
        raise ValueError("it uses a compression that numpy does not use")


def _header(begin: IO[bytes]) -> ArrayHeader:
    """The header at the beginning of an .npy file."""
    version = npy.read_magic(begin)
    if version not in _READERS:
        raise ValueError(f"its format has the version {version[0]}.{version[1]}")
    shape, fortran, dtype = _READERS[version](begin)
    if dtype.hasobject:
        raise ValueError("Object arrays are pickles, which are never loaded")
    if dtype.kind not in "biufSU" or not dtype.itemsize:
        raise ValueError(f"it holds neither numbers nor text, but {dtype}")
    if not all(type(side) is int and side >= 0 for side in shape):
        raise ValueError(f"it has the shape {shape}")
    return ArrayHeader(shape, dtype, fortran, begin.tell())


_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def _reason(error: BaseException) -> str:
    """The first line of an error, which may quote the file at length."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = (text.splitlines() or [""])[0].strip().rstrip(".")
    return line[:_QUOTED] or type(error).__name__


_QUOTED = 200
