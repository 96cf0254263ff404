from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def run(digits_run: Path, tmp_path: Path) -> Path:
    """A run of its own: a report writes into it."""
    return Path(shutil.copytree(digits_run, tmp_path / "run"))


def test_a_run_is_evaluated_and_reported(dubito, run: Path, tmp_path: Path) -> None:
    np.savez("black.npz", images=np.zeros((20, 32, 32), dtype=np.uint8), labels=np.arange(20) % 2)
    out = tmp_path / "pages" / "report.html"
    result = dubito("report", run, "--samples", 2, "--ood", "black.npz", "--out", out)
    assert (result.code, result.err) == (0, "")
    assert str(out) in result.out
    assert str(run / "figures") in result.out
    assert "Recognising black as other images" in out.read_text(encoding="utf-8")
    assert (run / "figures" / "weight-std.svg").exists()  # training has left a trace of one weight
    assert (run / "evaluation.json").exists()

    Path("black.npz").unlink()
    result = dubito("report", run)
    assert result.code == 1
    assert "black.npz does not exist" in result.err
    result = dubito("report", run, "--ood", "mnits")
    assert result.code == 1
    assert "mnits" in result.err
    assert len(result.err.splitlines()) == 1


def test_a_dash_prints_the_page_and_nothing_else(dubito, run: Path, tmp_path: Path) -> None:
    result = dubito("report", run, "--samples", 2, "--out", "-")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("<!doctype html>")
    assert result.out.rstrip().endswith("</html>")
    assert not (run / "report.html").exists()
    assert not (run / "figures").exists()

    again = dubito("report", run, "--out", "-", "--figures", tmp_path / "figures")
    assert again.out == result.out
    assert (tmp_path / "figures" / "reliability.svg").exists()
    result = dubito("report", run, "--figures", "-")
    assert (result.code, result.out) == (1, "")
    assert result.err == "--figures is -, but several files are written, not one to print: name a folder.\n"


def test_what_is_no_run_ends_in_one_sentence(dubito, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in ("nowhere", "empty"):
        result = dubito("report", folder)
        assert result.code == 1
        assert len(result.err.splitlines()) == 1
        assert "run folder" in result.err
    assert not list((tmp_path / "empty").iterdir())


def test_places_are_looked_at_before_the_work(dubito, run: Path) -> None:
    Path("file").touch()
    result = dubito("report", run, "--out", "file/report.html")
    assert result.code == 1
    assert "file cannot be made: File exists." in result.err
    assert dubito("report", run, "--out", run).err == f"{run} is a folder, but must be a file to write.\n"
    assert not (run / "evaluation.json").exists()
