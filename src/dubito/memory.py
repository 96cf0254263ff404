"""Memory that is freed and soon wanted again.

glibc gives large blocks back to the system as soon as they are free, and gets them back page by page, each cleared. A
training step frees and wants the same hundred megabytes every time, and a fifth of it can go into that.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8
"""Options of glibc's `mallopt`: what the heap may have free at its end, how many blocks may lie outside of it, and how
many heaps threads may have."""


def keep_freed_memory() -> None:
    """Let this process keep what it frees for what it needs next; without glibc, nothing changes.

    Programs call it when they start, since it concerns everything in the process.
    """
    _ask_glibc("mallopt", TRIM_THRESHOLD, -1)
    _ask_glibc("mallopt", MMAP_MAX, 0)


def use_one_heap() -> None:
    """Let all threads that start from now on share a heap; without glibc, nothing changes.

    Otherwise every thread has its own: memory that one has freed is of no use to the others, and the free end of a
    thread's heap cannot be given back. Programs call it before they start threads that handle large things.
    """
    _ask_glibc("mallopt", ARENA_MAX, 1)


def give_back_memory() -> None:
    """Give what is free back to the system, after a piece of work that is not the usual; without glibc, do nothing.

    >>> give_back_memory()
    """
    _ask_glibc("malloc_trim", 0)


def _ask_glibc(function: str, *arguments: int) -> None:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            getattr(ctypes.CDLL(None), function)(*arguments)
