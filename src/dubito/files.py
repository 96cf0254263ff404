"""Writing files and folders so that none is ever half written, and refusing folders that already hold something.

Whatever is written is written beside its place, as ``.NAME.xxxxxxxx.part``, and then moved there. Its writer holds a
lock on it, which ends with the process: what a killed process left behind is known by having none, and is removed by
whoever writes into the same folder next.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from dubito.errors import RunError

try:
    import fcntl
except ImportError:  # pragma: no cover  (a system without these locks)
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".part"
_UNFINISHED = re.compile(r"\..+\.[a-z0-9_]{8}\.part")


def write_atomically(path: Path, content: str | bytes, *, make_folder: bool = True) -> None:
    """Write a file that has either its old or its whole new content, whatever happens meanwhile.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "new" / "note.txt", "text")
    ...     (Path(folder) / "new" / "note.txt").read_text()
    'text'
    """
    data = content.encode() if isinstance(content, str) else content
    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _remove_stale(path.parent)
        _write_beside(path, data)
    except IsADirectoryError:
        raise RunError(f"{path} is a folder, but must be a file to write.") from None
    except OSError as error:  # it names the temporary file, or no file
        raise type(error)(error.errno, error.strerror or str(error), str(path)) from None


def _write_beside(path: Path, data: bytes) -> None:
    """Write a temporary file in the same folder, then move it to `path`."""
    handle, temporary = _temporary_file(path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)  # while it is locked: nobody takes it for a stale one
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _temporary_file(path: Path) -> tuple[int, str]:
    """A new file in the same folder, locked."""
    while True:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=SUFFIX, dir=path.parent)
        try_lock(handle, wait=True)
        if os.fstat(handle).st_nlink:
            return handle, temporary
        os.close(handle)  # another process has taken it for a stale one before it was locked


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes its place `path` when it is whole; after an error or a kill nothing is there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     with new_folder(Path(parent) / "new") as folder:
    ...         _ = (folder / "note.txt").write_text("text")
    ...         (Path(parent) / "new").exists()
    ...     os.listdir(Path(parent) / "new")
    False
    ['note.txt']
    """
    place = Path(os.path.realpath(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(place.parent)
    temporary = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=SUFFIX, dir=place.parent))
    handle = os.open(temporary, os.O_RDONLY)
    try:
        try_lock(handle)
        yield temporary
        os.chmod(temporary, 0o777 & ~_umask())
        os.replace(temporary, place)  # an empty folder may be there
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise RunError(f"{path} was created by another process in the meantime; choose another --out.") from None
        raise
    finally:
        os.close(handle)


def is_unfinished(name: str) -> bool:
    """Whether a file or folder of this name is one that has not taken its place.

    >>> is_unfinished(".last.safetensors.k2_x81ab.part"), is_unfinished("last.safetensors")
    (True, False)
    """
    return _UNFINISHED.fullmatch(name) is not None


def _remove_stale(folder: Path) -> None:
    """Remove what killed processes left in a folder."""
    with os.scandir(folder) as entries:
        found = [Path(entry.path) for entry in entries if is_unfinished(entry.name)]
    for path in found:
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError:  # it has taken its place by now, or belongs to somebody else
            continue
        try:
            if try_lock(handle) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif try_lock(handle):
                path.unlink(missing_ok=True)
        except OSError:
            continue
        finally:
            os.close(handle)


def try_lock(handle: int, *, wait: bool = False) -> bool | None:
    """Lock an open file or folder until it is closed, or the process ends in whatever way.

    False if somebody else has locked it, None on file systems that have no locks.
    """
    if fcntl is None:  # pragma: no cover
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def refuse_existing(
    folder: Path, advice: str = "choose another --out", *, besides: Collection[str] | None = None
) -> None:
    """Raise an error if `folder` exists and is not empty.

    With `besides`, files of these names and unfinished ones do not count.

    >>> refuse_existing(Path("a/folder/that/is/not/there"))
    """
    if not folder.exists():
        return
    if folder.is_dir():
        held = [path.name for path in folder.iterdir()]
        if besides is not None:
            held = [name for name in held if name not in besides and not is_unfinished(name)]
        if not held:
            return
    hint = f"continue it with `dubito train --resume {folder}`, or " if (folder / "config.yaml").exists() else ""
    what = "exists already and is not empty" if folder.is_dir() else "is a file"
    raise RunError(f"{folder} {what}; {hint}{advice}.")
