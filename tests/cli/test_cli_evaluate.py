from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dubito.evaluation import Evaluation
from dubito.evaluation.report import evaluation_of

QUICK = ("--samples", 2, "--bootstrap", 50, "--noise", "0,0.2", "--noise-images", 50)


@pytest.fixture
def run(digits_run: Path, tmp_path: Path) -> Path:
    """A run of its own, for evaluations are written into it."""
    return Path(shutil.copytree(digits_run, tmp_path / "bayesian"))


def test_it_prints_tables_and_writes_what_the_library_finds(dubito, run: Path) -> None:
    result = dubito("evaluate", run, *QUICK, "--out", "metrics.json")
    assert result.code == 0, result.err
    found = json.loads(Path("metrics.json").read_text())
    for key in ("accuracy", "nll", "brier", "ece", "aleatoric", "epistemic"):
        assert isinstance(found[key], float)
    stored = Evaluation.load(run)
    assert stored.metrics == found
    assert stored.is_current
    assert f"{found['accuracy']:.4f}" in result.out
    for text in ("359 images of digits/test", "epistemic uncertainty", "AURC", "Noise", "LAC", "APS", "recall"):
        assert text in result.out
    assert "temperature 0.05" in result.out
    assert f"The evaluation is in {run}, its metrics in metrics.json." in result.out
    assert all(len(line) <= 80 for line in result.out.splitlines()[1:] if str(run) not in line)
    # The same command gives the same metrics, and a dash prints them and nothing else.
    assert json.loads(dubito("evaluate", run, *QUICK, "--out", "-").out) == found


def test_an_uncertainty_that_finds_mistakes_by_chance_is_named(dubito, frequentist_run: Path, tmp_path: Path) -> None:
    from dubito.evaluation.page import cards

    folder = shutil.copytree(frequentist_run, tmp_path / "plain")  # its epistemic uncertainty is 0 for every image
    result = dubito("evaluate", folder, *QUICK)
    assert result.code == 0, result.err
    sentence = "No better than chance at finding mistakes: epistemic (AUROC 0.500, 95 % interval 0.500 to 0.500)"
    assert sentence in " ".join(result.out.split())
    assert any(sentence in card.meaning for card in cards(Evaluation.load(folder)))
    assert "entropy (AUROC" not in result.out


def test_other_data_sets_noise_and_classes_are_options(dubito, run: Path) -> None:
    import numpy as np

    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    np.savez("other.npz", x_train=images, y_train=np.arange(40) % 4, x_test=images, y_test=np.arange(40) % 4)
    result = dubito(
        "evaluate", run, "--samples", 2, "--bootstrap", 20, "--noise", "none", "--ood", "other.npz", "--top", 3
    )
    assert result.code == 0, result.err
    assert "separates other.npz from the test images" in result.out
    assert "FPR at 95 % TPR" in result.out
    assert "Noise" not in result.out
    assert "7 more classes; --top 0 shows all." in result.out


def test_several_runs_are_evaluated_in_turn_or_as_an_ensemble(
    dubito, run: Path, frequentist_run: Path, tmp_path: Path
) -> None:
    twin = Path(shutil.copytree(frequentist_run, tmp_path / "frequentist"))
    result = dubito("evaluate", run, twin, *QUICK)
    assert result.code == 0, result.err
    assert Evaluation.load(run).test.prediction.samples == 2
    assert Evaluation.load(twin).test.prediction.samples == 1
    result = dubito("evaluate", run, twin, *QUICK, "--ensemble", "--out", "ensemble.json")
    assert result.code == 0, result.err
    assert "Ensemble of 2 runs" in result.out
    folder = tmp_path / "ensemble-bayesian-frequentist"
    assert Evaluation.load(folder).test.members == (1, 1)  # the two draws are shared out
    assert json.loads(Path("ensemble.json").read_text()) == Evaluation.load(folder).metrics
    # An ensemble can be compared too.
    result = dubito("compare", run, folder, "--samples", 2, "--bootstrap", 20)
    assert result.code == 0, result.err
    assert "bayesian+frequentist" in result.out


def test_twins_are_compared_with_table_json_and_figure(
    dubito, run: Path, frequentist_run: Path, tmp_path: Path
) -> None:
    twin = Path(shutil.copytree(frequentist_run, tmp_path / "frequentist"))
    assert dubito("evaluate", run, *QUICK).code == 0
    before = (run / "evaluation.json").read_bytes()
    options = ("--samples", 2, "--bootstrap", 50)
    result = dubito("compare", run, twin, *options, "--out", "comparison.json", "--figure", "comparison.png")
    assert result.code == 0, result.err
    assert (run / "evaluation.json").read_bytes() == before  # used, not made again
    assert Evaluation.load(twin).is_current  # made and kept
    found = json.loads(Path("comparison.json").read_text())
    assert found["names"] == ["bayesian", "frequentist"]
    assert Path("comparison.png").read_bytes().startswith(b"\x89PNG")
    assert "* marks the best value" in result.out
    assert "Differences from bayesian" in result.out
    best = found["metrics"]["nll"]["best"]
    value = found["metrics"]["nll"]["values"][found["names"].index(best)]
    assert f"{value:.4f}*" in result.out
    assert found["metrics"]["epistemic"]["values"][1] == 0
    # Other settings are evaluated again, but what is stored stays.
    assert dubito("compare", run, twin, "--samples", 1, "--bootstrap", 20).code == 0
    assert (run / "evaluation.json").read_bytes() == before
    # Other weights make it stale.
    shutil.copy(run / "last.safetensors", run / "best.safetensors")
    assert dubito("compare", run, twin, *options).code == 0
    assert (run / "evaluation.json").read_bytes() != before


def test_an_evaluation_that_takes_the_place_of_a_richer_one_says_so_first(dubito, run: Path) -> None:
    np.savez("black.npz", images=np.zeros((20, 32, 32), dtype=np.uint8), labels=np.arange(20) % 2)
    rich = ("--samples", 1, "--bootstrap", 10, "--ood", "black.npz", "--noise", "0,0.1,0.2")
    assert dubito("evaluate", run, *rich).err == ""
    assert dubito("evaluate", run, *rich).err == ""  # nothing is lost
    result = dubito("evaluate", run, "--samples", 1, "--bootstrap", 10, "--noise", "0,0.1", "--folder", "other")
    assert (result.code, result.err) == (0, "")
    result = dubito("evaluate", run, "--samples", 1, "--bootstrap", 10, "--noise", "0,0.1")
    assert result.code == 0
    assert f"The evaluation in {run} includes --ood black.npz, --noise 0.2. The new one does not" in result.err


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "no"), OSError(errno.EROFS, "no")])
def test_a_run_that_cannot_be_written_is_compared_and_not_kept(
    dubito, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))

    def refuse(path: Path, content: object) -> None:
        raise error

    monkeypatch.setattr("dubito.evaluation.storage.write_atomically", refuse)
    result = dubito("compare", run, other, "--samples", 1, "--bootstrap", 10)
    assert result.code == 0, result.err
    assert "Differences from" in result.out
    assert f"{other} cannot be written, so its evaluation is not kept." in result.err
    assert not (other / "evaluation.json").exists()


def test_data_that_has_moved_can_be_given(dubito, run: Path) -> None:
    labels = np.arange(40) % 10
    np.savez("own.npz", images=np.zeros((40, 32, 32), dtype=np.uint8), labels=labels)
    assert dubito("train", "--data", "own.npz", "--epochs", 1, "--out", "own").code == 0
    Path("own.npz").rename("moved.npz")
    options = ("--samples", 1, "--bootstrap", 10, "--noise", "none")
    result = dubito("evaluate", "own", *options)
    assert result.code == 1
    assert "own.npz does not exist" in result.err
    assert "if it has moved, say where it is with --data." in result.err
    assert len(result.err.splitlines()) == 1
    assert dubito("evaluate", "own", "--data", "moved.npz", *options).code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "nothing"), "There is no run folder nothing"),
        (("evaluate", "empty"), "it has no config.yaml"),
        (("evaluate", "half"), "train it for an epoch first"),
        (("evaluate", "broken"), "is damaged"),
        (("evaluate", "garbled"), "is not a run's configuration"),
        (("evaluate", "RUN", "--ood", "no-such-set"), "no-such-set"),
        (("evaluate", "RUN", "--ood", "digits"), "cannot be given as --ood"),
        (("evaluate", "RUN", "--data", "cifar100"), "has 100 classes, but the network of"),
        (("evaluate", "RUN", "--data", "fashion-mnist"), "--ood fashion-mnist"),
        (("evaluate", "RUN", "--noise", "0,a"), "--noise is '0,a'"),
        (("evaluate", "RUN", "--noise=-1"), "levels are standard deviations"),
        (("evaluate", "RUN", "--coverage", "2"), "coverage is 2.0"),
        (("evaluate", "RUN", "--checkpoint", "worst"), "--checkpoint is 'worst'"),
        (("evaluate", "RUN", "--out", "empty"), "empty is a folder, but must be a file"),
        (("evaluate", "RUN", "RUN", "--out", "a.json"), "--out needs a single evaluation"),
        (("evaluate", "RUN", "nothing"), "There is no run folder nothing"),
        (("evaluate", "RUN", "--folder", "half/config.yaml"), "half/config.yaml cannot be made"),
        (("compare", "RUN"), "at least 2 runs"),
        (("compare", "RUN", "empty"), "it has no config.yaml"),
        (("compare", "RUN", "half"), "train it for an epoch first"),
        (("compare", "RUN", "RUN", "--figure", "a.txt"), "suffix must be one of .png"),
    ],
)
def test_what_cannot_be_evaluated_is_one_sentence(dubito, run: Path, arguments: tuple[str, ...], message: str) -> None:
    Path("empty").mkdir()
    for name in ("half", "broken", "garbled"):
        shutil.copytree(run, name)
    Path("half/best.safetensors").unlink()
    Path("broken/best.safetensors").write_bytes(Path("broken/best.safetensors").read_bytes()[:1000])
    Path("garbled/config.yaml").write_text("training: [")
    given = [str(run) if argument == "RUN" else argument for argument in arguments]
    quick = ("--samples", 1, "--bootstrap", 10)
    result = dubito(*given, *quick)
    assert result.code == 1
    assert message in result.err
    assert len(result.err.splitlines()) == 1


def test_a_half_written_evaluation_is_made_again_by_compare(dubito, run: Path, frequentist_run: Path) -> None:
    assert dubito("evaluate", run, *QUICK).code == 0
    text = (run / "evaluation.json").read_text()
    (run / "evaluation.json").write_text(text[:200])
    shutil.copytree(frequentist_run, "frequentist")
    assert dubito("compare", run, "frequentist", "--samples", 2, "--bootstrap", 20).code == 0
    assert Evaluation.load(run).is_current


def black(place: str, count: int = 20, classes: int = 10) -> None:
    Path(place).parent.mkdir(exist_ok=True)
    np.savez(place, images=np.zeros((count, 32, 32), dtype=np.uint8), labels=np.arange(count) % classes)


def test_an_evaluation_is_kept_also_if_nobody_reads_its_tables(dubito, run: Path, monkeypatch) -> None:
    def gone(*arguments: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("dubito.cli.evaluate.show", gone)
    dubito("evaluate", run, *QUICK, "--out", "metrics.json")
    assert Evaluation.load(run).metrics == json.loads(Path("metrics.json").read_text())


def test_what_compare_keeps_has_all_that_an_evaluation_has(dubito, run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    black("black.npz")
    assert dubito("evaluate", run, *QUICK, "--ood", "black.npz").code == 0
    shutil.copyfile(run / "last.safetensors", run / "best.safetensors")  # other weights
    assert not Evaluation.load(run).is_current
    assert dubito("compare", run, other, "--samples", 2, "--bootstrap", 50).code == 0
    stored = Evaluation.load(run)
    assert stored.is_current
    assert [Path(name).name for name in stored.ood] == ["black.npz"]
    assert [level.gamma for level in stored.noise] == [0.0, 0.2]
    assert stored.metrics["settings"]["noise_images"] == 50
    assert [level.gamma for level in Evaluation.load(other).noise] == [0.0, 0.1, 0.2, 0.3]
    result = dubito("evaluate", run, *QUICK, "--ood", "black.npz")
    assert (result.code, result.err) == (0, "")  # the same data by another name is not lost


def test_a_stale_evaluation_of_other_data_decides_nothing_in_a_comparison(dubito, run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    black("shifted.npz", 30)
    black("gone.npz")
    assert dubito("evaluate", run, *QUICK, "--data", "shifted.npz", "--ood", "gone.npz").code == 0
    shutil.copyfile(run / "last.safetensors", run / "best.safetensors")
    Path("gone.npz").unlink()
    result = dubito("compare", run, other, "--samples", 1, "--bootstrap", 10)
    assert result.code == 0, result.err
    assert "359 images of digits/test" in result.out
    assert "gone.npz can no longer be read, so the new evaluation leaves it out." in result.err


def test_a_project_may_move_as_a_whole(dubito, run: Path, tmp_path: Path, monkeypatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    shutil.copytree(run, "run")
    black("black.npz")
    assert dubito("evaluate", "run", *QUICK, "--ood", "black.npz").code == 0
    project.rename(tmp_path / "renamed")
    monkeypatch.chdir(tmp_path / "renamed")
    for samples in (None, 1):
        assert [Path(name).name for name in evaluation_of("run", samples=samples).ood] == ["black.npz"]


def test_data_given_by_a_path_is_found_from_another_folder(dubito, run: Path, tmp_path: Path, monkeypatch) -> None:
    black("data/black.npz")
    assert dubito("evaluate", run, *QUICK, "--ood", "data/black.npz").code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert evaluation_of(run).metrics["settings"]["samples"] == 2
    again = evaluation_of(run, samples=1).metrics["settings"]
    assert (again["samples"], again["noise_images"]) == (1, 50)


def test_data_that_has_moved_can_be_reported_and_is_never_strange(dubito) -> None:
    black("own.npz", 40)
    assert dubito("train", "--data", "own.npz", "--epochs", 1, "--out", "own").code == 0
    Path("moved").mkdir()
    Path("own.npz").rename("moved/own.npz")
    options = ("--samples", 1, "--bootstrap", 10, "--noise", "none", "--data", "moved/own.npz")
    assert dubito("evaluate", "own", *options).code == 0
    assert len(evaluation_of("own").validation)
    result = dubito("evaluate", "own", *options, "--ood", Path("moved/own.npz").resolve())
    assert result.code == 1
    assert "is the data set that is evaluated" in result.err


def test_all_images_of_other_data_are_measured_and_of_the_runs_own_those_set_aside(dubito, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (80, 32, 32), dtype=np.uint8)
    labels = np.arange(40) % 4
    for name, images in (("own", noise[:40]), ("other", noise[40:]), ("copy", noise[:40]), ("few", noise[:20])):
        np.savez(f"{name}.npz", images=images, labels=labels[: len(images)])
        for number, (image, label) in enumerate(zip(images, labels, strict=False)):
            Path(name, "abcd"[label]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(f"{name}/{'abcd'[label]}/{number}.png")
        rows = "".join(f"{path},{path.parent.name}\n" for path in sorted(Path(name).rglob("*.png")))
        Path(f"{name}.csv").write_text(f"path,label\n{rows}")
    options = ("--samples", 1, "--bootstrap", 10, "--noise", "none", "--folder", "stored")
    for suffix in ("", ".npz", ".csv"):
        run = f"run{suffix}"
        assert dubito("train", "--data", f"own{suffix}", "--epochs", 1, "--no-novelty", "--out", run).code == 0
        for data, said in (
            (f"other{suffix}", f"all 40 images of other{suffix}"),  # as many as its own
            (f"few{suffix}", f"all 20 images of few{suffix}"),
            (f"./own{suffix}", f"8 images of ./own{suffix}/test (the 20 % set aside for testing)"),
            (f"copy{suffix}", f"8 images of copy{suffix}/test (the 20 % set aside for testing)"),
        ):
            result = dubito("evaluate", run, "--data", data, *options)
            assert result.code == 0, result.err
            assert said in " ".join(result.out.split())
            stored = Evaluation.load("stored")
            assert len(stored.test) == len(stored.test.images) == int(said.removeprefix("all ").split()[0])
        Path(f"own{suffix}").rename(f"moved{suffix}")
        result = dubito("evaluate", run, "--data", f"moved{suffix}", *options)
        assert f"8 images of moved{suffix}/test (the 20 % set aside" in " ".join(result.out.split())
        Path(f"moved{suffix}").rename(f"own{suffix}")


def test_ensembles_of_other_runs_with_the_same_names_have_folders_of_their_own(dubito, run: Path) -> None:
    for name in ("a", "b", "c"):
        shutil.copytree(run, f"{name}/net")
    options = ("--samples", 1, "--bootstrap", 10, "--noise", "none", "--ensemble")
    for first, second in (("a", "b"), ("a", "c"), ("b", "a"), ("a", "b")):
        assert dubito("evaluate", f"{first}/net", f"{second}/net", *options).code == 0
    homes = sorted(str(path.parent) for path in Path().glob("*/ensemble-*/evaluation.json"))
    assert homes == ["a/ensemble-net-net", "a/ensemble-net-net-2", "b/ensemble-net-net"]
    members = [{run.path.resolve().parent.name for run in Evaluation.load(home).runs} for home in homes]
    assert members == [{"a", "b"}, {"a", "c"}, {"a", "b"}]


def test_metrics_do_not_go_where_the_run_has_its_files(dubito, run: Path) -> None:
    before = (run / "best.safetensors").read_bytes()
    for options in (("--out", run / "best.safetensors"), ("--folder", "home", "--out", "home/evaluation.json")):
        result = dubito("evaluate", run, *QUICK, *options)
        assert result.code != 0
        assert "choose another name" in result.err
    assert (run / "best.safetensors").read_bytes() == before
    assert not Path("home").exists()


def test_names_of_runs_are_no_formulas_in_a_figure(dubito, run: Path) -> None:
    other = shutil.copytree(run, "m$\\foo$x")
    result = dubito("compare", run, other, "--samples", 1, "--bootstrap", 10, "--figure", "figure.png")
    assert result.code == 0, result.err
    assert Path("figure.png").exists()


def test_a_class_without_test_images_comes_last(dubito, run: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 32, 32), dtype=np.uint8), np.arange(60) % 10
    there = labels != 3
    np.savez("gap.npz", x_train=images, y_train=labels, x_test=images[there], y_test=labels[there])
    result = dubito("evaluate", run, *QUICK, "--data", "gap.npz", "--top", 0)
    assert result.code == 0, result.err
    table = result.out[result.out.index("lowest recall first") :].splitlines()
    rows = [line.split()[0] for line in table if line.split() and line.split()[0] in map(str, range(10))]
    assert rows[-1] == "3"
