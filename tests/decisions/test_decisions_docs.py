"""The pages on decisions are true: their example runs, and what a promise takes is as stated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dubito.decisions.binomial import images_needed

ROOT = Path(__file__).parents[2]
HOW_TO = (ROOT / "docs/how-to/threshold.md").read_text(encoding="utf-8")
PROMISE = (ROOT / "docs/explanation/decisions.md").read_text(encoding="utf-8")


def test_the_example_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", HOW_TO, flags=re.DOTALL)
    exec(compile(example, "threshold.md", "exec"), {})
    sentence, decided = capsys.readouterr().out.splitlines()
    assert sentence.startswith("Review ")
    assert set(re.findall(r"'(\w+)'", decided)) <= {"accept", "review"}


def test_a_thousandth_takes_as_many_images_as_stated() -> None:
    assert f"at least\n  {images_needed(0.001, 0.95):,} accepted images" in PROMISE
