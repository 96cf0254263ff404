"""A table of predictions, and writing it as CSV, JSON Lines or Parquet."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dubito.errors import DubitoError, OptionError
from dubito.harmless import to_csv

__all__ = ["Table", "writer"]

Table = dict[str, list[Any]]
"""Columns by name, all equally long; None is a missing value."""


def writer(path: Path) -> Callable[[Table], None]:
    """What writes a table to `path` in the format that its suffix names; what cannot work is refused at once."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise OptionError(f"--out is {path}, but its suffix must be one of {', '.join(FORMATS)}.")
    require_writable(path)
    if suffix == ".parquet":
        from dubito.tables.parts import require_pyarrow

        require_pyarrow()

    def write(table: Table) -> None:
        from dubito.files import write_atomically

        try:
            write_atomically(path, FORMATS[suffix](table))
        except OSError as error:  # which would name the temporary file
            raise DubitoError(f"{path} cannot be written: {error.strerror}.") from None

    return write


def require_writable(path: Path) -> None:
    """An error before hours of work rather than after them."""
    if path.is_dir():
        raise OptionError(f"{path} is a folder, but must be a file to write.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DubitoError(f"{path.parent} cannot be made: {error.strerror}.") from None
    if not os.access(path.parent, os.W_OK):
        raise DubitoError(f"{path} cannot be written: its folder does not allow it.")


def require_matplotlib() -> None:
    """The same for a figure."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise DubitoError("A figure needs matplotlib, which is missing: pip install 'dubito[train]'.") from None


def _to_csv(table: Table) -> bytes:
    return to_csv(table, zip(*table.values(), strict=True)).encode()


def _to_json_lines(table: Table) -> bytes:
    rows = zip(*table.values(), strict=True)
    return "".join(json.dumps(dict(zip(table, row, strict=True)), ensure_ascii=False) + "\n" for row in rows).encode()


def _to_parquet(table: Table) -> bytes:
    from dubito.tables.parts import require_pyarrow

    arrow, parquet = require_pyarrow()
    text = ("path", "label", "truth", "error", "conformal", "decision", "reason")
    # Types are given, for a column without any value has none of its own.
    columns = {
        name: arrow.array(values, arrow.string() if name in text else arrow.float64()) for name, values in table.items()
    }
    buffer = io.BytesIO()
    parquet.write_table(arrow.table(columns), buffer)
    return buffer.getvalue()


FORMATS: dict[str, Callable[[Table], bytes]] = {
    ".csv": _to_csv,
    ".jsonl": _to_json_lines,
    ".ndjson": _to_json_lines,
    ".parquet": _to_parquet,
}
"""What writes a table, by the suffix of its file."""
