from __future__ import annotations

from typing import Any

import pytest
from benchmarks.before_after import WORKS, Bench, compare


@pytest.mark.parametrize("work", WORKS)
def test_a_turn_times_the_twin_and_dubito(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.before_after.BATCH", 4)
    monkeypatch.setattr("benchmarks.before_after.ENOUGH", 0.0)
    bench = Bench("cpu")
    bench.prepare("lenet5", work)
    plain, ours = bench.turn()
    assert plain > 0
    assert ours > 0


class _Tree:
    """Answers every turn with the next times of a list."""

    def __init__(self, times: list[list[float]]) -> None:
        self._times = iter(times)

    def ask(self, verb: str, *arguments: str) -> Any:
        return next(self._times) if verb == "turn" else None


def test_ratios_are_of_one_turn_and_their_quotients_of_one_round() -> None:
    before = _Tree([[1.0, 2.0], [10.0, 30.0], [1.0, 4.0]])
    after = _Tree([[1.0, 1.0], [2.0, 3.0], [5.0, 20.0]])
    found = compare([before, after], "lenet5", "predict", 3)  # type: ignore[list-item]
    assert found["before"] == {"median": 3.0, "low": 2.5, "high": 3.5}
    assert found["after"]["median"] == 1.5
    assert found["quotient"]["median"] == 0.5
