from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from dubito.benchmark import Frequentist


class Clock:
    """A worker that takes twice as long as the twin for everything."""

    version = "1.0"

    def __init__(self, kind) -> None:
        self.kind = kind
        self.taken = 0.05 if kind is Frequentist else 0.1

    def prepare(self, work: object) -> float:
        return self.taken

    def seconds(self, work: object, repeat: int) -> float:
        return self.taken

    def memory(self, work: object) -> float:
        return 1000 * self.taken


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    seen = SimpleNamespace(threads=None)

    @contextmanager
    def open_workers(kinds, threads) -> Iterator[dict[str, Clock]]:
        seen.threads = threads
        yield {kind.name: Clock(kind) for kind in kinds}

    monkeypatch.setattr("dubito.benchmark.open_workers", open_workers)
    return seen


def test_bench_prints_multiples_of_the_twin_and_writes_them(dubito, opened, tmp_path) -> None:
    out = tmp_path / "bench.json"
    result = dubito("bench", "--model", "lenet5,alexnet", "--threads", 3, "--repeats", 2, "--out", out)
    assert result.code == 0
    assert opened.threads == 3
    twice = ["2.00", "(2.00", "..", "2.00)"]
    lines = {
        name: [line for line in result.out.splitlines() if line.startswith(name)]
        for name in ("dubito local", "dubito.predict")
    }
    assert [line.split()[2:] for line in lines["dubito local"]] == [[*twice, "100", "MB"]] * 2
    assert [line.split()[1:] for line in lines["dubito.predict"]] == [[*twice, *twice, "100", "MB"]] * 2
    assert "moments costs 2.00 (2.00 .. 2.00) passes" in result.out
    written = json.loads(out.read_text())
    assert list(written["networks"]) == ["lenet5", "alexnet"]
    assert written["networks"]["lenet5"]["ratios"]["dubito local"]["step"]["median"] == 2.0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--model", "resnet"), "model is 'resnet', but must be one of 'lenet5', 'alexnet', 'vgg16'."),
        (("--model", ","), "--model is empty, but must name at least one network, such as lenet5."),
        (("--out", "."), ". is a folder, but must be a file to write."),
        (("--repeats", "0"), "Invalid value for '--repeats'"),
    ],
)
def test_bench_refuses_what_it_cannot_measure_in_one_sentence(dubito, opened, arguments, sentence) -> None:
    result = dubito("bench", *arguments)
    assert result.code != 0
    assert result.out == ""
    assert sentence in result.err
    assert len(result.err.splitlines()) == 1
