"""The benchmark's page and tables are those of results/benchmark.json, which `make bench` wrote."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.peers.document import page, tables

ROOT = Path(__file__).parents[2]


def test_the_page_and_the_tables_show_these_results() -> None:
    results = json.loads((ROOT / "results" / "benchmark.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "results" / "benchmark.md").read_text(encoding="utf-8") == page(results)
    assert (ROOT / "results" / "benchmark.md").read_text(encoding="utf-8") == tables(results)
    assert (ROOT / "docs" / "results" / "benchmark.png").exists()
