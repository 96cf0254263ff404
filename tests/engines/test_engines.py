"""Engines carry every item once, whatever dies meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dubito.engines import ENGINES, LocalEngine, RayEngine, get_engine
from dubito.errors import DataError, DubitoError, OptionError


@pytest.fixture(autouse=True)
def sent_as_they_are(ray_of_two: Any) -> None:
    """Workers do not find the modules of tests."""
    ray_of_two.cloudpickle.register_pickle_by_value(sys.modules[__name__])


def squares() -> Any:
    return lambda number: number**2


def dying_once(folder: Path) -> Any:
    """A function whose process dies at every third item, the first time that it sees it."""

    def work(number: int) -> int:
        if number % 3 == 0:
            try:
                (folder / str(number)).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        return number**2

    return work


def failing() -> Any:
    def work(number: int) -> int:
        raise DataError(f"{number} is no image.")

    return work


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_gives_the_result_of_every_item(name: str, ray_of_two: object) -> None:
    assert sorted(get_engine(name).map(squares, iter(range(20)))) == [(number, number**2) for number in range(20)]


@pytest.mark.parametrize("name", ENGINES)
def test_an_error_is_raised_as_it_was(name: str, ray_of_two: object) -> None:
    with pytest.raises(DataError, match="is no image"):
        list(get_engine(name).map(failing, [1]))


def test_items_of_workers_that_die_go_to_others_once(ray_of_two: object, tmp_path: Path) -> None:
    found = list(RayEngine(workers=2).map(partial(dying_once, tmp_path), iter(range(8))))
    assert sorted(found) == [(number, number**2) for number in range(8)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "3", "6"]


def test_items_are_taken_as_they_are_needed(ray_of_two: object) -> None:
    taken = []

    def items() -> Any:
        for number in range(1000):
            taken.append(number)
            yield number

    results = RayEngine(workers=1).map(squares, items())
    next(results)
    assert len(taken) < 10
    results.close()


def test_options_without_sense_are_refused() -> None:
    with pytest.raises(OptionError, match="--workers can only be used with --engine ray"):
        get_engine("local", workers=2)
    with pytest.raises(OptionError, match="engine is 'spark'"):
        get_engine("spark")
    assert get_engine("local", workers=None).name == LocalEngine.name


def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, ray_of_two: Any) -> None:
    monkeypatch.setattr(ray_of_two, "is_initialized", lambda: False)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(DubitoError, match=f"Ray cannot be reached at {address}"):
        next(RayEngine(address=address).map(squares, [1]))


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DubitoError, match=r"pip install 'dubito\[ray\]'"):
        get_engine("ray")
