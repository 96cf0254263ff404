"""Reading files that may come from anybody: YAML, JSON and safetensors, bounded in size, number of values and depth.

Whatever they hold, code that reads them inside :func:`reading` ends in one sentence that names the file. The sentence
never quotes lines of it, for a file may be a link to another one.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import reprlib
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dubito.errors import DubitoError, RunError
from dubito.limits import file_limits, variable

if TYPE_CHECKING:
    from torch import Tensor

FAULTS = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, EOFError)
"""What code raises on content that is not what it expects; a RecursionError is a RuntimeError too."""
LONGEST = 300
"""Characters of a reason that a sentence repeats."""
LONGEST_LINE = 2**20
"""Bytes of a line of a list or a table."""


@contextmanager
def reading(file: object, advice: str, kind: type[DubitoError] = RunError) -> Iterator[None]:
    """Whatever goes wrong with the content of a file becomes one sentence that names it.

    >>> with reading("a.json", "make it again"):
    ...     {}["epochs"]
    Traceback (most recent call last):
    dubito.errors.RunError: a.json is damaged ('epochs' is missing); make it again.
    """
    try:
        yield
    except DubitoError:
        raise
    except FAULTS as error:
        raise kind(f"{file} is damaged ({reason_of(error)}); {advice}.") from error


def reason_of(error: BaseException) -> str:
    """What an exception says, in one short line.

    >>> reason_of(KeyError("epochs")), reason_of(RuntimeError())
    ("'epochs' is missing", 'RuntimeError')
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, KeyError) and error.args:
        return f"{reprlib.repr(error.args[0])} is missing"
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text[:LONGEST] + (" ..." if len(text) > LONGEST else "")


def read_text(file: Path) -> str:
    """A text of bounded length; a ValueError if it is longer, no UTF-8 or no file."""
    most = file_limits().max_text_bytes
    with open_file(file) as content:
        data = content.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it is longer than {most} bytes, see {variable('max_text_bytes')}")
    return _decoded(data)


def read_lines(file: str | os.PathLike[str], encoding: str = "utf-8", errors: str = "strict") -> Iterator[str]:
    """The lines of a text of any length, with their ends; a ValueError for one that is too long."""
    with io.TextIOWrapper(open_file(file), encoding=encoding, errors=errors, newline="") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(LONGEST_LINE), ""), start=1):
            if len(line) == LONGEST_LINE:
                raise ValueError(f"line {number} is longer than {LONGEST_LINE} characters")
            yield line


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (byte {error.start})") from None


def open_file(file: str | os.PathLike[str]) -> BinaryIO:
    """The file open for reading; a ValueError for whatever is not one, such as a pipe that nobody writes to."""
    handle = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("it is not a file")
    return os.fdopen(handle, "rb")


def digest_of(file: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, however large; a ValueError if it is none."""
    digest = hashlib.sha256()
    with open_file(file) as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_json(file: Path) -> Any:
    """What a JSON file holds; a ValueError says why it cannot be read."""
    return parse_json(read_text(file))


def parse_json(text: str) -> Any:
    """What a JSON text of bounded length and depth says; else a ValueError.

    >>> parse_json('{"a": [1]}')
    {'a': [1]}
    >>> parse_json("[" * 51 + "]" * 51)
    Traceback (most recent call last):
    ValueError: it is nested more than 50 deep, see DUBITO_MAX_DEPTH
    """
    limits = file_limits()
    if len(text) > limits.max_text_bytes:
        raise ValueError(f"it is longer than {limits.max_text_bytes} bytes, see {variable('max_text_bytes')}")
    deep = ValueError(f"it is nested more than {limits.max_depth} deep, see {variable('max_depth')}")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON (line {error.lineno}: {error.msg})") from None
    except RecursionError:
        raise deep from None
    level = [content]
    for _ in range(limits.max_depth):
        level = [inner for outer in level if isinstance(outer, (dict, list)) for inner in _inside(outer)]
        if not level:
            return content
    raise deep


def _inside(outer: dict[str, Any] | list[Any]) -> Iterator[Any]:
    """The dictionaries and lists in a dictionary or list."""
    values = outer.values() if isinstance(outer, dict) else outer
    return (value for value in values if isinstance(value, (dict, list)))


def read_yaml(file: Path) -> Any:
    """What a YAML file holds, without aliases, which a few lines can turn into billions of values; else a ValueError.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "x.yaml").write_text("a: &x [1]\\nb: *x")
    ...     read_yaml(Path(folder) / "x.yaml")
    Traceback (most recent call last):
    ValueError: it has the alias *x, but aliases are not allowed
    """
    import yaml

    text = read_text(file)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times as fast
    try:
        _require_plain(yaml.parse(text, loader))
        return yaml.load(text, loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark is not None else ""
        raise ValueError(f"it is not valid YAML{place}: {_problem(error)}") from None


def _problem(error: Exception) -> str:
    """What is wrong with a YAML file, without the texts that it quotes."""
    found = str(getattr(error, "problem", None) or "it has characters that cannot be read")
    return found.split("'")[0].strip()[:LONGEST]


def _require_plain(events: Iterator[Any]) -> None:
    """A ValueError if a YAML file has aliases, too many values or too much depth; it ends where the first is found."""
    import yaml

    limits, depth = file_limits(), 0
    for number, event in enumerate(events):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it has the alias *{str(event.anchor)[:20]}, but aliases are not allowed")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > limits.max_depth:
            raise ValueError(f"it is nested more than {limits.max_depth} deep, see {variable('max_depth')}")
        if number > limits.max_values:
            raise ValueError(f"it has more than {limits.max_values} values, see {variable('max_values')}")


def read_tensors(
    file: Path, key: str = "notes", wanted: Callable[[list[str]], list[str]] | None = None
) -> tuple[dict[str, Tensor], str]:
    """The tensors of a safetensors file, and the text that it has under `key`; a ValueError says what is wrong.

    `wanted` chooses among the names of its tensors. The text is empty if there is none.
    """
    from safetensors import SafetensorError, safe_open

    most = file_limits().max_text_bytes
    with open_file(file) as content:
        length = int.from_bytes(content.read(8), "little")
    if length > most:
        raise ValueError(f"it says that its header has {length} bytes, but {most} are allowed")
    try:
        with safe_open(file, framework="pt") as content:
            names = list(content.keys())
            tensors = {name: content.get_tensor(name) for name in (names if wanted is None else wanted(names))}
            return tensors, (content.metadata() or {}).get(key, "")
    except SafetensorError as error:
        raise ValueError(reason_of(error)) from None
