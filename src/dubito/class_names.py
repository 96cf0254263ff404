"""What the names of classes must be, wherever they come from: a data set, a run folder or a network's description."""

from __future__ import annotations

from collections.abc import Iterable

from dubito.errors import DataError
from dubito.harmless import is_control
from dubito.limits import file_limits, variable

LONGEST = 1000


def check_class_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names, if each can be shown, written to a file and told from the others; else a DataError.

    >>> check_class_names(["cat", "dog"])
    ('cat', 'dog')
    >>> check_class_names(["cat", "cat"])
    Traceback (most recent call last):
    dubito.errors.DataError: Two classes are called 'cat'; give each a name of its own.
    """
    names = tuple(names)
    check_class_count(len(names))
    seen: set[str] = set()
    for name in names:
        _check_name(name)
        if name in seen:
            raise DataError(f"Two classes are called {name!r}; give each a name of its own.")
        seen.add(name)
    return names


def check_class_count(count: int) -> None:
    """Refuse no classes, and too many."""
    most = file_limits().max_classes
    if not 0 < count <= most:
        raise DataError(f"There are {count} classes, but there must be 1 to {most} ({variable('max_classes')}).")


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise DataError(f"A class name is of type {type(name).__name__}, but must be text.")
    if not name.strip():
        raise DataError("A class has an empty name; give it one.")
    if len(name) > LONGEST:
        raise DataError(f"A class name has {len(name)} characters, but must have at most {LONGEST}; shorten it.")
    if any(map(is_control, name)):
        raise DataError(f"The class name {name!a} has control characters or is not UTF-8; rename the class.")
