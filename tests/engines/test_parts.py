"""`dubito predict --out FOLDER`: parts, their manifest, and what becomes of them when something dies."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dubito
from dubito.cli import run as run_cli
from dubito.data import load
from dubito.errors import DubitoError, OptionError, RunError
from dubito.runs.run import Run
from dubito.tables import BatchPredictor, ChunkPredictor, Listing, Parts, make_predict_fn, predict_parts

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

COUNT = 40


def png(image: torch.Tensor) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image[0].numpy()).save(file, "png")
    return file.getvalue()


@pytest.fixture(scope="module")
def pngs() -> list[bytes]:
    return [png(image) for image in load("digits", "test").images[:COUNT]]


@pytest.fixture
def table(pngs: list[bytes], tmp_path: Path) -> Path:
    """A table of bytes, one of which is no image."""
    images = [*pngs[:-1], b"nonsense"]
    file = tmp_path / "images.parquet"
    parquet.write_table(pyarrow.table({"key": [f"image {n}" for n in range(COUNT)], "image": images}), file)
    return file


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of all parts, in order."""
    return [row for part in sorted(folder.glob("part-*.parquet")) for row in parquet.read_table(part).to_pylist()]


def run_command(*arguments: object) -> int:
    return run_cli([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def expected(digits_run: Path, pngs: list[bytes]) -> Any:
    torch.set_flush_denormal(True)
    return dubito.Predictor(digits_run)(pngs[:-1])


def check(rows: list[dict[str, Any]], expected: Any) -> None:
    assert [row["path"] for row in rows] == [f"image {number}" for number in range(COUNT)]
    assert rows[-1]["label"] is rows[-1]["confidence"] is None
    assert rows[-1]["error"].startswith(f"image {COUNT - 1} cannot be read as an image")
    for name in ("confidence", "aleatoric", "epistemic", "novelty"):
        rounding = 1e-3 if name == "novelty" else 1e-6  # its distances are differences of large numbers
        np.testing.assert_allclose([row[name] for row in rows[:-1]], getattr(expected, name), atol=rounding, rtol=1e-5)
    assert all(row["error"] is None for row in rows[:-1])


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_every_engine_writes_what_one_predictor_says(
    engine: str, digits_run: Path, table: Path, tmp_path: Path, ray_of_two: object, expected: Any, capsys: Any
) -> None:
    options = ("--engine", engine, "--chunk", 7, "--out", tmp_path / "parts")
    assert run_command("predict", digits_run, table, *options) == 0
    assert len(list((tmp_path / "parts").glob("part-*.parquet"))) == -(-COUNT // 7)
    check(rows_of(tmp_path / "parts"), expected)
    manifest = json.loads((tmp_path / "parts" / "manifest.json").read_text())
    assert (manifest["complete"], manifest["rows"], manifest["errors"], manifest["parts"]) == (True, COUNT, 1, 6)
    printed = capsys.readouterr()
    assert f"Predicted {COUNT} images" in printed.out
    assert "1 of 40 images could not be read" in printed.err


class Dying:
    """A predictor whose process dies after some chunks, the first time."""

    def __init__(self, run: str, mark: Path) -> None:
        self.predict, self.mark = ChunkPredictor.of_run(run), mark

    def __call__(self, chunk: Any) -> Any:
        if chunk.number == 2 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.predict(chunk)


def test_a_worker_that_is_killed_loses_nothing(
    digits_run: Path, table: Path, tmp_path: Path, ray_of_two: Any, expected: Any
) -> None:
    listing, parts = Listing([str(table)], Run.open(digits_run).data, 7), Parts(tmp_path / "parts", {})
    ray_of_two.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # which workers do not find
    make = partial(Dying, str(digits_run), tmp_path / "died")
    total = predict_parts(dubito.engines.RayEngine(workers=2), make, listing, parts)  # type: ignore[arg-type]
    assert (tmp_path / "died").exists()
    assert (total.rows, total.errors, total.parts) == (COUNT, 1, 6)
    check(rows_of(tmp_path / "parts"), expected)


@pytest.mark.slow
def test_a_driver_that_is_killed_goes_on_with_every_image_once(
    digits_run: Path, table: Path, tmp_path: Path, ray_of_two: object, expected: Any
) -> None:
    out = tmp_path / "parts"
    options = ["predict", str(digits_run), str(table), "--chunk", "2", "--out", str(out)]
    driver = subprocess.Popen([sys.executable, "-m", "dubito", *options], stdout=subprocess.DEVNULL)
    while driver.poll() is None and len(list(out.glob("part-*"))) < 2:
        time.sleep(0.01)
    driver.kill()
    driver.wait()
    left = {part: part.read_bytes() for part in out.glob("part-*")}
    (out / ".part-00000019.parquet.half").write_bytes(b"half")
    assert json.loads((out / "manifest.json").read_text())["complete"] is (len(left) == 20)
    assert run_command(*options, "--engine", "ray", "--resume") == 0
    check(rows_of(out), expected)
    assert all(part.read_bytes() == content for part, content in left.items())
    assert not list(out.glob(".part*"))


def test_another_work_is_not_mixed_in(digits_run: Path, table: Path, tmp_path: Path, capsys: Any) -> None:
    options = ("predict", digits_run, table, "--chunk", 16, "--out", tmp_path / "parts")
    assert run_command(*options, "--samples", 2) == 0
    assert run_command(*options, "--samples", 2) == 1
    assert "continue it with --resume" in capsys.readouterr().err
    assert run_command(*options, "--samples", 3, "--resume") == 1
    assert "was begun with another settings" in capsys.readouterr().err
    assert run_command(*options[:2], "digits", *options[3:], "--samples", 2, "--resume") == 1
    assert "was begun with another inputs" in capsys.readouterr().err
    assert run_command(*options, "--samples", 2, "--resume") == 0
    assert "40 of them in an earlier run" in capsys.readouterr().out


def test_a_folder_is_asked_for(digits_run: Path, tmp_path: Path, capsys: Any) -> None:
    assert run_command("predict", digits_run, "digits", "--engine", "ray", "--out", tmp_path / "a.csv") == 1
    assert "--engine ray needs --out FOLDER" in capsys.readouterr().err
    assert run_command("predict", digits_run, "digits", "--resume") == 1
    assert "--resume needs --out FOLDER" in capsys.readouterr().err


def test_a_folder_without_a_part_is_begun_anew(tmp_path: Path) -> None:
    Parts(tmp_path / "parts", {"settings": 1})
    parts = Parts(tmp_path / "parts", {"settings": 2})  # the first ended before it had a part
    parts.finish(complete=True)
    with pytest.raises(RunError, match="is not empty"):
        Parts(tmp_path / "parts", {"settings": 2})


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "part-00000000.parquet").touch()
    with pytest.raises(RunError, match=r"no manifest\.json"):
        Parts(tmp_path, {}, resume=True)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(RunError, match="is damaged"):
        Parts(tmp_path, {}, resume=True)


def test_images_are_found_wherever_they_are(pngs: list[bytes], digits_run: Path, tmp_path: Path) -> None:
    data = Run.open(digits_run).data
    folder = tmp_path / "images" / "3"
    folder.mkdir(parents=True)
    paths = [folder / f"{number:02}.png" for number in range(6)]
    for path, content in zip(paths, pngs, strict=False):
        path.write_bytes(content)
    names = [str(path) for path in paths]
    (tmp_path / "list.txt").write_text("\n".join(names) + "\n")
    parquet.write_table(pyarrow.table({"path": names}), tmp_path / "paths.parquet")
    parquet.write_table(pyarrow.table({"name": names, "png": pngs[:6]}), tmp_path / "bytes.parquet", row_group_size=4)
    struct = pyarrow.array([{"bytes": content, "path": None} for content in pngs[:6]])
    parquet.write_table(pyarrow.table({"path": names, "image": struct}), tmp_path / "struct.parquet")
    ways = {
        "folder": [str(tmp_path / "images")],
        "twice": [names[0], str(tmp_path / "images"), str(folder)],
        "glob": [str(folder / "*.png")],
        "files": names,
        "list": [str(tmp_path / "list.txt")],
        "paths": [str(tmp_path / "paths.parquet")],
        "bytes": [str(tmp_path / "bytes.parquet")],
        "struct": [str(tmp_path / "struct.parquet")],
        "address": [f"file://{folder}"],
        "address of a table": [f"file://{tmp_path / 'bytes.parquet'}"],
    }
    predict = ChunkPredictor(make_predict_fn(digits_run, samples=2))
    found = {}
    for way, arguments in ways.items():
        listing = Listing(arguments, data, 4)
        chunks = [predict(chunk) for chunk in listing.chunks()]
        assert listing.images == 6, way
        assert [name.removeprefix("file://") for part in chunks for name in part["path"]] == names, way
        found[way] = np.concatenate([part["confidence"] for part in chunks])
        known = "3" if way in ("folder", "twice") else None
        assert [truth for part in chunks for truth in part["truth"]] == [known] * 6
    assert all(np.array_equal(values, found["folder"]) for values in found.values())
    parquet.write_table(pyarrow.table({"number": [1]}), tmp_path / "none.parquet")
    with pytest.raises(DubitoError, match="needs one of bytes"):
        list(Listing([str(tmp_path / "none.parquet")], data).chunks())


def test_small_chunks_of_large_row_groups_are_their_rows(pngs: list[bytes], digits_run: Path, tmp_path: Path) -> None:
    data = Run.open(digits_run).data
    parquet.write_table(pyarrow.table({"image": pngs}), tmp_path / "images.parquet")
    found = [chunk.read(data) for chunk in Listing([str(tmp_path / "images.parquet")], data, 3).chunks()]
    assert [picture for part in found for picture in part.pictures] == pngs
    assert found[1].names[0].endswith("images.parquet/3")


class TestPredictFunction:
    """Called as others call it."""

    def test_spark_gives_arrays_and_takes_columns(self, digits_run: Path, pngs: list[bytes], expected: Any) -> None:
        """`predict_batch_udf` calls the maker without arguments, once a process, and then its result with an array."""
        make = partial(make_predict_fn, str(digits_run))
        torch.set_flush_denormal(True)
        predict = make()
        column = np.empty(len(pngs) - 1, object)  # what a column of binary values becomes
        column[:] = pngs[:-1]
        columns = predict(column)
        assert all(isinstance(values, np.ndarray) and len(values) == len(column) for values in columns.values())
        np.testing.assert_allclose(columns["epistemic"], expected.epistemic, atol=1e-6)
        pixels = load("digits", "test").images[: len(column), 0].numpy()  # a column of arrays, with its tensor shape
        np.testing.assert_allclose(predict(pixels)["confidence"], columns["confidence"], atol=1e-6)

    def test_webdataset_gives_lists_of_bytes_or_decoded_batches(self, digits_run: Path, pngs: list[bytes]) -> None:
        """After `.to_tuple("png", "__key__").batched(8)`; with `.decode("rgb8")` before it, arrays."""
        predict = make_predict_fn(digits_run, samples=2)
        raw = ([*pngs[:7], b""], [str(number) for number in range(8)])
        columns = predict(*raw)
        assert [error is None for error in columns["error"]] == [True] * 7 + [False]
        assert columns["error"][7].startswith("7 cannot be read")
        assert np.isnan(columns["confidence"][7])
        colours = np.stack([np.array(Image.open(io.BytesIO(content)).convert("RGB")) for content in pngs[:7]])
        np.testing.assert_allclose(predict(colours)["confidence"], columns["confidence"][:7], atol=1e-6)

    def test_ray_data_gives_columns_and_takes_columns(self, digits_run: Path, pngs: list[bytes], expected: Any) -> None:
        """`map_batches` makes the class once an actor, and calls it with a column a key."""
        predict = BatchPredictor(str(digits_run), samples=10)
        column = np.empty(len(pngs), object)
        column[:] = [*pngs[:-1], b"no picture"]
        columns = predict({"key": np.arange(len(pngs)), "bytes": column})
        assert list(columns["key"]) == list(range(len(pngs)))
        assert "bytes" not in columns
        np.testing.assert_allclose(columns["epistemic"][:-1], expected.epistemic[: len(pngs) - 1], atol=1e-6)
        assert [error is None for error in columns["error"]] == [True] * (len(pngs) - 1) + [False]
        with pytest.raises(OptionError, match="column of images is 'bytes', but must be one of 'key'"):
            predict({"key": np.arange(2)})

    def test_nothing_gives_empty_columns(self, digits_run: Path) -> None:
        predict = make_predict_fn(digits_run, samples=2)
        assert {len(values) for values in predict([]).values()} == {0}
        assert list(predict([])) == predict.names

    def test_a_chunk_needs_images(self, digits_run: Path) -> None:
        with pytest.raises(OptionError, match="chunk is 0"):
            Listing(["digits"], Run.open(digits_run).data, 0)
