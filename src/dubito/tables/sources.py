"""Which images are meant, in chunks: files, folders, globs, lists, Parquet tables, fsspec addresses and data sets.

A chunk says where its images are; whoever predicts them reads them. Chunks are made one after the other and in the same
order every time, so that a billion images need no list in memory: only the files of a glob, and those that are named
one by one, are held.
"""

from __future__ import annotations

import glob
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dubito.data import DATASETS
from dubito.data.images import IMAGE_SUFFIXES
from dubito.data.listing import named_paths
from dubito.errors import DataError, OptionError, missing
from dubito.foreign import read_lines, reading, reason_of
from dubito.limits import file_limits, variable
from dubito.tables.parts import require_pyarrow

if TYPE_CHECKING:
    from dubito.data import Dataset
    from dubito.runs.description import DataDescription

CHUNK = 8192
"""Images of a chunk, unless another number is asked for: some seconds of work, and a megabyte of results."""
LISTS, TABLES = (".txt", ".list"), (".parquet", ".pq")
ROWS = 64
"""Rows of a table that are unpacked at once."""
BYTES = ("image", "bytes", "content", "png", "jpg", "jpeg", "data")
PATHS = ("path", "file", "filename", "file_name", "image_path", "url", "uri")
NAMES = ("path", "name", "key", "__key__", "id", "filename", "file_name", "url")
"""Columns of a Parquet table that hold images, paths, and names of images."""


@dataclass(frozen=True)
class Images:
    """What a chunk holds: pictures as a predict function takes them, their names, and their true classes or None."""

    pictures: Any
    names: Sequence[str]
    truths: Sequence[str | None]


@dataclass(frozen=True)
class Chunk(ABC):
    """Some of the images, small to send; `number` is its place among all chunks."""

    number: int
    count: int

    @abstractmethod
    def read(self, data: DataDescription) -> Images:
        """The images, prepared for a network with this description of its data."""


@dataclass(frozen=True)
class FileChunk(Chunk):
    """Files or fsspec addresses, and the classes that their folders name."""

    paths: tuple[str, ...]
    truths: tuple[str | None, ...]

    def read(self, data: DataDescription) -> Images:
        """Local files by their paths, others as bytes."""
        # A file name may be any bytes, but what is printed and written must be text.
        names = [os.fsencode(path).decode("utf-8", "replace") for path in self.paths]
        return Images([_fetched(path) if "://" in path else path for path in self.paths], names, self.truths)


@dataclass(frozen=True)
class TableChunk(Chunk):
    """Rows of one row group of a Parquet table."""

    table: str
    group: int
    start: int

    def read(self, data: DataDescription) -> Images:
        """Bytes, or what the paths lead to."""
        file = _table(self.table)
        images, names, truth = _table_columns(self.table)
        wanted = [name for name in dict.fromkeys((images, names, truth)) if name is not None]
        rows = _rows(self.table, file, self.group, wanted, self.start, self.count)
        # A picture may be a structure that has bytes.
        values = [value["bytes"] if isinstance(value, dict) else value for value in rows[images]]
        pictures = [_fetched(value) if isinstance(value, str) and "://" in value else value for value in values]
        first = _group_starts(self.table)[self.group] + self.start
        named = rows[names] if names else [f"{self.table}/{first + row}" for row in range(self.count)]
        truths = rows[truth] if truth else [None] * self.count
        return Images([b"" if picture is None else picture for picture in pictures], list(map(str, named)), truths)


@dataclass(frozen=True)
class DatasetChunk(Chunk):
    """Test images of a data set."""

    name: str
    start: int

    def read(self, data: DataDescription) -> Images:
        """The images as the network takes them, or the files that they are in."""
        test = _test_images(self.name, data)
        part = slice(self.start, self.start + self.count)
        images = test.images[part]
        names = [f"{self.name}/test/{index}" for index in range(part.start, part.stop)]
        truths = [test.class_names[label] for label in test.labels[part].tolist()]
        return Images(getattr(images, "paths", images), names, truths)


class Listing:
    """All images that the arguments name, in chunks; every loop lists them again.

    An image that is named twice, or lies in a folder that is also named, is there once. Lines of lists and rows of
    tables are all taken, also if they repeat.
    """

    def __init__(self, arguments: Sequence[str], data: DataDescription, size: int = CHUNK) -> None:
        if size < 1:
            raise OptionError(f"chunk is {size}, but must be at least 1.")
        self.arguments = list(dict.fromkeys(arguments))
        self.data, self.size = data, size
        self._folders = [path for path in map(_local, self.arguments) if path is not None and path.is_dir()]

    @cached_property
    def images(self) -> int:
        """How many images there are; an error if there are none."""
        if not self._facts[0]:
            raise DataError(f"There are no images in {', '.join(self.arguments)}.")
        return self._facts[0]

    @cached_property
    def digest(self) -> str:
        """Tells whether the images are the same, by their names."""
        return self._facts[1]

    @cached_property
    def _facts(self) -> tuple[int, str]:
        count, digest = 0, hashlib.sha256()
        for chunk in self.chunks():
            count += chunk.count
            digest.update(repr(chunk).encode("utf-8", "surrogateescape"))
        return count, digest.hexdigest()

    def chunks(self) -> Iterator[Chunk]:
        """The chunks in their order."""
        return (make(number) for number, make in enumerate(self._makers()))

    def _makers(self) -> Iterator[Callable[[int], Chunk]]:
        """What makes each chunk once its number is known."""
        seen: set[str] = set()
        files: list[tuple[str, str | None]] = []
        for argument in self.arguments:
            if _is_table(argument) or _is_dataset(argument):
                yield from self._of_files(files)
                files = []
                yield from self._of_dataset(argument) if _is_dataset(argument) else self._of_tables(argument)
                continue
            for file in self._named(argument, seen):
                files.append(file)
                if len(files) == self.size:
                    yield from self._of_files(files)
                    files = []
        yield from self._of_files(files)

    def _of_files(self, files: Sequence[tuple[str, str | None]]) -> Iterator[Callable[[int], Chunk]]:
        if files:
            paths, truths = zip(*files, strict=True)
            yield partial(FileChunk, count=len(files), paths=paths, truths=truths)

    def _named(self, argument: str, seen: set[str]) -> Iterator[tuple[str, str | None]]:
        """The files of one argument, with their true classes."""
        path = _local(argument)
        if path is None:
            yield from ((address, None) for address in _of_address(argument))
        elif path.is_dir():
            if not any(folder in path.parents for folder in self._folders):
                yield from self._in_folder(path)
        elif path.suffix.lower() in LISTS and path.is_file():
            with reading(path, "give a list of paths, one a line", DataError):
                for line in read_lines(path, errors="surrogateescape"):
                    if line.strip():
                        yield line.strip(), None
        elif path.suffix.lower() == ".csv" and path.is_file():
            yield from ((str(file), truth) for file, truth in named_paths(path))
        else:
            for file in _matching(argument, path):
                if str(file) not in seen and not any(folder in file.parents for folder in self._folders):
                    seen.add(str(file))
                    yield str(file), None

    def _in_folder(self, folder: Path) -> Iterator[tuple[str, str | None]]:
        """The images of a folder with their true classes; an error if there are none."""
        empty = True
        for file in _walk(folder):
            empty = False
            yield str(file), self._truth(file, folder)
        if empty:
            raise DataError(f"{folder} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")

    def _truth(self, file: Path, folder: Path) -> str | None:
        """The class of a file in a labelled folder: the name of the nearest sub-folder that is a class."""
        names = [parent.name for parent in file.relative_to(folder).parents]  # nearest first; the last is the folder
        return next((name for name in names[:-1] if name in self.data.class_names), None)

    def _of_dataset(self, name: str) -> Iterator[Callable[[int], Chunk]]:
        count = len(_test_images(name, self.data))
        for start in range(0, count, self.size):
            yield partial(DatasetChunk, count=min(self.size, count - start), name=name, start=start)

    def _of_tables(self, argument: str) -> Iterator[Callable[[int], Chunk]]:
        for table in _tables(argument):
            _table_columns(table)  # refuses one without images
            metadata = _table(table).metadata
            for group in range(metadata.num_row_groups):
                count = metadata.row_group(group).num_rows
                for start in range(0, count, self.size):
                    rows = min(self.size, count - start)
                    yield partial(TableChunk, count=rows, table=table, group=group, start=start)


# ---- files ---------------------------------------------------------------------------------------------------------


def _local(argument: str) -> Path | None:
    """The path that an argument names; None for an address of fsspec."""
    return None if "://" in argument else Path(argument).expanduser()


def _walk(folder: Path) -> Iterator[Path]:
    """The images in a folder and its subfolders, in order, without hidden ones; no more than a folder is in memory."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for entry in entries:
        if entry.is_dir():
            yield from () if entry.is_symlink() else _walk(entry)
        elif entry.suffix.lower() in IMAGE_SUFFIXES and entry.is_file():
            yield entry


def _matching(argument: str, path: Path) -> Iterable[Path]:
    """The files that an argument which is no folder names."""
    if path.exists():
        return [path]
    if glob.has_magic(argument):
        matches = [Path(match) for match in sorted(glob.glob(os.path.expanduser(argument), recursive=True))]
        files = [file for match in matches for file in (_walk(match) if match.is_dir() else [match])]
        if not files:
            raise DataError(f"No image matches {argument}.")
        return files
    if path.suffix.lower() in IMAGE_SUFFIXES:
        return [path]  # one missing file of many becomes a row with an error, like one that is broken
    raise OptionError(
        f"{argument} does not exist; give image files, folders, a quoted glob, a list (.txt), a table (.csv, .parquet) "
        f"or a data set's name ({', '.join(DATASETS)})."
    )


# ---- addresses -----------------------------------------------------------------------------------------------------


def _file_system(address: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise missing(address, "fsspec", "ray") from None
    try:
        return fsspec.core.url_to_fs(address)
    except Exception as error:  # each file system raises what its own library does
        raise DataError(f"{address} cannot be opened: {reason_of(error)}.") from None


def _of_address(address: str) -> Iterator[str]:
    """The addresses of the images at one: a folder's, a glob's, a list's lines, or the address itself."""
    system, path = _file_system(address)
    if path.lower().endswith(LISTS):
        with system.open(path, "r") as lines:
            yield from (line.strip() for line in lines if line.strip())
    elif glob.has_magic(path):
        yield from (system.unstrip_protocol(match) for match in sorted(system.glob(path)))
    elif system.isdir(path):
        for folder, _, names in system.walk(path):
            images = (name for name in sorted(names) if Path(name).suffix.lower() in IMAGE_SUFFIXES)
            yield from (system.unstrip_protocol(f"{folder.rstrip('/')}/{name}") for name in images)
    else:
        yield address


def _fetched(address: str) -> bytes | str:
    """The bytes at an address; the address itself, whose reading then fails with a reason, if there are none."""
    try:
        system, path = _file_system(address)
        content: bytes = system.cat_file(path)
        return content
    except Exception:  # each file system raises what its own library does
        return address


# ---- tables and data sets ------------------------------------------------------------------------------------------


def _is_dataset(argument: str) -> bool:
    path = _local(argument)
    return path is not None and (argument in DATASETS or (path.suffix.lower() == ".npz" and path.is_file()))


def _is_table(argument: str) -> bool:
    if argument.lower().endswith(TABLES):
        return True
    path = _local(argument)
    return path is not None and path.is_dir() and next(path.glob("*.parquet"), None) is not None


def _tables(argument: str) -> list[str]:
    """The files of a table: one, those of a folder, or those of a glob."""
    path = _local(argument)
    if path is None:
        system, inside = _file_system(argument)
        return [system.unstrip_protocol(match) for match in sorted(system.glob(inside))] or [argument]
    if path.is_dir():
        return [str(file) for file in sorted(path.glob("*.parquet"))]
    found = sorted(glob.glob(str(path), recursive=True)) if glob.has_magic(argument) else [str(path)]
    if not found or not Path(found[0]).exists():
        raise DataError(f"No table matches {argument}.")
    return found


@lru_cache(maxsize=4)
def _table(table: str) -> Any:
    """The open Parquet file."""
    arrow, parquet = require_pyarrow()
    if "://" not in table and not Path(table).is_file():
        raise DataError(f"{table} is no file, but must be a Parquet table.")
    try:
        if "://" not in table:
            return parquet.ParquetFile(table)
        system, path = _file_system(table)
        return parquet.ParquetFile(system.open(path, "rb"))
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{table} cannot be read as a Parquet table: {' '.join(str(error).split())}") from None


@lru_cache(maxsize=64)
def _table_columns(table: str) -> tuple[str, str | None, str | None]:
    """The columns of images or their paths, of their names, and of their true classes."""
    arrow, _ = require_pyarrow()
    schema = _table(table).schema_arrow
    kinds = {field.name: field.type for field in schema}

    def holds_bytes(name: str) -> bool:
        kind = kinds[name]
        if arrow.types.is_struct(kind):  # as Hugging Face's data sets have it
            return any(field.name == "bytes" for field in kind)
        return bool(arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind))

    def first(wanted: Sequence[str]) -> str | None:
        strings = [
            name for name in kinds if arrow.types.is_string(kinds[name]) or arrow.types.is_large_string(kinds[name])
        ]
        return next((name for name in wanted if name in strings), None)

    of_bytes = [name for name in kinds if holds_bytes(name)]
    images = next((name for name in BYTES if name in of_bytes), of_bytes[0] if len(of_bytes) == 1 else first(PATHS))
    if images is None:
        raise DataError(
            f"{table} has the columns {', '.join(kinds)}, but needs one of bytes (such as {', '.join(BYTES[:3])}) or "
            f"one of paths ({', '.join(PATHS[:3])})."
        )
    return images, first(NAMES), first(("truth",))


def _rows(table: str, file: Any, group: int, columns: list[str], start: int, count: int) -> dict[str, list[Any]]:
    """Some rows of a row group, column by column; no more is held than they and a few others.

    What a table says of its size is checked before it is read, and what comes of it while it is: a value that is there
    once may be repeated in a million rows.
    """
    arrow, _ = require_pyarrow()
    most = file_limits().unpacked(Path(table).stat().st_size) if "://" not in table else None
    values: dict[str, list[Any]] = {name: [] for name in columns}
    before = held = 0
    with reading(table, "write the table again", DataError):
        try:
            _require_bounded(held + _unpacked_bytes(file, group, columns), most)
            for batch in file.iter_batches(min(count, ROWS), row_groups=[group], columns=columns):
                low, high = max(start - before, 0), min(start + count - before, len(batch))
                if low < high:
                    part = batch.slice(low, high - low)
                    held += part.nbytes
                    _require_bounded(held, most)
                    for name in columns:
                        values[name] += part.column(name).to_pylist()
                before += len(batch)
                if before >= start + count:
                    break
        except arrow.ArrowException as error:
            raise ValueError(reason_of(error)) from None
        if any(len(column) != count for column in values.values()):
            raise ValueError(f"row group {group} has other rows than it says")
    return values


def _unpacked_bytes(file: Any, group: int, columns: list[str]) -> int:
    """What some columns of a row group unpack to, as the table says."""
    about = file.metadata.row_group(group)
    parts = [about.column(number) for number in range(about.num_columns)]
    return sum(part.total_uncompressed_size for part in parts if part.path_in_schema.split(".")[0] in columns)


def _require_bounded(count: int, most: int | None) -> None:
    if most is not None and count > most:
        raise ValueError(f"rows of it take {count} bytes, but may take {most}, see {variable('max_unpacked_bytes')}")


@lru_cache(maxsize=64)
def _group_starts(table: str) -> list[int]:
    metadata = _table(table).metadata
    starts = [0]
    for group in range(metadata.num_row_groups):
        starts.append(starts[-1] + metadata.row_group(group).num_rows)
    return starts


_TESTS: dict[tuple[str, DataDescription], Dataset] = {}


def _test_images(name: str, data: DataDescription) -> Dataset:
    """The test images of a data set, read once in a process."""
    if (name, data) not in _TESTS:
        _TESTS.clear()
        _TESTS[name, data] = data.open(name).test()
    return _TESTS[name, data]
