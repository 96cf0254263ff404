from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import dubito as package
from dubito.data import load, normalize, read_image, with_channels
from dubito.scores import SCORES
from dubito.training import Run

COLUMNS = ["path", "label", "confidence", "aleatoric", "epistemic", "novelty", "entropy", "mutual_information", "error"]
PROBABILITIES = [f"p_{digit}" for digit in range(10)]


def read_csv(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as lines:
        rows: list[dict[str, Any]] = list(csv.DictReader(lines))
    for row in rows:
        for name, value in row.items():
            if value == "":
                row[name] = None
            elif name not in ("path", "label", "error", "truth", "conformal"):
                row[name] = float(value)
    return rows


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        return read_csv(path)
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path).to_pylist()
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_files_are_predicted_as_the_library_does_it(dubito, digits_run: Path, pictures: list[Path]) -> None:
    result = dubito(
        "predict", digits_run, *pictures, "--samples", 7, "--seed", 3, "--sort", "given", "--out", "table.csv"
    )
    assert result.code == 0
    assert "Wrote 6 rows to table.csv." in result.out
    rows = read(Path("table.csv"))
    assert list(rows[0]) == COLUMNS + PROBABILITIES
    assert [row["path"] for row in rows] == [str(path) for path in pictures]
    data = Run.open(digits_run).data
    inputs = normalize(torch.stack([read_image(path, 1) for path in pictures]), data.mean, data.std)
    torch.set_flush_denormal(True)
    expected = package.Predictor(digits_run, 7, seed=3)(inputs)
    assert [row["label"] for row in rows] == [str(label) for label in expected.label.tolist()]
    for name in COLUMNS[2:8]:
        assert [row[name] for row in rows] == pytest.approx(getattr(expected, name).tolist(), rel=1e-5, abs=1e-9)
    probs = torch.tensor([[row[name] for name in PROBABILITIES] for row in rows])
    torch.testing.assert_close(probs, expected.probs, rtol=1e-6, atol=1e-9)


def test_folders_globs_and_files_give_the_same_rows(dubito, digits_run: Path, pictures: list[Path]) -> None:
    (pictures[0].parent / "notes.txt").write_text("no image")
    (pictures[0].parent / ".hidden.png").write_text("no image")
    arguments = {
        "files": [str(path) for path in pictures],
        "folder": ["pictures"],
        "glob": ["pictures/**/*.png"],
        "both": ["pictures/?.png", "pictures"],
    }
    tables = {}
    for name, images in arguments.items():
        assert dubito("predict", digits_run, *images, "--out", f"{name}.csv").code == 0
        tables[name] = [(Path(row["path"]).resolve(), row["confidence"]) for row in read(Path(f"{name}.csv"))]
    assert tables["files"] == tables["folder"] == tables["glob"] == tables["both"]


def test_a_table_of_paths_and_labels_has_the_truth(dubito, digits_run: Path, pictures: list[Path]) -> None:
    table = pictures[0].parent / "labelled.csv"
    lines = [f"{path.relative_to(table.parent)},{number},test" for number, path in enumerate(pictures)]
    table.write_text("\n".join(["path,label,split", *lines, "gone.png,3,test"]))
    assert dubito("predict", digits_run, table, "--sort", "given", "--out", "table.csv").code == 0
    rows = read(Path("table.csv"))
    assert [row["path"] for row in rows] == [*map(str, pictures), str(table.parent / "gone.png")]
    assert [row["truth"] for row in rows] == [*map(str, range(len(pictures))), "3"]
    assert "does not exist" in rows[-1]["error"]
    table.write_text("file,class\na.png,3\n")
    result = dubito("predict", digits_run, table)
    assert result.code == 1
    assert "labelled.csv must have the columns path and label, named in its first line." in result.err


def test_labels_that_predict_itself_wrote_are_no_truth(dubito, digits_run: Path, pictures: list[Path]) -> None:
    table = pictures[0].parent / "labelled.csv"
    rows = [f"{path.relative_to(table.parent)},{number}" for number, path in enumerate(pictures)]
    table.write_text("\n".join(["path,label", *rows]))
    pictures[1].write_bytes(b"broken")
    for images, truths in ((pictures, None), ([table], [str(number) for number in range(len(pictures))])):
        assert dubito("predict", digits_run, *images, "--sort", "given", "--out", "predictions.csv").code == 0
        result = dubito("predict", digits_run, "predictions.csv", "--sort", "given", "--out", "again.csv")
        assert result.code == 0, result.err
        assert Path("again.csv").read_text() == Path("predictions.csv").read_text()
        again = read(Path("again.csv"))
        assert [row["truth"] for row in again] == truths if truths else "truth" not in again[0]
    for command in (("evaluate", digits_run, "--data"), ("train", "--data")):
        result = dubito(*command, "predictions.csv")
        assert result.code == 1
        assert "predictions.csv was written by dubito predict, so its labels are predictions" in result.err


def test_a_data_set_has_the_truth(dubito, digits_run: Path) -> None:
    assert (
        dubito("predict", digits_run, "digits", "--sort", "given", "--out", "table.csv", "--batch-size", 100).code == 0
    )
    rows = read(Path("table.csv"))
    test = load("digits", "test")
    assert [row["path"] for row in rows] == [f"digits/test/{index}" for index in range(len(test))]
    assert [row["truth"] for row in rows] == [test.class_names[label] for label in test.labels.tolist()]
    assert sum(row["label"] == row["truth"] for row in rows) > 0.2 * len(rows)


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".ndjson", ".parquet"])
def test_every_format_holds_the_same_rows(dubito, digits_run: Path, pictures: list[Path], suffix: str) -> None:
    broken = pictures[0].with_name('broken,"näme".png')
    broken.write_bytes(b"nonsense")
    tables = []
    for end in (".csv", suffix):
        assert dubito("predict", digits_run, "pictures", "--out", f"new/table{end}").code == 0
        tables.append(read(Path(f"new/table{end}")))
    assert tables[0] == tables[1]
    assert len(tables[0]) == 7
    assert [path.name for path in Path("new").iterdir() if path.name.startswith(".")] == []


def test_a_dash_prints_what_a_csv_file_would_hold_and_nothing_else(dubito, digits_run: Path, pictures) -> None:
    assert dubito("predict", digits_run, "pictures", "--out", "table.csv").code == 0
    printed = dubito("predict", digits_run, "pictures", "--out", "-")
    assert (printed.code, printed.err) == (0, "")
    assert printed.out == Path("table.csv").read_text()
    assert not Path("-").exists()


def test_an_unreadable_image_becomes_a_row_and_the_rest_goes_on(dubito, digits_run: Path, pictures: list[Path]) -> None:
    pictures[1].write_bytes(pictures[1].read_bytes()[:60])
    result = dubito("predict", digits_run, *pictures, "missing.png", "--out", "table.jsonl")
    assert result.code == 0
    rows = read(Path("table.jsonl"))
    failed = [row for row in rows if row["error"]]
    assert [row["path"] for row in failed] == [str(pictures[1]), "missing.png"]
    assert all(row[name] is None for row in failed for name in ("label", "confidence", "epistemic", "p_0"))
    assert failed[1]["error"] == "missing.png does not exist."
    assert sum(row["confidence"] is not None for row in rows) == 5
    assert "2 of 7 images could not be read." in result.err
    assert "cannot be read as an image" in result.out
    assert "(unreadable)" in result.out


def test_nothing_readable_is_an_error_but_still_a_table(dubito, digits_run: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"nonsense")
    result = dubito("predict", digits_run, "broken.png", "missing.png", "--out", "table.parquet")
    assert result.code == 1
    assert result.err.startswith("None of the 2 images could be read: broken.png cannot be read as an image")
    assert [row["path"] for row in read(Path("table.parquet"))] == ["broken.png", "missing.png"]


@pytest.mark.parametrize(
    ("images", "words"),
    [("*.png", "No image matches *.png"), ("empty", "empty holds no images"), ("mnits", "a data set's name (digits,")],
)
def test_no_images_is_an_error(dubito, digits_run: Path, tmp_path: Path, images: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    result = dubito("predict", digits_run, images)
    assert result.code == 1
    assert words in result.err


def test_rows_are_sorted_by_uncertainty_and_the_table_shows_the_top(dubito, digits_run: Path) -> None:
    for name, descending in (("epistemic", True), ("confidence", False)):
        result = dubito("predict", digits_run, "digits", "--sort", name, "--top", 4, "--out", "table.csv")
        values = [row[name] for row in read(Path("table.csv"))]
        assert values == sorted(values, reverse=descending)
        assert len(values) == 359
        assert result.out.count("digits/test/") == 4
        assert result.err == "355 more rows; --top 0 shows all.\n"
    assert dubito("predict", digits_run, "digits", "--top", 0, "--samples", 1).out.count("digits/test/") == 359


def test_rows_are_sorted_by_every_score_that_decide_takes(dubito, digits_run: Path, monkeypatch) -> None:
    monkeypatch.setitem(SCORES, "spread", lambda prediction: prediction.probs.square().sum(1).neg())
    monkeypatch.setattr("dubito.cli.predict.SORTABLE", (*SCORES, "path", "given"))
    options = ("--samples", 3, "--out", "table.csv")
    for name in ("margin", "spread"):
        assert dubito("predict", digits_run, "digits", "--sort", name, *options).code == 0
        rows = read_csv(Path("table.csv"))
        assert list(rows[0]) == [*COLUMNS[:-1], "error", "truth", *PROBABILITIES]  # as in any other order
        probs = torch.tensor([[row[column] for column in PROBABILITIES] for row in rows], dtype=torch.float64)
        best = probs.topk(2, 1).values
        doubt = 1 - (best[:, 0] - best[:, 1]) if name == "margin" else -probs.square().sum(1)
        assert doubt[0] > doubt[-1]
        assert float(doubt.diff().max()) < 1e-6
    for name in SCORES:
        assert dubito("predict", digits_run, "digits", "--sort", name, "--top", 1, *options).code == 0


def test_rows_are_sorted_by_what_found_mistakes_best_on_validation(dubito, own_run: Path) -> None:
    found = Run.open(own_run).calibration()
    best = found.best_score
    assert found.scores[best].auroc == max(score.auroc for score in found.scores.values())
    result = dubito("predict", own_run, "digits", "--out", "table.csv")
    assert f"Sorted by {best}, which found mistakes best on 144 validation images (AUROC" in result.err
    values = [row[best] for row in read(Path("table.csv"))]
    assert values == sorted(values, reverse=best != "confidence")
    (own_run / "calibration.json").unlink()
    result = dubito("predict", own_run, "digits", "--out", "table.csv")
    assert "Rows are in the order given: " in result.err
    assert "has no validation record of these weights" in result.err
    assert [row["path"] for row in read(Path("table.csv"))][:3] == [f"digits/test/{index}" for index in range(3)]


def test_an_order_that_is_no_better_than_chance_is_named(dubito, own_run: Path, pictures: list[Path]) -> None:
    file = own_run / "calibration.json"
    content = json.loads(file.read_text())
    content["scores"]["epistemic"] = {"auroc": 0.486, "interval": [0.43, 0.54]}
    file.write_text(json.dumps(content))
    result = dubito("predict", own_run, "pictures", "--sort", "epistemic")
    assert "Warning: epistemic found mistakes no better than chance on 144 validation images (AUROC 0.486" in result.err
    assert "Warning" not in dubito("predict", own_run, "pictures", "--sort", "path").err
    for score in content["scores"].values():
        score["interval"] = [0.4, 0.6]
    file.write_text(json.dumps(content))
    assert "no uncertainty found mistakes" in dubito("predict", own_run, "pictures").err


def test_calibrated_probabilities_and_conformal_sets(dubito, own_run: Path, pictures: list[Path]) -> None:
    file = own_run / "calibration.json"
    content = json.loads(file.read_text())
    options = ("--sort", "given", "--out", "table.csv")
    for threshold in (1e-9, content["threshold"], None):
        file.write_text(json.dumps({**content, "threshold": threshold}))
        assert dubito("predict", own_run, *pictures, "--calibrated", "--conformal", *options).code == 0
        rows = read(Path("table.csv"))
        sets = [row["conformal"] for row in rows]
        if threshold == 1e-9:
            assert set(sets) == {"no class fits"}
        elif threshold is None:
            assert all(len(chosen.split(", ")) == 10 for chosen in sets)
        else:
            assert all(
                chosen == "no class fits" or chosen.split(", ")[0] == row["label"]
                for chosen, row in zip(sets, rows, strict=True)
            )
    data = Run.open(own_run).data
    inputs = normalize(torch.stack([read_image(path, 1) for path in pictures]), data.mean, data.std)
    torch.set_flush_denormal(True)
    plain, expected = package.Predictor(own_run)(inputs), package.Predictor(own_run, calibrated=True)(inputs)
    power = plain.probs.double() ** (1 / content["temperature"])
    torch.testing.assert_close(expected.probs.double(), power / power.sum(1, keepdim=True), atol=1e-6, rtol=1e-4)
    probs = torch.tensor([[row[name] for name in PROBABILITIES] for row in rows])
    torch.testing.assert_close(probs, expected.probs, rtol=1e-5, atol=1e-8)
    assert torch.equal(plain.epistemic, expected.epistemic)
    result = dubito("predict", own_run, *pictures, "--calibrated", "--checkpoint", "last")
    assert result.code == 1
    assert "--calibrated needs the best weights" in result.err


def test_the_seed_decides_the_numbers(dubito, digits_run: Path, pictures: list[Path]) -> None:
    outputs = [dubito("predict", digits_run, "pictures", "--seed", seed).out for seed in (1, 1, 2)]
    assert outputs[0] == outputs[1] != outputs[2]


@pytest.mark.parametrize("method", ["weights", "local", "moments", "mean"])
def test_every_method_is_that_of_the_library_whatever_the_batches(
    dubito, digits_run: Path, pictures: list[Path], method: str
) -> None:
    for size in (1, 4, 100):
        options = ("--method", method, "--samples", 3, "--batch-size", size, "--sort", "given", "--out", f"{size}.csv")
        assert dubito("predict", digits_run, *pictures, *options).code == 0
    run = Run.open(digits_run)
    inputs = normalize(torch.stack([read_image(path, 1) for path in pictures]), run.data.mean, run.data.std)
    expected = package.Predictor(run.load(), 3, method)(inputs)
    for size in (1, 4, 100):
        for name in ("confidence", "aleatoric", "epistemic"):
            found = [row[name] for row in read(Path(f"{size}.csv"))]
            assert found == pytest.approx(getattr(expected, name).tolist(), rel=1e-4, abs=1e-7), (size, name)
    assert (expected.epistemic.max() > 0) == (method != "mean")


def test_the_last_checkpoint_can_be_asked_for(dubito, digits_run: Path, pictures: list[Path]) -> None:
    assert dubito("predict", digits_run, "pictures", "--checkpoint", "last").code == 0


def test_names_that_are_no_text_are_rows_of_their_own(dubito, digits_run: Path, pictures: list[Path]) -> None:
    folder = pictures[0].parent / "odd"
    folder.mkdir()
    for name in (b"\xff.png", b"\xfe.png"):
        try:
            (folder / os.fsdecode(name)).write_bytes(pictures[0].read_bytes())
        except OSError:
            pytest.skip("this file system takes only text as a name")
    assert dubito("predict", digits_run, folder).out.count(".png") == 2


def test_names_that_do_something_are_written_out_where_they_would_do_it(
    dubito, digits_run: Path, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pictures[0].parent)
    formula, escape, broken = "=1+1.png", "a\x1b[2Jb.png", "c\x1b]0;owned\x07.png"
    pictures[0].rename(formula)
    pictures[1].rename(escape)
    Path(broken).write_bytes(b"no image")
    for suffix in ("csv", "jsonl"):
        shown = dubito(
            "predict", digits_run, formula, escape, broken, "--samples", 2, "--out", tmp_path / f"out.{suffix}"
        )
        assert shown.code == 0
        assert "\x1b" not in shown.out + shown.err
        assert r"a\x1b[2Jb.png" in shown.out
        assert r"c\x1b]0;owned\x07.png" in shown.err
    cells = [row["path"] for row in csv.DictReader((tmp_path / "out.csv").open())]
    assert sorted(cells) == ["'=1+1.png", r"a\x1b[2Jb.png", r"c\x1b]0;owned\x07.png"]
    rows = [json.loads(line)["path"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(rows) == [formula, escape, broken]
    failed = dubito("predict", digits_run, broken, "--debug")
    assert "Traceback" in failed.err
    assert "\x1b" not in failed.err


def test_a_seed_that_no_generator_takes_is_refused(dubito, digits_run: Path) -> None:
    result = dubito("predict", digits_run, "digits", "--seed", 10**20)
    assert result.code != 0
    assert "--seed is 100000000000000000000, but must be at most" in result.err


def test_an_unknown_device_is_refused(dubito, digits_run: Path) -> None:
    result = dubito("predict", digits_run, "digits", "--device", "abacus")
    assert result.code == 1
    assert "--device is 'abacus'" in result.err


def test_a_narrow_terminal_cuts_nothing_off(
    dubito, digits_run: Path, tmp_path: Path, pictures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 90)
    pictures[0].parent.rename(long)
    monkeypatch.setenv("FORCE_COLOR", "1")
    for width in (80, 60):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = re.sub(r"\x1b\[[0-9;]*m", "", dubito("predict", digits_run, long.name).out).splitlines()
        assert all(len(line) <= width for line in lines)
        assert "".join(line.split()[0] for line in lines if "x" in line).count("x") == 6 * 90


def test_colour_becomes_gray_as_in_pillow_and_gray_colour() -> None:
    colour = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    gray = with_channels(colour, 1)
    for image, expected in zip(gray, colour, strict=True):
        pillow = Image.fromarray(expected.permute(1, 2, 0).numpy()).convert("L")
        assert image.flatten().tolist() == list(pillow.tobytes())
    assert torch.equal(with_channels(gray, 3), gray.repeat(1, 3, 1, 1))
