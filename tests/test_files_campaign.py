"""The campaign of files: what it looks for is found, cases can be made again, and a short one ends well."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from campaigns import isolation, mutations
from campaigns.campaign import chance
from campaigns.files import Case, attack, mutated
from campaigns.handmade import handmade
from campaigns.isolation import Bounds, Ended, Guard, run_alone
from campaigns.openings import Kind, kinds, pictures, read_picture, read_settings
from safetensors.torch import save

from dubito.errors import DataError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the campaign counts memory as Linux does")


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    """A secret that no case may read."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "password").write_text("hunter2-of-nobody")
    return Guard(tmp_path / "secret" / "password", Path.cwd())


def refuse(sentence: str) -> Callable[[], object]:
    def act() -> None:
        raise DataError(sentence)

    return act


@pytest.fixture
def ends(guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """How something ends that a case does."""
    (tmp_path / "case").mkdir()
    monkeypatch.setattr(isolation, "WAITING", 1)
    return lambda act, seconds=30.0: run_alone(act, tmp_path / "case", guard, Bounds(seconds))


def test_what_ends_well_is_read_or_refused(ends: Callable[..., Ended]) -> None:
    assert ends(lambda: None).outcome == "read"
    assert ends(refuse("It is damaged.")).outcome == "refused"
    assert ends(lambda: Path("own.txt").write_text("a")).outcome == "read"
    assert not Path("own.txt").exists()  # it was written in the case's folder


@pytest.mark.parametrize(
    ("outcome", "act"),
    [
        ("foreign", lambda: [][0]),
        ("foreign", lambda: sys.exit(3)),
        ("unclear", refuse("one\ntwo")),
        ("unclear", refuse("")),
        ("unclear", refuse("a" * 3000)),
        ("unclear", lambda: print("\x1b[2J")),
        ("crashed", lambda: os.kill(os.getpid(), 11)),
        ("memory", lambda: bytearray(os.urandom(1) * 1_200_000_000)),
        ("memory", lambda: bytearray(10**11)),
        ("opened", lambda: subprocess.run(["true"])),
        ("opened", lambda: Path("../secret/password").read_text()),
        ("opened", lambda: Path("../elsewhere.txt").write_text("a")),
        ("opened", lambda: print("hunter2-of-nobody")),
        ("opened", lambda: __import__("socket").create_connection(("127.0.0.1", 9))),
    ],
)
def test_what_ends_badly_is_found(outcome: str, act: Callable[[], object], ends: Callable[..., Ended]) -> None:
    ended = ends(act)
    assert ended.outcome == outcome, ended.detail


def test_memory_is_what_a_case_takes_beside_what_was_there(ends: Callable[..., Ended]) -> None:
    held = bytearray(os.urandom(1) * 300_000_000)
    ended = ends(lambda: bytearray(os.urandom(1) * 100_000_000))
    assert 100 <= ended.megabytes < 250
    assert ended.whole > len(held) / 1e6 + 100


def test_what_waits_or_works_without_end_is_ended(ends: Callable[..., Ended]) -> None:
    assert ends(lambda: time.sleep(1000), seconds=1).outcome == "hung"

    def work() -> None:
        while True:
            pass

    assert ends(work, seconds=1).outcome == "hung"


def samples() -> dict[str, tuple[mutations.Mutate, bytes]]:
    """Each kind of mutation, with a file for it."""
    arrays, picture = io.BytesIO(), pictures()["PNG"]["3-RGB.png"]
    np.savez(arrays, a=np.zeros(3), b=np.ones(2, np.uint8))
    tree = {"a": [1, {"b": "c"}], "d": 0.5}
    tensors = save({"a": torch.zeros(3), "b": torch.ones(2, 2)}, {"notes": json.dumps(tree)})
    return {
        **{"bytes": (mutations.by_bytes, picture), "sizes": (mutations.of_sizes, picture)},
        **{"png": (mutations.of_png, picture), "text": (mutations.of_text, b"a: 1\nb: 2\n")},
        **{"json": (mutations.of_json("/x"), json.dumps(tree).encode()), "npz": (mutations.of_npz, arrays.getvalue())},
        **{
            "yaml": (mutations.of_yaml("/x"), b"a: [1, b]\nc: {d: 2}\n"),
            "gzip": (mutations.of_gzip, gzip.compress(b"ab")),
        },
        "safetensors": (mutations.of_safetensors("/x"), tensors),
    }


@pytest.mark.parametrize("name", samples())
def test_mutations_are_other_files_and_can_be_made_again(name: str) -> None:
    mutate, content = samples()[name]
    made = [mutate(content, chance(0, name, number)) for number in range(50)]
    assert made == [mutate(content, chance(0, name, number)) for number in range(50)]
    assert len(set(made)) > 10


def test_every_kind_is_attacked_by_hand_too() -> None:
    named = {kind.name: kind.files for kind in kinds("/secret/password")}
    cases = list(handmade("/secret/password", named))
    assert len(cases) >= 300
    assert {case.kind for case in cases} == named.keys()
    assert all(not case.file or case.file in named[case.kind] for case in cases)


def test_a_short_campaign_ends_well(guard: Guard, tmp_path: Path) -> None:
    for format_, files in pictures().items():
        (tmp_path / format_).mkdir()
        for name, content in files.items():
            (tmp_path / format_ / name).write_bytes(content)
    (tmp_path / "settings").mkdir()
    for name in ("settings.yaml", "preset.yaml"):
        (tmp_path / "settings" / name).write_text("model: alexnet\nepochs: 3\nlearning_rate: 0.001\n")
    secret = str(guard.secret)
    chosen = [kind for kind in kinds(secret) if kind.open in (read_picture, read_settings)]
    for kind in chosen:
        for number in range(12):
            case = mutated(kind, 1, number, tmp_path)
            ended = attack(case, tmp_path, guard, Bounds())
            assert ended.outcome in isolation.GOOD, (kind.name, number, ended.detail)
    named: dict[str, Kind] = {kind.name: kind for kind in chosen}
    for one in handmade(secret, {}):
        if one.kind == "settings" or "as .png" in one.what:
            kind = named[one.kind]
            case = Case(kind, one.file or kind.files[0], one.make, one.what)
            ended = attack(case, tmp_path, guard, Bounds())
            assert ended.outcome in isolation.GOOD, (one.what, ended.detail)
