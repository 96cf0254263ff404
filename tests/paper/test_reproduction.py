"""A reproduction at toy size: files, document, measured and published numbers apart."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from paper_files import table_of

from dubito import cli
from dubito.errors import RunError
from dubito.evaluation import Evaluation
from dubito.paper import drawings, published
from dubito.paper.cells import BUDGETS, Cell, Experiment, cells_of, chosen
from dubito.paper.claims import judge
from dubito.paper.document import compose, write_document
from dubito.paper.grid import require_same_settings
from dubito.paper.measurements import batch_aleatoric, correlation
from dubito.paper.record import verdicts
from dubito.paper.results import collect, read
from dubito.training import Run

ROOT = Path(__file__).parents[2]
SMOKE = BUDGETS["smoke"]
SENTINEL = 7654.25
SETTINGS = "Settings that are not the paper's"


CELLS = chosen(list(Experiment), SMOKE, "model=lenet5,data=mnist,data=cifar10")
"""What the toy reproduction trains."""


def rows_of(path: Path, status: str | None = None) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if status in (None, row["status"])]


def test_every_chosen_cell_is_a_run_folder_with_an_evaluation(smoke) -> None:
    cells = CELLS
    assert len(cells) == 10
    assert {path.name for path in smoke.runs.iterdir() if path.is_dir()} == {cell.name for cell in cells} | {"data"}
    for cell in cells:
        run = Run.open(smoke.runs / cell.name)
        assert (run.config.model, run.config.inference, run.config.head) == (cell.model, cell.inference, cell.head)
        assert len(run.metrics()) == run.config.epochs
        evaluation = Evaluation.load(run.path)
        assert evaluation.is_current
        assert evaluation.test.members == ((1,) if cell.inference == "frequentist" else (SMOKE.samples,))


def test_every_experiment_has_its_files_and_says_how_they_were_made(smoke) -> None:
    for experiment in Experiment:
        content = json.loads((smoke.results / f"{experiment.value}.json").read_text())
        assert content["budget"] == "smoke"
        assert content["made"]["command"]
        assert {"commit", "hardware", "python"} <= content["made"].keys()
        facts = [cell for cell in content["cells"].values() if cell is not None]
        assert len(facts) == len(set(cells_of(experiment, SMOKE)) & set(CELLS))
        for cell in facts:
            assert {"settings", "commit", "seed", "cores", "threads", "versions", "command"} <= cell.keys()
            assert str(smoke.runs) not in json.dumps(cell["settings"])
        text = (smoke.results / f"{experiment.value}.md").read_text()
        assert content["made"]["hardware"] in text
        assert "toy" in text


def test_the_figures_are_pictures_of_something(smoke) -> None:
    from PIL import Image

    figures = sorted(path.name for path in smoke.results.glob("*.png"))
    tables = ["table1-curves.png", "table1.png", "table2-heads.png", "table2.png"]
    assert figures == ["filters.png", "noise-levels.png", "noise.png", "posterior.png", *tables]
    for name in figures:
        with Image.open(smoke.results / name) as picture:
            pixels = np.asarray(picture.convert("L"))
        assert min(pixels.shape) > 500
        ink = (pixels < 128).mean()
        assert 0.001 < ink < 0.6, name


def test_learning_curves_are_drawn_of_what_was_run() -> None:
    """From the committed numbers: AlexNet is no part of the toy reproduction."""
    content = read(ROOT / "results/reproduction/cpu")["regularisation"]
    assert drawings.figures(content)["regularisation.png"].startswith(b"\x89PNG")
    for row in content["rows"]:
        row["measured"] = None
    assert drawings.figures(content) == {}


def test_measured_numbers_are_those_of_the_run_folders(smoke) -> None:
    for row in rows_of(smoke.results / "table1.csv", "finished"):
        covers = "images" if row["inference"] == "frequentist" else "images and draws"
        assert row["measured_intervals_cover"] == covers
        evaluation = Evaluation.load(smoke.runs / row["cell"], images=False)
        metrics, highest = evaluation.metrics, evaluation.test.prediction.probs.double().amax(1)
        assert float(row["measured_confidence"]) == pytest.approx(100 * highest.mean().item())
        assert float(row["measured_accuracy"]) == pytest.approx(100 * metrics["accuracy"])
        assert float(row["measured_nll"]) == metrics["nll"]
        assert float(row["measured_ece"]) == metrics["ece"]
        if row["inference"] == "vi":
            twin = Evaluation.load(smoke.runs / row["cell"].replace("-vi", "-frequentist"), images=False).metrics
            for name, unit in (("accuracy", 100), ("nll", 1), ("ece", 1)):
                value, low, high = (float(row[f"measured_{name}_beside_twin{end}"]) for end in ("", "_low", "_high"))
                assert value == pytest.approx(unit * (metrics[name] - twin[name]), abs=1e-9)
                assert low <= value <= high or name == "ece"  # which resampling pushes up
    for row in rows_of(smoke.results / "table2.csv", "finished"):
        with (smoke.runs / row["cell"] / "metrics.csv").open(newline="") as file:
            epochs = [float(epoch["val_epistemic"]) for epoch in csv.DictReader(file)]
        assert float(row["measured_epistemic_mean_over_epochs"]) == pytest.approx(np.mean(epochs))
        assert float(row["measured_epistemic_last_epoch"]) == epochs[-1]
        test = Evaluation.load(smoke.runs / row["cell"], images=False).test
        wrong = (test.prediction.label != test.labels).double().numpy()
        expected = np.corrcoef(test.prediction.epistemic.double().numpy(), wrong)[0, 1]
        assert float(row["measured_epistemic_correlation"]) == pytest.approx(expected)
        assert float(row["measured_epistemic_median"]) == pytest.approx(np.median(test.prediction.epistemic.numpy()))


def test_published_numbers_cannot_get_into_a_measured_column(smoke, tmp_path, monkeypatch) -> None:
    """With other published numbers nothing measured changes, and they appear in their own columns alone."""
    monkeypatch.setattr(published, "ACCURACY", dict.fromkeys(published.ACCURACY, SENTINEL))
    monkeypatch.setattr(published, "UNCERTAINTY", dict.fromkeys(published.UNCERTAINTY, (SENTINEL,) * 3))
    monkeypatch.setattr(published, "NOISE", dict.fromkeys(published.NOISE, SENTINEL))
    monkeypatch.setattr(drawings, "figures", lambda content: {})
    places = 0
    for experiment in Experiment:
        collect(experiment, SMOKE, smoke.runs, tmp_path)
        before, after = (rows_of(folder / f"{experiment.value}.csv") for folder in (smoke.results, tmp_path))
        for old, new in zip(before, after, strict=True):
            assert old.keys() == new.keys()
            for name in new:
                if name.startswith("published_"):
                    assert (new[name] == str(SENTINEL)) == (old[name] != "")
                    places += new[name] != ""
                else:
                    assert new[name] == old[name], name
    assert places == 20 + 3 * 6 + 4
    assert [judged.tests for judged in judge(read(tmp_path))] == [judged.tests for judged in judge(read(smoke.results))]
    table, before = (table_in(folder, "table1") for folder in (tmp_path, smoke.results))
    assert [row["accuracy, %"] for row in table] == [row["accuracy, %"] for row in before]
    assert {row["published"] for row in table} == {f"{SENTINEL:.0f}", "-"}


def read_page(smoke) -> str:
    return (smoke.results / "reproduction.md").read_text(encoding="utf-8")


def table_in(results: Path, experiment: str) -> list[dict[str, str]]:
    return table_of((results / f"{experiment}.md").read_text(encoding="utf-8"), "# ")


def test_cells_that_were_not_run_are_blank(smoke, tmp_path) -> None:
    arguments = ["--budget", "cpu", "--hours", "0", "--runs", str(tmp_path / "runs")]
    arguments += ["--results", str(tmp_path / "results"), "--document", str(tmp_path / "page.md")]
    assert cli.run(["reproduce", "all", *arguments]) == 0
    for experiment in Experiment:
        for row in rows_of(tmp_path / "results" / f"{experiment.value}.csv"):
            assert row["status"] == "not run"
            assert not any(name.startswith("measured_") for name in row)
    assert not list((tmp_path / "results").glob("*.png"))
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    table = table_in(tmp_path / "results", "table1")
    assert len(table) == 21
    assert all(row["accuracy, %"] == "not run" and row["NLL"] == row["ECE"] == "" for row in table)
    assert {row["verdict"] for row in table_of(page, "## Verdicts")} == {"**not run**"}
    assert "Of the paper's 16 claims, 16 were not tested." in page
    assert not (tmp_path / "results" / "verdicts.csv").exists()
    unfinished = [row for row in table_in(smoke.results, "table2") if "not run" in row.values()]
    assert {(row["network"], row["accuracy, %"]) for row in unfinished} == {("AlexNet", ""), ("VGG16", "")}


def test_the_documents_numbers_are_those_of_the_result_files(smoke) -> None:
    page = read_page(smoke)
    measured = rows_of(smoke.results / "table1.csv", "finished")
    table = [row for row in table_in(smoke.results, "table1") if row["NLL"]]
    for shown, row in zip(table, measured, strict=True):
        values = {
            "accuracy, %": ("accuracy", 2),
            "NLL": ("nll", 3),
            "ECE": ("ece", 3),
        }
        for column, (name, digits) in values.items():
            parts = [float(row[f"measured_{name}{end}"]) for end in ("", "_low", "_high")]
            expected = "{:.{d}f} [{:.{d}f}, {:.{d}f}]".format(*parts, d=digits)
            assert shown[column] == expected
        assert shown["epochs"] == row["measured_epochs"]
        assert shown["validation, %"] == f"{float(row['measured_best_validation_accuracy']):.2f}"
        epochs = Run.open(smoke.runs / row["cell"]).metrics()
        assert float(row["measured_best_validation_accuracy"]) == 100 * max(e["val_accuracy"] for e in epochs)
        assert shown["published"] == (row["published_accuracy"].removesuffix(".0") or "-")
    ours = [row for row in measured if row["inference"] == "vi"]
    columns = ("at most 1 point below the twin", "lower NLL than the twin", "lower ECE than the twin")
    for shown, row in zip(table_of(page, "Each network beside its twin"), ours, strict=True):
        for column, name, digits in zip(columns, ("accuracy", "nll", "ece"), (2, 4, 4), strict=True):
            parts = [float(row[f"measured_{name}_beside_twin{end}"]) for end in ("", "_low", "_high")]
            told = "{:+.{d}f} [{:+.{d}f}, {:+.{d}f}]".format(*parts, d=digits)
            assert shown[column] in (f"✓ {told}", f"✗ {told}", told)
    finished = rows_of(smoke.results / "table2.csv", "finished")
    for shown, row in zip((r for r in table_in(smoke.results, "table2") if r["test"]), finished, strict=True):
        assert shown["median"] == f"{float(row['measured_aleatoric_median']):.5f}"
        assert shown["AUROC"] == (f"{float(a):.2f}" if (a := row["measured_aleatoric_auroc"]) else "-")
        assert shown["published, %"] == (row["published_accuracy"] or "-")
    noise = rows_of(smoke.results / "noise.csv", "finished")
    for shown, row in zip((r for r in table_in(smoke.results, "noise") if r["classes, mean"]), noise, strict=True):
        assert shown["classes, mean"] == f"{float(row['measured_classes_test']):.8f}"
        assert shown["batch, image"] == f"{float(row['measured_batch_image']):.8f}"
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", page)
    assert {picture.removeprefix("./") for picture in pictures} == {path.name for path in smoke.results.glob("*.png")}


def test_the_page_has_both_networks_of_a_pair_at_the_lowest_nll_and_at_the_last_epoch(smoke) -> None:
    table = table_of(read_page(smoke), "The twin's rule")
    assert [row["network"] for row in table] == ["LeNet-5, MNIST", "LeNet-5, CIFAR-10"]
    for row, data in zip(table, ("mnist", "cifar10"), strict=True):
        pair = [Run.open(smoke.runs / Cell("lenet5", data, how).name).metrics() for how in ("vi", "frequentist")]
        best = [min(epochs, key=lambda epoch: epoch["val_nll"]) for epochs in pair]
        for rule, rows in (("lowest NLL", best), ("last", [epochs[-1] for epochs in pair])):
            assert row[f"{rule}: epoch"] == " / ".join(str(int(epoch["epoch"])) for epoch in rows)
            assert row[f"{rule}: NLL"] == " / ".join(f"{epoch['val_nll']:.3f}" for epoch in rows)
            assert row[f"{rule}: ECE"] == " / ".join(f"{epoch['val_ece']:.3f}" for epoch in rows)
            assert row[f"{rule}: accuracy, %"] == " / ".join(f"{100 * epoch['val_accuracy']:.2f}" for epoch in rows)


def test_a_verdict_that_has_changed_says_what_it_was(smoke, tmp_path) -> None:
    results, page = shutil.copytree(smoke.results, tmp_path / "results"), tmp_path / "page.md"
    write_document(results, page)
    assert "**changed**" not in page.read_text()
    known = (results / "verdicts.csv").read_text()
    ((_, was),) = verdicts(results)["dropout-on-mnist"]
    content = json.loads((results / "table1.json").read_text())
    rows = {row["cell"]: row["measured"] for row in content["rows"]}
    ahead = 5 if was == "holds" else 0
    rows["lenet5-mnist-dropout"]["accuracy"] = rows["lenet5-mnist-vi"]["accuracy"] + ahead
    (results / "table1.json").write_text(json.dumps(content))
    write_document(results, page)
    (day, _), (since, now) = verdicts(results)["dropout-on-mnist"]
    assert {now, was} == {"does not hold", "holds"}
    assert day <= since
    (shown,) = [
        row for row in table_of(page.read_text(), "## Verdicts") if row["the paper's claim"].startswith("On MNIST")
    ]
    assert (shown["verdict"], shown["earlier"]) == (f"**{now}**", f"**changed**, was: {was}, until {since}")
    assert "Changed since an earlier page: 1." in page.read_text()
    assert (results / "verdicts.csv").read_text().startswith(known)
    write_document(results, page)  # nothing new
    assert len(verdicts(results)["dropout-on-mnist"]) == 2


def test_the_document_says_where_the_settings_are_not_the_appendixs(smoke, tmp_path) -> None:
    rows = table_of(read_page(smoke), SETTINGS)
    bayesian = [Run.open(smoke.runs / cell.name).config for cell in CELLS if cell.inference == "vi"]
    told = {row["setting"].strip("`"): (row["appendix"], row["here"].split(", ")) for row in rows}
    assert {"epochs", "batch_size", "temperature", "prior", "posterior", "samples"} <= told.keys()
    for name, (appendix, here) in told.items():
        assert {f"{v:.4g}" if isinstance(v, float) else str(v) for v in (getattr(c, name) for c in bayesian)} == {*here}
        assert appendix not in here or len(here) > 1
    assert told["temperature"] == ("1", ["0.05"])
    assert told["batch_size"] == ("128", ["8"])
    assert SETTINGS not in compose(tmp_path, ".")


def test_the_document_is_made_of_the_result_files_alone(smoke, tmp_path) -> None:
    page = tmp_path / "page.md"
    command = ["reproduce", "document", "--budget", "smoke", "--results", str(smoke.results), "--document", str(page)]
    assert cli.run([*command, "--runs", str(tmp_path / "none")]) == 0
    link = os.path.relpath(smoke.results, tmp_path)
    assert page.read_text(encoding="utf-8") == compose(smoke.results, link)
    assert f"]({link}/table1.png)" in page.read_text(encoding="utf-8")
    assert read_page(smoke) == compose(smoke.results, ".")


def test_the_committed_document_is_that_of_the_committed_results() -> None:
    page = (ROOT / "docs" / "results" / "reproduction.md").read_text(encoding="utf-8")
    results = ROOT / "results/reproduction/cpu"
    assert page == compose(results, "../../results/reproduction/cpu")
    now = {judged.claim.name: judged.verdict for judged in judge(read(results))}
    assert {name: days[-1][1] for name, days in verdicts(results).items()} == now


def test_the_document_alone_draws_tables_and_figures_of_the_result_files_again(smoke, tmp_path) -> None:
    results = shutil.copytree(smoke.results, tmp_path / "results")
    made = [path for path in results.iterdir() if path.suffix in (".md", ".png", ".csv") and path.stem != "verdicts"]
    for path in made:
        path.unlink()
    (results / "table1-of-earlier-code.png").write_bytes(b"")
    assert cli.run(["reproduce", "document", "--budget", "smoke", "--results", str(results)]) == 0
    assert {path.name for path in results.iterdir()} == {path.name for path in smoke.results.iterdir()}
    for path in made:
        assert path.read_bytes() == (smoke.results / path.name).read_bytes()


def test_the_document_says_what_the_intervals_cover(smoke, tmp_path) -> None:
    assert "cover the test images and the draws" in read_page(smoke)
    assert "images alone" not in read_page(smoke)
    assert "*Open*" not in read_page(smoke)
    old = shutil.copytree(smoke.results, tmp_path / "old")
    content = json.loads((old / "table1.json").read_text())
    for row in content["rows"]:
        if row["measured"] is not None:
            del row["measured"]["intervals_cover"]
    (old / "table1.json").write_text(json.dumps(content))
    page = compose(old, ".")
    assert "The intervals cover the test images alone: the draws were not resampled" in page
    assert "cover the test images and the draws" not in page
    assert "*Open*" in page
    assert "Differences whose interval covers the images alone are not judged." in page
    for row in table_of(page, "Each network beside its twin"):
        beside = list(row.values())[2:]
        assert len(beside) == 3
        assert not any(mark in cell for cell in beside for mark in "✓✗")
    (found,) = [r for r in table_of(page, "## Verdicts") if r["the paper's claim"].startswith("Bayesian networks are")]
    assert found["verdict"] == "**open**"
    (one,) = [row for row in content["rows"] if row["cell"] == "lenet5-mnist-vi"]
    one["measured"]["intervals_cover"] = "images and draws"
    (old / "table1.json").write_text(json.dumps(content))
    assert "but those of Bayesian (VI) LeNet-5 on CIFAR-10" in compose(old, ".")


def test_the_axis_of_normalisation_decides_what_aleatoric_means() -> None:
    outputs = torch.zeros(1000, 10)
    assert batch_aleatoric(outputs, "classes").tolist() == pytest.approx([0.1 * 0.9] * 1000)
    assert batch_aleatoric(outputs, "batch").tolist() == pytest.approx([0.001 * 0.999] * 1000)
    # The mean over a batch hardly depends on the outputs: the p of a class sum to 1.
    certain = torch.full((1000, 10), -20.0)
    certain[torch.arange(1000), torch.arange(1000) % 10] = 10.0
    assert float(batch_aleatoric(certain, "classes").mean()) < 1e-6
    assert float(batch_aleatoric(certain, "batch").mean()) == pytest.approx((1 - 1 / 100) / 1000)


def test_the_correlation_with_being_wrong_does_not_exist_without_mistakes() -> None:
    assert correlation(torch.rand(5), torch.zeros(5, dtype=torch.bool)) is None


def test_the_filters_output_is_that_of_its_patch(smoke) -> None:
    found = json.loads((smoke.results / "filters.json").read_text())["filter"]
    patch, mean, std = (np.array(found[name]) for name in ("patch", "weight_mean", "weight_std"))
    assert found["output_mean"] == pytest.approx((patch * mean).sum() + found["bias_mean"], abs=1e-4)
    variance = (patch**2 * std**2).sum() + found["bias_std"] ** 2
    assert found["output_std"] == pytest.approx(math.sqrt(variance), rel=1e-4)


def test_the_standins_have_the_shapes_of_what_they_stand_for(smoke) -> None:
    from dubito.data import load

    shapes = {}
    for name in ("mnist", "cifar10", "cifar100"):
        toy = load(smoke.runs / "data" / f"{name}.npz", "train")
        shapes[name] = (toy.channels, toy.num_classes)
    assert shapes == {"mnist": (1, 10), "cifar10": (3, 10), "cifar100": (3, 100)}


def test_run_folders_of_other_settings_are_refused(smoke, tmp_path, capsys) -> None:
    folder = tmp_path / "runs" / Cell("lenet5", "mnist").name
    folder.mkdir(parents=True)
    text = (smoke.runs / folder.name / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("epochs: 2\n", "epochs: 3\n"))
    (folder / "finished.json").write_text("{}")
    arguments = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results"), "--hours", "0"]
    assert cli.run(["reproduce", "filters", "--budget", "smoke", *arguments]) == 1
    assert "trained with other settings (epochs 3 instead of 2)" in capsys.readouterr().err


def test_numbers_of_runs_that_are_elsewhere_stay_unless_their_settings_have_changed(smoke, tmp_path) -> None:
    results = shutil.copytree(smoke.results, tmp_path / "results")
    gone = Cell("lenet5", "mnist", "frequentist").name
    file = results / "table1.json"
    content = json.loads(file.read_text())
    content["cells"][gone]["settings"]["epochs"] += 1
    file.write_text(json.dumps(content))
    before = read(smoke.results)
    for experiment in Experiment:
        collect(experiment, SMOKE, tmp_path / "none", results)
    after = read(results)
    for name, content in before.items():
        for row, kept in zip(content["rows"], after[name]["rows"], strict=True):
            if (name, row["cell"]) == ("table1", gone):
                assert (kept["status"], kept["measured"]) == ("not run", None)
            else:
                assert kept == row
    pictures = {path.name for path in smoke.results.glob("*.png")}
    assert {path.name for path in results.glob("*.png")} == pictures


def test_a_folder_without_results_makes_no_document(tmp_path, capsys) -> None:
    page = tmp_path / "page.md"
    command = ["reproduce", "document", "--results", str(tmp_path / "typo"), "--document", str(page)]
    assert cli.run(command) == 1
    assert "holds no results of dubito reproduce" in capsys.readouterr().err
    assert not page.exists()


def test_settings_of_another_inference_do_not_matter(smoke) -> None:
    """A twin's folder stays valid when only the temperature of Bayesian networks changes, theirs does not."""
    for cell in (Cell("lenet5", "mnist"), Cell("lenet5", "mnist", "frequentist")):
        run = Run.open(smoke.runs / cell.name)
        wanted = replace(run.config, temperature=0.5, warmup_epochs=9.0)
        if cell.inference == "vi":
            with pytest.raises(RunError, match=r"temperature 0\.05 instead of 0\.5"):
                require_same_settings(run, wanted)
        else:
            require_same_settings(run, wanted)
            with pytest.raises(RunError, match="batch_size"):
                require_same_settings(run, replace(wanted, batch_size=9))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table3"], "WHAT is 'table3', but must be one of 'table1', 'table2'"),
        (["table1", "--budget", "gpu"], "--budget is 'gpu', but must be one of 'smoke', 'cpu', 'paper'."),
        (["table1", "--hours", "-1"], "--hours is -1.0, but must be 0 or more."),
        (["table1", "--budget", "smoke", "--document", "/"], "/ is a folder, but must be a file to write."),
        (["table1", "--only", "model"], "--only has 'model', but takes NAME=VALUE pairs"),
    ],
)
def test_wrong_arguments_are_told_in_one_sentence(arguments, message, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["reproduce", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_display_shows_cells_done_running_left_and_the_time_left(tmp_path) -> None:
    from rich.console import Console

    from dubito.paper.display import Display, time_left
    from dubito.paper.grid import Grid

    budget = BUDGETS["cpu"]
    cells = [Cell("lenet5", "mnist"), Cell("lenet5", "cifar10"), Cell("alexnet", "cifar10")]
    shown = Grid(cells, budget, tmp_path)
    done, running, waiting = shown.states.values()
    done.status, done.seconds = "finished", 400.0
    running.status, running.doing, running.share, running.seconds = "running", "epoch 13/25", 0.5, 400.0
    from dubito.paper.cells import estimated_seconds as guess

    scale = 800 / (guess(cells[0], budget) + guess(cells[1], budget) / 2)
    assert time_left(shown) == pytest.approx(scale * (guess(cells[1], budget) / 2 + guess(cells[2], budget)))
    text = io.StringIO()
    with Display(Console(file=text, force_terminal=True, width=120)) as display:
        display(shown)
    for words in ("1 cells done, 1 running, 1 left", "epoch 13/25", "Bayesian (VI) LeNet-5 on CIFAR-10", " left"):
        assert words in text.getvalue()
    waiting.status, waiting.error = "failed", "The loss is not finite."
    plain = io.StringIO()
    with Display(Console(file=plain, width=60)) as display:
        display(shown)
    assert "Bayesian (VI) AlexNet on CIFAR-10: failed: The loss is not finite." in plain.getvalue()
