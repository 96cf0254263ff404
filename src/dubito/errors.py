"""Exceptions that a caller can catch by meaning.

Every message is one sentence that says what was given, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import Enum
from typing import TypeVar

__all__ = [
    "DataError",
    "DubitoError",
    "DubitoWarning",
    "HeadError",
    "NonFiniteError",
    "OptionError",
    "RunError",
    "ShapeError",
    "TargetError",
    "choose",
]


class DubitoError(Exception):
    """Base of every exception that dubito raises on purpose."""


class OptionError(DubitoError, ValueError):
    """An option has a value that does not exist or makes no sense."""


class ShapeError(DubitoError, ValueError):
    """A tensor's shape or type does not fit where it was given."""


class HeadError(DubitoError, ValueError):
    """A model has no head of its own and none was given."""


class NonFiniteError(DubitoError, ArithmeticError):
    """A parameter, loss or output is NaN or infinite."""


class DataError(DubitoError, ValueError):
    """A data set, file or image is missing, corrupt or not what it claims to be."""


class RunError(DubitoError, RuntimeError):
    """A run folder is missing, incomplete or does not fit what was asked of it."""


class TargetError(DubitoError, ValueError):
    """The goal of a rule cannot be promised; `best` is the best rule that can."""

    def __init__(self, message: str, best: object = None) -> None:
        super().__init__(message)
        self.best = best


class DubitoWarning(UserWarning):
    """Something works, but probably not as intended."""


def missing(what: str, package: str | None, extra: str) -> DubitoError:
    """The error for a package that an extra brings; it says what to type, installed or in a checkout.

    >>> print(missing("Serving", "uvicorn", "serve"))
    Serving needs uvicorn, which is missing: pip install 'dubito[serve]', or in a checkout pip install -e '.[serve]'.
    """
    install = f"pip install 'dubito[{extra}]', or in a checkout pip install -e '.[{extra}]'"
    return DubitoError(f"{what} needs {package}, which is missing: {install}.")


Choice = TypeVar("Choice", bound=Enum)

LONGEST = 200
"""Characters that a sentence repeats of what was given."""


def choose(kind: type[Choice], value: str | Choice, name: str) -> Choice:
    """The member of a str-enum that `value` names; an unknown one lists the valid ones.

    >>> from enum import Enum
    >>> class Colour(str, Enum):
    ...     RED = "red"
    >>> choose(Colour, "red", "colour").value
    'red'
    """
    try:
        return kind(value)
    except ValueError:
        raise OptionError(unknown(name, value, [member.value for member in kind])) from None


def unknown(name: str, given: object, valid: Iterable[str]) -> str:
    """The sentence for an option that does not exist, with the nearest that does.

    >>> unknown("model", "lenet", ["lenet5", "vgg16"])
    "model is 'lenet', but must be one of 'lenet5', 'vgg16'; the nearest is 'lenet5'."
    """
    names, shown = list(valid), repr(given)
    shown = shown if len(shown) <= LONGEST else f"{shown[:LONGEST]} ..."
    nearest = get_close_matches(str(given)[:LONGEST], names, n=1, cutoff=0.75)
    hint = f"; the nearest is {nearest[0]!r}" if nearest else ""
    return f"{name} is {shown}, but must be one of {', '.join(repr(v) for v in names)}{hint}."


def not_a_tensor(outputs: object, who: str) -> str:
    """What to say of a network that returned something else than a tensor."""
    return (
        f"The model returned {type(outputs).__name__}, but {who} needs a tensor of logits (N, C): wrap the model in "
        "dubito.Logits, or in a module that returns them."
    )
