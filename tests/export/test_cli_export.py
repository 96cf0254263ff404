"""`dubito export`, and `dubito predict` on what it wrote."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from dubito import cli
from dubito.exporting import OUTPUTS


@pytest.fixture
def dubito(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        return (code, *capsys.readouterr())

    return run


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_prediction_needs_the_file_alone(dubito, digits_run: Path, digits_onnx: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone" / "model.onnx"
    alone.parent.mkdir()
    alone.write_bytes(digits_onnx.read_bytes())
    code, out, err = dubito("predict", alone, "digits", "--out", "a.csv", "--top", 3, "--batch-size", 100)
    assert (code, err) == (0, "356 more rows; --top 0 shows all.\n")
    assert "Wrote 359 rows to a.csv." in out
    assert dubito("predict", digits_run, "digits", "--out", "b.csv", "--top", 1, "--sort", "given")[0] == 0
    exported, own = rows(Path("a.csv")), rows(Path("b.csv"))
    assert list(exported[0]) == list(own[0])
    for row, expected in zip(exported, own, strict=True):
        assert row["truth"] == expected["truth"]
        for name in ("confidence", "aleatoric", "epistemic", "entropy", "mutual_information", "p_7"):
            assert float(row[name]) == pytest.approx(float(expected[name]), rel=1e-3, abs=1e-5)
        assert float(row["novelty"]) == pytest.approx(float(expected["novelty"]), abs=2e-3)  # standard deviations


def test_a_calibrated_file_gives_calibrated_probabilities(dubito, digits_run: Path) -> None:
    assert dubito("export", digits_run, "--samples", 10, "--calibrated", "--out", "c.onnx")[0] == 0
    assert dubito("predict", "c.onnx", "digits", "--out", "a.csv", "--top", 1)[0] == 0
    options = ("--calibrated", "--sort", "given", "--out", "b.csv", "--top", 1)
    assert dubito("predict", digits_run, "digits", *options)[0] == 0
    for row, expected in zip(rows(Path("a.csv")), rows(Path("b.csv")), strict=True):
        for name in ("confidence", "aleatoric", "epistemic", "entropy", "p_7"):
            assert float(row[name]) == pytest.approx(float(expected[name]), rel=1e-3, abs=1e-4)
    described = json.loads(onnx.load("c.onnx").metadata_props[0].value)
    assert described["temperature"] == json.loads((digits_run / "calibration.json").read_text())["temperature"]


def test_a_dash_sends_the_file_to_stdout_and_nothing_else(digits_run: Path, capfdbinary, monkeypatch) -> None:
    assert cli.run(["export", str(digits_run), "--samples", "2", "--out", "file.onnx"]) == 0
    capfdbinary.readouterr()
    assert cli.run(["export", str(digits_run), "--samples", "2", "--out", "-"]) == 0
    assert capfdbinary.readouterr().out == Path("file.onnx").read_bytes()

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert cli.run(["export", str(digits_run), "--out", "-", "--format", "torch"]) == 1
    printed = capfdbinary.readouterr()
    assert printed.out == b""
    assert printed.err.decode() == (
        "--out is -, but the file is binary and cannot be shown here: send it on, as in "
        f"`dubito export {digits_run} --out - > network.pt2`.\n"
    )


def test_options_that_make_no_sense_for_a_file_are_refused(dubito, digits_onnx: Path) -> None:
    for option in (
        *(("--samples", 5), ("--method", "mean"), ("--seed", 1)),
        *(("--checkpoint", "last"), ("--device", "cpu")),
    ):
        code, out, err = dubito("predict", digits_onnx, "digits", *option)
        assert (code, out) == (1, "")
        assert err == (
            f"{option[0]} cannot be used with {digits_onnx}, an exported network, which always runs in the same "
            "way on the CPU; leave it out.\n"
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "tflite"], "--format is 'tflite', but must be one of 'onnx', 'torch'."),
        (["--what", "all"], "--what is 'all', but must be one of 'draws', 'moments', 'mean'."),
        (["--out", "model.txt"], "--out is model.txt, but a file of format onnx must end in .onnx."),
        (
            ["--what", "mean", "--samples", "5"],
            "--samples is 5, but only --what draws has a number of draws; leave it out.",
        ),
    ],
)
def test_wrong_options_give_one_sentence(dubito, digits_run: Path, options: list[str], message: str) -> None:
    assert dubito("export", digits_run, *options) == (1, "", message + "\n")


def test_failure_leaves_an_earlier_file_alone(dubito, digits_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("model.onnx").write_bytes(b"earlier")

    def fail(source: str, target: str) -> None:
        raise OSError(28, "No space left on device", source)

    monkeypatch.setattr("os.replace", fail)
    monkeypatch.setattr("dubito.exporting.formats.export_bytes", lambda *options: b"new")
    result = dubito("export", digits_run, "--out", "model.onnx")
    assert result == (1, "", "model.onnx cannot be written: No space left on device.\n")
    assert Path("model.onnx").read_bytes() == b"earlier"
    assert [path.name for path in Path().iterdir()] == ["model.onnx"]


def test_missing_packages_are_named(dubito, digits_run: Path, digits_onnx: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    expected = (
        1,
        "",
        "ONNX needs onnxruntime, which is missing: pip install 'dubito[onnx]', or in a checkout pip install -e "
        "'.[onnx]'.\n",
    )
    assert dubito("predict", digits_onnx, "digits") == expected
    assert dubito("export", digits_run, "--out", "model.onnx") == expected


def foreign() -> Any:
    """A model that only hands its input on."""
    value = onnx.helper.make_tensor_value_info("images", onnx.TensorProto.UINT8, ["batch", 1, 32, 32])
    same = onnx.helper.make_tensor_value_info("same", onnx.TensorProto.UINT8, ["batch", 1, 32, 32])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["images"], ["same"])], "same", [value], [same])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)


def test_files_that_are_not_ours_are_refused(dubito, digits_onnx: Path) -> None:
    assert dubito("predict", "none.onnx", "digits")[2].startswith("There is no file none.onnx; ")
    Path("noise.onnx").write_bytes(b"\x07not a model")
    assert dubito("predict", "noise.onnx", "digits")[2].startswith("noise.onnx cannot be read as an ONNX model: ")
    Path("half.onnx").write_bytes(digits_onnx.read_bytes()[:200_000])
    assert dubito("predict", "half.onnx", "digits")[2].startswith("half.onnx cannot be read as an ONNX model: ")
    onnx.save(foreign(), "foreign.onnx")
    expected = "foreign.onnx was not exported by dubito; `dubito export RUN` makes a file that was.\n"
    assert dubito("predict", "foreign.onnx", "digits") == (1, "", expected)


def facts_of(file: Path) -> dict[str, Any]:
    model = onnx.load(file)
    return json.loads({entry.key: entry.value for entry in model.metadata_props}["dubito"])


def test_model_that_does_not_do_what_it_says_is_refused(dubito, digits_onnx: Path) -> None:
    model = foreign()
    model.metadata_props.add(key="dubito", value=json.dumps(facts_of(digits_onnx)))
    onnx.save(model, "foreign.onnx")
    code, out, err = dubito("predict", "foreign.onnx", "digits")
    assert (code, out) == (1, "")
    assert err.startswith("foreign.onnx cannot be used: it takes ")
    assert err.endswith("which is not what its description says; export it again.\n")


def test_outputs_of_a_wrong_shape_are_refused(dubito, digits_onnx: Path) -> None:
    model = foreign()
    del model.graph.output[:], model.graph.node[:]
    for name in OUTPUTS:
        model.graph.node.append(onnx.helper.make_node("Cast", ["images"], [name], to=onnx.TensorProto.FLOAT))
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    model.metadata_props.add(key="dubito", value=json.dumps({**facts_of(digits_onnx), "fitted": []}))
    onnx.save(model, "foreign.onnx")
    expected = "foreign.onnx cannot be used: its outputs do not have the shape of 10 classes.\n"
    assert dubito("predict", "foreign.onnx", "digits") == (1, "", expected)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 9}, "its description has format 9, but this dubito reads 1: export it again"),
        ({"what": "magic"}, "'magic' is not a valid What"),
        ({"head": 3}, "head makes no sense"),
        ({"data.size": 0}, "size is 0"),
        ({"data.size": 64}, "it takes "),
        ({"samples": -1}, "samples makes no sense"),
        ({"data": None}, "its description is damaged"),
        ({"fitted": ["conformal", "novelty"]}, "fitted makes no sense"),
        ({"fitted": ["luck"]}, "fitted makes no sense"),
        ({"coverage": -1}, "coverage makes no sense"),
        ({"data.channels": 2}, "channels is 2"),
        ({"data.channels": True}, "channels is True"),
        ({"data.padding": 16}, "padding is 16"),
        ({"data.mean": [float("nan")]}, "mean is [nan]"),
        ({"data.std": [0.0]}, "std is [0.0]"),
        ({"data.std": [1.0, 1.0]}, "its description is damaged"),
        ({"data.class_names": []}, "There are 0 classes"),
        ({"data.class_names": ["a", "a"]}, "Two classes are called 'a'"),
        ({"data.class_names": None}, "its description is damaged"),
    ],
)
def test_damaged_descriptions_are_refused(dubito, digits_onnx: Path, change: dict[str, Any], reason: str) -> None:
    facts = facts_of(digits_onnx)
    for name, value in change.items():
        part, _, inner = name.partition(".")
        if inner:
            facts[part][inner] = value
        else:
            facts[part] = value
    model = foreign()
    model.metadata_props.add(key="dubito", value=json.dumps(facts))
    onnx.save(model, "damaged.onnx")
    code, out, err = dubito("predict", "damaged.onnx", "digits")
    assert (code, out) == (1, "")
    assert err.startswith("damaged.onnx cannot be used: ")
    assert reason in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("text", ["", "[]", "{", "3", "[" * 100_000, "{}"])
def test_metadata_that_is_no_description_is_refused(dubito, text: str) -> None:
    model = foreign()
    model.metadata_props.add(key="dubito", value=text)
    onnx.save(model, "damaged.onnx")
    code, _, err = dubito("predict", "damaged.onnx", "digits")
    assert code == 1
    assert err.startswith("damaged.onnx cannot be used: its description is damaged (")
