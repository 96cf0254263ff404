"""Writing files so that none is ever half written, and refusing folders that already hold something."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from dubito.errors import RunError

__all__ = ["refuse_existing", "write_atomically"]


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file that has either its old or its whole new content, whatever happens meanwhile.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "new" / "note.txt", "text")
    ...     (Path(folder) / "new" / "note.txt").read_text()
    'text'
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write_beside(path, data)
    except OSError as error:  # it names the temporary file, or no file
        raise type(error)(error.errno, error.strerror or str(error), str(path)) from None


def _write_beside(path: Path, data: bytes) -> None:
    """Write a temporary file in the same folder, then move it to `path`."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def refuse_existing(folder: Path, advice: str = "choose another --out") -> None:
    """Raise an error if `folder` exists and is not empty.

    >>> refuse_existing(Path("a/folder/that/is/not/there"))
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        hint = f"continue it with `dubito train --resume {folder}`, or " if (folder / "config.yaml").exists() else ""
        what = "exists already and is not empty" if folder.is_dir() else "is a file"
        raise RunError(f"{folder} {what}; {hint}{advice}.")
