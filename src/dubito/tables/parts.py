"""A folder of predictions in parts, one Parquet file a chunk of images, that can be gone on with after any stop.

    manifest.json              what is predicted, how, and from which images; at the end, how many rows there are
    part-00000000.parquet      the rows of chunk 0, and so on

A part is written beside its place and then moved there, so that one that exists is whole. Chunks are the same in every
attempt, so a chunk whose part exists is done, and every image is there exactly once.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from dubito.errors import DubitoError, OptionError, RunError, missing
from dubito.files import write_atomically
from dubito.foreign import read_json, read_text, reading, reason_of
from dubito.tables.columns import Columns

MANIFEST = "manifest.json"


class Parts:
    """A folder of parts. `describes` describes the task, for the manifest, so that different tasks do not mix."""

    def __init__(self, folder: Path, describes: dict[str, Any], *, resume: bool = False) -> None:
        self.folder = folder
        self.describes = json.loads(json.dumps(describes))
        if resume:
            self._require_same()
        elif folder.exists() and not _is_unbegun(folder):
            raise RunError(
                f"{folder} already exists and is not empty; continue it with --resume, or choose another --out."
            )
        for unfinished in folder.glob(".*.parquet.*") if folder.is_dir() else ():
            unfinished.unlink()  # of an attempt that was killed while it wrote
        if not (resume and (folder / MANIFEST).exists()):
            self.finish(complete=False)

    def path(self, number: int) -> Path:
        """The part of a chunk."""
        return self.folder / f"part-{number:08}.parquet"

    def has(self, number: int) -> bool:
        """Whether a chunk is done."""
        return self.path(number).exists()

    def count(self, number: int) -> tuple[int, int]:
        """How many rows a part has, and how many of them are errors."""
        arrow, parquet = require_pyarrow()
        with reading(self.path(number), "remove it: it is made again"):
            if not self.path(number).is_file():
                raise ValueError("it is no file")
            try:
                errors = parquet.read_table(self.path(number), columns=["error"])["error"]
            except arrow.ArrowException as error:
                raise ValueError(reason_of(error)) from None
            return len(errors), len(errors) - errors.null_count

    def write(self, number: int, content: bytes) -> None:
        """Write the part of a chunk."""
        try:
            write_atomically(self.path(number), content)
        except OSError as error:
            raise DubitoError(f"{self.path(number)} cannot be written: {error.strerror}.") from None

    def finish(self, **facts: Any) -> None:
        """Write the manifest, with facts about the parts."""
        content = {**self.describes, **facts}
        write_atomically(self.folder / MANIFEST, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def _require_same(self) -> None:
        file = self.folder / MANIFEST
        if not file.exists():
            if self.folder.is_dir() and any(self.folder.glob("part-*")):
                raise RunError(f"{self.folder} has parts, but no {MANIFEST}, so it cannot be continued.")
            return  # nothing was begun
        with reading(file, "choose another --out"):
            found = read_json(file)
            if not isinstance(found, dict):
                raise ValueError(f"it is a {type(found).__name__}")
        for name, wanted in self.describes.items():
            if found.get(name) != wanted:
                raise OptionError(
                    f"{self.folder} was begun with another {name} ({_short(found.get(name))}, now "
                    f"{_short(wanted)}): use the same as before, or another --out."
                )


def _is_unbegun(folder: Path) -> bool:
    """Whether a folder is empty, or holds the manifest of a work that ended before its first part."""
    return folder.is_dir() and all(path.name == MANIFEST for path in folder.iterdir()) and not _is_complete(folder)


def _is_complete(folder: Path) -> bool:
    file = folder / MANIFEST
    if not file.exists():
        return False
    with reading(file, "choose another --out"):
        return '"complete": false' not in read_text(file)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 120 else text[:117] + "..."


def to_parquet(columns: Columns) -> bytes:
    """Columns as a Parquet file; NaN and None are missing values."""
    arrow, parquet = require_pyarrow()
    arrays = {
        name: arrow.array(values, arrow.string() if values.dtype == object else None, from_pandas=True)
        for name, values in columns.items()
    }
    buffer = io.BytesIO()
    # Numbers of networks have no repetitions that a dictionary could save, and words have.
    words = [name for name, values in columns.items() if values.dtype == object and name != "path"]
    parquet.write_table(arrow.table(arrays), buffer, use_dictionary=words)
    return buffer.getvalue()


def require_pyarrow() -> tuple[Any, Any]:
    """The modules `pyarrow` and `pyarrow.parquet`; an error says what to install where they are missing."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise missing("Parquet", "pyarrow", "parquet") from None
    return pyarrow, parquet


def text(values: Any) -> Any:
    """A column of words."""
    column = np.empty(len(values), object)
    column[:] = values
    return column
