"""Claiming a run folder: while one process trains into it, no other does.

A claim is a lock on the folder itself. It leaves no file behind, and it ends with its process, killed or not.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dubito.errors import RunError
from dubito.files import refuse_existing, try_lock

BEGINNING = frozenset({"environment.json", "network.json"})
"""What a run writes before its configuration: a folder that has nothing else is no run yet."""


class Claim:
    """The right to write a run folder."""

    def __init__(self, folder: Path, handle: int) -> None:
        self.folder = folder
        self._handle = handle

    def is_in_place(self) -> bool:
        """Whether the folder is still the one that was claimed."""
        try:
            return os.path.samestat(os.stat(self.folder), os.fstat(self._handle))
        except FileNotFoundError:
            return False

    def check(self) -> None:
        """An error if the folder was removed or replaced: nothing is written into another one in its place."""
        if not self.is_in_place():
            raise RunError(
                f"The run folder {self.folder} was removed or replaced during the training, which is lost: train again."
            )


@contextmanager
def claimed(folder: Path, *, new: bool = False) -> Iterator[Claim]:
    """Claim a run folder; an error says if another process has it.

    A `new` one is made. What a training left there that was killed before it began is cleared away; any other content
    is refused.
    """
    handle = _open(folder, new)
    claim = Claim(folder, handle)
    try:
        if new:
            refuse_existing(folder, besides=BEGINNING)
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield claim
    finally:
        os.close(handle)


def _open(folder: Path, new: bool) -> int:
    """The folder, open and locked."""
    while True:
        if new:
            refuse_existing(folder, besides=BEGINNING)
            folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        if try_lock(handle) is False:
            os.close(handle)
            raise RunError(
                f"Another process is training into {folder}; wait until it ends, or {'choose another --out' * new}"
                f"{'stop it' * (not new)}."
            )
        if Claim(folder, handle).is_in_place():
            return handle
        os.close(handle)  # its last owner has removed it in this very moment
