"""docs/how-to/cluster.md is true: its figures are those of the result file, and its example runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from benchmarks.cluster import BEGIN, projection
from benchmarks.pages import with_table

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/how-to/cluster.md").read_text(encoding="utf-8")


def test_figures_are_those_that_were_measured() -> None:
    found = json.loads((ROOT / "results/cluster.json").read_text(encoding="utf-8"))
    assert with_table(TEXT, BEGIN, projection(found)) == TEXT


def test_a_table_of_a_billion_images_follows_the_formula() -> None:
    found = {
        "machine": {"cpu": "a processor"},
        "settings": {"data": "mnist", "samples": 10, "workers": 2},
        "rates": {"images_per_second": {"1": [1000.0], "2": [2000.0]}, "ratio": 2.0},
        "bytes_per_image": 300.0,
        "whole": {"bytes_per_row": 100.0},
    }
    text = projection(found)
    assert "| 512 | 0.5 | 153.6 | 51.2 | 62.50 |" in text  # 1e9 / 512,000 / 3,600; 512,000 * 300 bytes
    assert "0.30 TB of images, 0.10 TB of predictions" in text


def test_the_example_and_the_configuration_can_be_read() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    exec(compile(example, "cluster.md", "exec"), {})
    (configuration,) = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    content = yaml.safe_load(configuration)
    assert content["head_node_type"] in content["available_node_types"]
