"""How much a file from somebody else may cost: numbers that are settings, each with its own environment variable."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

from dubito.errors import OptionError


@dataclass(frozen=True)
class FileLimits:
    """The most that a file may cost. `DUBITO_MAX_IMAGE_BYTES=2000000000` sets `max_image_bytes`, and so on.

    Attributes:
        max_image_bytes: memory to decode an image, by its format, width and height: 67 million pixels of a PNG.
        max_unpacked_bytes: what an archive (.npz, .gz) or pruned weights unpack to, unless the file itself is large:
        max_unpacked_ratio: ... then as many times the bytes of the file.
        max_text_bytes: of a configuration, description or rule (YAML, JSON), and of the header of a file of tensors.
        max_values: texts, numbers, lists and mappings in a YAML file.
        max_depth: lists and mappings inside each other, in the same.
        max_classes: classes of a network or data set.
    """

    max_image_bytes: int = 2**29
    max_unpacked_bytes: int = 2**28
    max_unpacked_ratio: int = 20
    max_text_bytes: int = 2**24
    max_values: int = 100_000
    max_depth: int = 50
    max_classes: int = 30_000

    def unpacked(self, packed: int) -> int:
        """Bytes that a file of `packed` bytes may unpack to.

        >>> FileLimits().unpacked(1_000), FileLimits().unpacked(10**9)
        (268435456, 20000000000)
        """
        return max(self.max_unpacked_bytes, self.max_unpacked_ratio * packed)


def file_limits() -> FileLimits:
    """The limits in force: those of the environment, else the defaults.

    >>> file_limits().max_classes
    30000
    """
    given = {field.name: os.environ.get(variable(field.name)) for field in fields(FileLimits)}
    return FileLimits(**{name: _whole(variable(name), text) for name, text in given.items() if text})


def variable(name: str) -> str:
    """The environment variable of a limit.

    >>> variable("max_classes")
    'DUBITO_MAX_CLASSES'
    """
    return f"DUBITO_{name.upper()}"


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"{name} is {text!r}, but must be a whole number of at least 1.")
    return int(text)
