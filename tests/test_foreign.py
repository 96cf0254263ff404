"""Files from anybody are read with bounds, and end in a ValueError whatever they hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from dubito.foreign import parse_json, read_json, read_tensors, read_text, read_yaml, reading

BOMB = "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*{'a' if n == 0 else f'b{n - 1}'}, *a]\n" for n in range(40))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, "it has the alias"),
        ("[" * 100_000, "nested more than 50 deep"),
        ("- " * 100_000, "nested more than 50 deep"),
        ("[" + "a," * 200_000 + "]", "more than 100000 values"),
        ("a: [1", "it is not valid YAML in line"),
        ("a: 'secret\nline: \tsecret", "it is not valid YAML"),
        ("a: !!python/object/apply:os.getcwd []", "it is not valid YAML"),
        ("a: \x00", "it is not valid YAML"),
        ("a: 2024-99-99", "month"),
    ],
)
def test_yaml_that_is_no_plain_data_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ValueError) as raised:
        read_yaml(tmp_path / "x.yaml")
    assert reason in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "[" * 60 + "]" * 60, "9" * 10_000, '{"a": 1} secret'])
def test_json_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_json(text)
    assert "secret" not in str(raised.value)


def test_a_text_is_bounded_and_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "long").write_text('"' + "a" * 200 + '"')
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    assert len(read_json(tmp_path / "long")) == 200
    monkeypatch.setenv("DUBITO_MAX_TEXT_BYTES", "100")
    for name, reason in (("long", "longer than 100 bytes, see DUBITO_MAX_TEXT_BYTES"), ("latin", "not UTF-8")):
        with pytest.raises(ValueError, match=reason):
            read_text(tmp_path / name)
    with pytest.raises(ValueError, match="longer than 100 bytes"):
        parse_json("[" + "1," * 100 + "1]")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (read_text, read_tensors):
        with pytest.raises(ValueError, match="not a file"):
            read(tmp_path / "pipe")  # type: ignore[operator]


def test_tensors_have_a_bounded_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(save({"a": torch.zeros(2), "b": torch.ones(1)}, {"notes": "[1]", "json": "{}"}))
    tensors, notes = read_tensors(file, "json", lambda names: [name for name in names if name == "b"])
    assert list(tensors) == ["b"]
    assert notes == "{}"
    file.write_bytes((2**50).to_bytes(8, "little") + file.read_bytes()[8:])
    with pytest.raises(ValueError, match="header has 1125899906842624 bytes"):
        read_tensors(file)
    for damaged in (b"", b"\0" * 7, b"\x02" + b"\0" * 7 + b"[]", b"\x08" + b"\0" * 7 + b'{"a":1}}'):
        file.write_bytes(damaged)
        with pytest.raises(ValueError):
            read_tensors(file)


def test_what_goes_wrong_with_a_content_names_the_file() -> None:
    from dubito.errors import DataError, OptionError, RunError

    for error in (KeyError("a"), TypeError("b"), ZeroDivisionError(), RecursionError()):
        sentence = r"^x\.json is damaged \(.+\); make it again\.$"
        with pytest.raises(RunError, match=sentence), reading("x.json", "make it again"):
            raise error
    with pytest.raises(DataError), reading("x.json", "make it again", DataError):
        raise ValueError
    with pytest.raises(OptionError, match=r"^a sentence$"), reading("x.json", "make it again"):
        raise OptionError("a sentence")
    with pytest.raises(KeyboardInterrupt), reading("x.json", "make it again"):
        raise KeyboardInterrupt
