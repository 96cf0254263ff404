"""What commands write: a table of predictions as CSV, JSON, JSON Lines or Parquet, and results as JSON."""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dubito.cli.options import STDOUT
from dubito.errors import DubitoError, OptionError, missing
from dubito.harmless import say, to_csv

Table = dict[str, list[Any]]
"""Columns by name, all equally long; None is a missing value."""


def writer(path: Path) -> Callable[[Table], None]:
    """What writes a table to `path` in the format that its suffix names; what cannot work is refused at once."""
    if path == STDOUT:
        return lambda table: say(_to_csv(table).decode().removesuffix("\n"))
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise OptionError(f"--out is {path}, but its suffix must be one of {', '.join(FORMATS)}, or - to print a .csv.")
    require_writable(path)
    if suffix == ".parquet":
        from dubito.tables.parts import require_pyarrow

        require_pyarrow()

    def write(table: Table) -> None:
        _write(path, FORMATS[suffix](table))

    return write


def json_writer(path: Path) -> Callable[[dict[str, Any]], None]:
    """What writes a JSON file atomically, or prints it; a file that cannot be written is refused at once."""
    if path == STDOUT:
        # Other letters as their numbers, so that nothing in it does anything to a terminal.
        return lambda content: say(json.dumps(content, indent=2, allow_nan=False))
    if path.suffix.lower() != ".json" and not path.is_dir():
        raise OptionError(f"--out is {path}, but must end in .json, or be - to print it.")
    require_writable(path)

    def write(content: dict[str, Any]) -> None:
        _write(path, (json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode())

    return write


@contextmanager
def file_for_stdout(name: str) -> Iterator[Path]:
    """The path of a temporary file `name`, which is printed as it is once it was written."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        yield path
        sys.stdout.flush()
        sys.stdout.buffer.write(path.read_bytes())
        sys.stdout.buffer.flush()


def refuse_terminal(what: str, command: str) -> None:
    """An error if stdout is a terminal, which cannot show a binary file."""
    if sys.stdout.isatty():
        raise OptionError(f"--out is -, but {what} is binary and cannot be shown here: send it on, as in `{command}`.")


def _write(path: Path, content: bytes) -> None:
    from dubito.files import write_atomically

    try:
        write_atomically(path, content)
    except OSError as error:  # which would name the temporary file
        raise DubitoError(f"{path} cannot be written: {error.strerror}.") from None


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
        raise missing("A figure", "matplotlib", "train") from None


def _to_csv(table: Table) -> bytes:
    return to_csv(table, zip(*table.values(), strict=True)).encode()


def _to_json_lines(table: Table) -> bytes:
    return "".join(f"{row}\n" for row in _json_rows(table)).encode()


def _to_json(table: Table) -> bytes:
    return ("[\n" + ",\n".join(_json_rows(table)) + "\n]\n").encode()


def _json_rows(table: Table) -> Iterator[str]:
    for row in zip(*table.values(), strict=True):
        yield json.dumps(dict(zip(table, row, strict=True)), ensure_ascii=False)


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
    ".json": _to_json,
    ".jsonl": _to_json_lines,
    ".ndjson": _to_json_lines,
    ".parquet": _to_parquet,
}
"""What writes a table, by the suffix of its file."""
