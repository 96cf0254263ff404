"""The benchmark's page and tables are those of results/benchmark.json, which `make bench` wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.peers.document import page, tables
from benchmarks.peers.systems import SYSTEMS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "benchmark.json"
pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="`make bench` has not been run: no results/benchmark.json")


@pytest.fixture
def results() -> dict:
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def test_the_page_and_the_tables_show_these_results(results) -> None:
    assert (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8") == page(results)
    assert (ROOT / "results" / "benchmark.md").read_text(encoding="utf-8") == tables(results)
    assert (ROOT / "docs" / "benchmark.png").exists()


def test_the_results_are_those_of_a_full_run_of_every_system(results) -> None:
    assert not results["quick"]
    assert set(results["stages"]) == {"lenet5", "alexnet", "vgg16", "growth"}
    for name in ("lenet5", "alexnet", "vgg16"):
        stage = results["stages"][name]
        assert set(stage["ratios"]) == {system.name for system in SYSTEMS}
        assert all(by or system in stage["failures"] for system, by in stage["ratios"].items())
