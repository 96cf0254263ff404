"""The trained networks that come with dubito load, predict as they did when they were measured, and are small."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from benchmarks.zoo import ENTRIES, FRONT, card, with_overview
from torch.nn.functional import interpolate, pad

import dubito as library
from dubito import cli, zoo
from dubito.data import load, normalize
from dubito.errors import OptionError, RunError
from dubito.runs.config import configure
from dubito.runs.run import Run
from dubito.saving import open_folder

NAMES = zoo.names()
MB = 1e6
ROOT = Path(__file__).parents[2]


def test_what_is_packed_is_in_the_table_that_makes_it() -> None:
    assert NAMES
    assert set(NAMES) <= {entry.name for entry in ENTRIES if entry.packed}


@pytest.mark.parametrize("name", NAMES)
def test_a_network_predicts_what_it_predicted_when_it_was_packed(name: str) -> None:
    """On the images of its validation record, with its novelty and its rule."""
    run = Run.open(f"zoo:{name}")
    kept = run.validation()
    predictor = library.Predictor(f"zoo:{name}")
    prediction = predictor(normalize(kept.examples, run.data.mean, run.data.std))
    expected = kept.prediction[kept.example_index]
    torch.testing.assert_close(prediction.probs, expected.probs, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(prediction.novelty, expected.novelty, atol=1e-3, rtol=1e-3)
    assert predictor.rule is not None
    assert set(prediction.decision) <= {"accept", "review", "unfamiliar"}
    sure = kept.labels[kept.example_index][:6]  # the record begins with images that the network was sure of
    assert int((prediction.label[:6] == sure).sum()) >= 5


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("lenet5-mnist")])
def test_a_network_of_mnist_reads_digits_of_another_source(name: str) -> None:
    """Those that come with scikit-learn, made as small as MNIST's; larger ones are not accepted."""
    digits = load("digits", "test")
    run, predictor = Run.open(f"zoo:{name}"), library.Predictor(f"zoo:{name}")
    large = predictor(normalize(digits.images, run.data.mean, run.data.std))
    small = pad(interpolate(digits.images.float(), size=(20, 20), mode="area"), (6, 6, 6, 6)).round().byte()
    label = predictor(normalize(small, run.data.mean, run.data.std)).label
    assert float((label == digits.labels).float().mean()) > 0.85
    assert (large.decision == "accept").mean() < 0.1


@pytest.mark.parametrize("name", NAMES)
def test_a_card_is_written_from_the_figures_beside_it(name: str) -> None:
    found = zoo.figures(name)
    assert zoo.card(name) == card(found)
    assert f"{100 * found['test']['accuracy']:.2f} %" in zoo.card(name)
    assert found["rule"] == library.Predictor(f"zoo:{name}", 1, "weights").rule.describe()
    calibration = Run.open(f"zoo:{name}").calibration()
    assert (found["validation"]["images"], found["validation"]["accuracy"]) == (
        calibration.images,
        calibration.accuracy,
    )
    assert "/tmp" not in zoo.card(name)
    assert not Path(Run.open(f"zoo:{name}").config.init).is_absolute()


def test_the_table_of_the_readme_is_that_of_the_figures() -> None:
    page = FRONT.read_text(encoding="utf-8")
    assert with_overview(page) == page
    rows = [line for line in page.splitlines() if line.startswith("| `zoo:")]
    assert [row.split("`")[1] for row in rows] == [f"zoo:{name}" for name in NAMES]
    targets = {entry.name: f"{100 * entry.max_error:g} %" for entry in ENTRIES if entry.packed}
    prose = page[page.index("A rule accepts") :]
    assert all(target in prose for target in targets.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_card_is_one_that_the_hub_understands(name: str) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    data = huggingface_hub.ModelCard(zoo.card(name)).data
    assert (data.library_name, data.pipeline_tag) == ("dubito", "image-classification")
    values = {result.metric_type: result.metric_value for result in data.eval_results}
    assert values["accuracy"] == round(zoo.figures(name)["test"]["accuracy"], 4)


def test_they_are_small() -> None:
    sizes = {name: sum(file.stat().st_size for file in (zoo.FOLDER / name).iterdir()) for name in NAMES}
    assert max(sizes.values()) < 3 * MB, sizes
    assert sum(sizes.values()) < 15 * MB, sizes


def test_they_are_part_of_the_package() -> None:
    tomllib = pytest.importorskip("tomllib")
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["dubito"]
    package = Path(library.__file__).parent
    packed = {file for pattern in patterns for file in package.glob(pattern)}
    assert {file for name in NAMES for file in (zoo.FOLDER / name).iterdir()} <= packed


def test_the_name_stands_wherever_a_run_may_stand() -> None:
    network = library.load("zoo:lenet5-mnist")
    again, run = open_folder("zoo:lenet5-mnist")
    assert torch.equal(next(network.parameters()), next(again.parameters()))
    assert isinstance(run, Run)
    config = configure("finetune", None, init="zoo:lenet5-mnist", data="digits")
    assert (config.model, config.activation, config.head) == ("lenet5", "softplus", "softplus")


@pytest.mark.parametrize("use", [library.load, library.Predictor, Run.open, library.from_pretrained])
def test_a_name_that_is_none_lists_those_that_are(use) -> None:
    with pytest.raises(OptionError, match=r"'nonsense', but must be one of .*'lenet5-mnist'"):
        use("zoo:nonsense")


def test_they_are_not_changed() -> None:
    run = Run.open("zoo:lenet5-mnist")
    with pytest.raises(RunError, match="stays as it is; make a copy with `dubito zoo lenet5-mnist --out FOLDER`"):
        run.write("decision.json", "{}")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a command in a folder of its own: its exit code, and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        return cli.run(arguments), *capsys.readouterr()

    return run


def test_a_command_takes_the_name(command, tmp_path: Path) -> None:
    code, _, error = command(
        "predict", "zoo:lenet5-mnist", "digits", "--conformal", "--samples", "2", "--out", "rows.csv"
    )
    assert code == 0, error
    first = (tmp_path / "rows.csv").read_text().splitlines()[0]
    assert all(column in first for column in ("novelty", "decision", "conformal"))
    code, _, error = command("predict", "zoo:nonsense", "digits")
    assert code == 1
    assert len(error.splitlines()) == 1
    assert "'lenet5-mnist'" in error
    code, _, error = command("decide", "zoo:lenet5-mnist", "--review", "0.1")
    assert code == 1
    assert "stays as it is" in error


def test_what_a_command_makes_of_one_is_written_here(command, tmp_path: Path) -> None:
    code, out, error = command(
        "evaluate", "zoo:lenet5-mnist", "--data", "digits", "--noise", "none", "--bootstrap", "10"
    )
    assert code == 0, error
    assert "The evaluation is in lenet5-mnist." in out
    assert (tmp_path / "lenet5-mnist" / "evaluation.json").exists()


def test_the_list_has_the_figures_of_each(command) -> None:
    code, out, _ = command("zoo")
    assert code == 0
    for name in NAMES:
        (row,) = [line for line in out.splitlines() if line.split()[:1] == [name]]
        assert f"{zoo.figures(name)['test']['accuracy']:.2%}" in row
    (best,) = [line for line in out.splitlines() if line.startswith("Best of their kind")]
    losses = {name: zoo.figures(name)["validation"]["nll"] for name in ("lenet5-mnist", "lenet5-mnist-natural")}
    assert [name in best.rstrip(".").partition(": ")[2].split(", ") for name in losses] == [
        losses[name] == min(losses.values()) for name in losses
    ]


def test_a_card_is_shown_and_a_copy_is_a_run_of_ones_own(command, tmp_path: Path) -> None:
    code, out, _ = command("zoo", "lenet5-mnist")
    assert code == 0
    assert out.startswith("# lenet5-mnist")
    assert command("zoo", "lenet5-mnist", "--out", "runs/mine")[0] == 0
    mine = Run.open(tmp_path / "runs" / "mine")
    mine.write("note.txt", "mine")
    assert library.Predictor(mine, 1).rule is not None
    code, _, error = command("zoo", "lenet5-mnist", "--out", "runs/mine")
    assert code == 1
    assert "not empty" in error


def test_a_server_has_examples_and_a_rule() -> None:
    from dubito.serving.model import ServedModel
    from dubito.serving.validation import find_usual

    served = ServedModel(Run.open("zoo:lenet5-mnist"), 2)
    usual = find_usual(served)
    assert served.name == "lenet5-mnist"
    assert len(usual.example_list(served.class_names)) == 12
    assert json.loads(json.dumps(served.describe()))["decision"].startswith("Refuse")


def test_it_works_where_nothing_may_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an installation for everybody is."""
    copy = tmp_path / "zoo"
    shutil.copytree(zoo.FOLDER / "lenet5-mnist", copy / "lenet5-mnist")
    monkeypatch.setattr(zoo, "FOLDER", copy)
    (copy / "lenet5-mnist").chmod(0o555)
    assert library.Predictor("zoo:lenet5-mnist", 1).novelty is not None
    assert sorted(path.name for path in (copy / "lenet5-mnist").iterdir()) == sorted(
        path.name for path in (Path(library.zoo.__file__).parent / "lenet5-mnist").iterdir()
    )
