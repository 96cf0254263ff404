"""Run folders: what they hold, what they refuse, and files that are never half written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from training_runs import OWN, SMALL, own_images, quiet, tensors

import dubito
from dubito.errors import RunError
from dubito.files import write_atomically
from dubito.training import DataDescription, Run, configure, resume, train


def test_a_run_folder_has_what_it_takes_to_load_the_network(whole: Path) -> None:
    names = {path.name for path in whole.iterdir()}
    tables = {"config.yaml", "environment.json", "metrics.csv", "posterior.csv"}
    record = {"validation.safetensors", "calibration.json", "novelty.safetensors"}
    assert names == tables | record | {"best.safetensors", "last.safetensors"}
    environment = json.loads((whole / "environment.json").read_text())
    assert environment["seed"] == 0
    assert environment["versions"]["torch"] == torch.__version__
    run = Run.open(whole)
    best = min(run.metrics(), key=lambda row: row["val_nll"])
    assert run.read_checkpoint("best")[1] == {"epoch": best["epoch"]}
    network = dubito.load(whole, "last")
    trace = run.posterior_trace()
    assert [(row["epoch"], row["layer"]) for row in trace[-2:]] == [(2, "linear6"), (2, "linear7")]
    assert trace[-1]["std"] == pytest.approx(network.linear7.weight_std.flatten()[trace[-1]["index"]].item())
    assert not network.training
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, tensors(whole)[f"network.{name}"])
    prediction = dubito.predict(network, torch.randn(3, 1, 32, 32))
    assert prediction.probs.shape == (3, 10)


def test_an_existing_folder_is_never_written_into(whole: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in whole.iterdir()}
    with pytest.raises(RunError, match=r"exists already .* continue it with `dubito train --resume"):
        train(configure(**SMALL), whole, console=quiet)
    assert before == {path: path.read_bytes() for path in whole.iterdir()}
    (tmp_path / "photo.png").touch()
    with pytest.raises(RunError, match="choose another --out"):
        train(configure(**SMALL), tmp_path, console=quiet)


def test_broken_runs_are_refused_by_name(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="There is no run folder"):
        dubito.load(tmp_path / "nothing")
    with pytest.raises(RunError, match=r"has no config\.yaml"):
        dubito.load(tmp_path)
    for name in ("config.yaml", "best.safetensors"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    dubito.load(tmp_path)
    with pytest.raises(RunError, match=r"no last\.safetensors yet"):
        dubito.load(tmp_path, "last")
    (tmp_path / "best.safetensors").write_bytes((whole / "best.safetensors").read_bytes()[:5000])
    with pytest.raises(RunError, match=r"best\.safetensors is damaged"):
        dubito.load(tmp_path)
    (tmp_path / "best.safetensors").write_bytes((whole / "best.safetensors").read_bytes())
    config = (whole / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(config.replace("model: lenet5", "model: alexnet"))
    with pytest.raises(RunError, match="do not fit its configuration"):
        dubito.load(tmp_path)
    (tmp_path / "config.yaml").write_text(config.replace("model: lenet5", "model: lenet6"))
    with pytest.raises(RunError, match=r"config\.yaml is not a run's configuration: model is 'lenet6'"):
        dubito.load(tmp_path)


def test_a_run_knows_its_data_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_images(tmp_path / "own.npz", [0, 1] * 16)
    monkeypatch.chdir(tmp_path)
    run = train(configure(data="own.npz", **OWN), "run", console=quiet)
    monkeypatch.chdir("/")
    assert len(Run.open(tmp_path / "run").open_data().train()) == 32
    (tmp_path / "own.npz").unlink()
    with pytest.raises(RunError, match=r"run was trained on .*own\.npz, which cannot be opened"):
        Run.open(tmp_path / "run").open_data()
    assert run.config.data == str((tmp_path / "own.npz").resolve())


def test_resuming_refuses_other_images(tmp_path: Path) -> None:
    data = own_images(tmp_path / "own.npz", [0, 1, 2] * 16)
    train(configure(data=str(data), **OWN), tmp_path / "run", console=quiet)
    own_images(data, [0, 1] * 16)
    with pytest.raises(RunError, match=r"has 24 training images of 2 classes, but .* was trained on 36 of 3"):
        resume(tmp_path / "run", console=quiet)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("channels: 1", "channels: x", r"config\.yaml is not a run's configuration .channels is 'x'"),
        ("channels: 1", "channels: 3", "channels is 3, with 1 means"),
        ("padding: 0", "padding: 40", "padding is 40"),
        ("  mean:", "  meen:", "'mean' is missing"),
    ],
)
def test_a_description_of_data_that_makes_no_sense_is_refused(
    whole: Path, tmp_path: Path, old: str, new: str, words: str
) -> None:
    text = (whole / "config.yaml").read_text()
    assert old in text
    (tmp_path / "config.yaml").write_text(text.replace(old, new))
    with pytest.raises(RunError, match=words):
        Run.open(tmp_path)


def test_damaged_metrics_are_told_by_name(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes((whole / "config.yaml").read_bytes())
    (tmp_path / "metrics.csv").write_text("epoch,val_nll\n1,x\n")
    with pytest.raises(RunError, match=r"metrics\.csv is damaged"):
        Run.open(tmp_path).metrics()


def test_a_file_that_cannot_be_written_is_told_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError, match=r"folder is a folder, but must be a file to write") as error:
        write_atomically(tmp_path / "folder", "text")
    assert str(error.value).startswith(str(tmp_path / "folder"))


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "metrics.csv"
    write_atomically(file, "old")

    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_run_has_the_image_size_it_was_trained_with(tmp_path: Path) -> None:
    data = own_images(tmp_path / "own.npz", [0, 1] * 16, size=24)
    run = train(configure(data=str(data), size=20, **OWN), tmp_path / "run", console=quiet)
    assert run.data.size == Run.open(run.path).data.size == 20
    images = Run.open(run.path).open_data().test().images
    assert images.shape == (32, 1, 20, 20)
    prepared = dubito.data.normalize(images, run.data.mean, run.data.std)
    assert dubito.Predictor(dubito.load(run.path), samples=2)(prepared).probs.shape == (32, 2)
    with pytest.raises(dubito.errors.ShapeError, match=r"takes \(N, 1, 20, 20\)"):
        dubito.load(run.path)(torch.zeros(1, 1, 32, 32))


def test_a_network_that_is_too_deep_for_the_images_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(dubito.errors.OptionError, match="image_size is 12, but lenet5 needs at least 16 pixels"):
        train(configure(**SMALL, size=12), tmp_path / "run", console=quiet)
    assert not (tmp_path / "run").exists()


def test_a_description_without_a_size_is_of_32_pixels(whole: Path, tmp_path: Path) -> None:
    text = (whole / "config.yaml").read_text()
    assert "\n  size: 32\n" in text
    (tmp_path / "config.yaml").write_text(text.replace("\n  size: 32\n", "\n"))
    assert Run.open(tmp_path).data == Run.open(whole).data


def test_a_run_knows_which_images_it_held_out(whole: Path) -> None:
    run = Run.open(whole)
    images = run.open_data().train()
    kept, held_out = run.split(images)
    assert len(kept) == run.data.num_data
    assert sorted([*kept.tolist(), *held_out.tolist()]) == list(range(len(images)))
    with pytest.raises(RunError, match="digits has changed since"):
        run.split(images.part(kept))


def test_a_run_is_described_by_its_data(whole: Path) -> None:
    run = Run.open(whole)
    train_images = run.open_data().train()
    expected = DataDescription(
        "digits", 1, tuple("0123456789"), train_images.mean, train_images.std, 0, 1294, 32, "pad"
    )
    assert run.data == expected


def test_a_training_ends_with_novelty_that_every_predictor_of_the_run_measures(whole: Path) -> None:
    run = Run.open(whole)
    predictor = dubito.Predictor(whole)
    assert predictor.novelty is not None
    assert predictor.novelty.notes is not None
    assert predictor.novelty.notes["held_out"] == "validation"
    recorded = run.validation().prediction.novelty
    assert recorded is not None
    torch.testing.assert_close(recorded.sort().values, predictor.novelty.held_out, atol=1e-3, rtol=1e-3)
    prediction = predictor(torch.randn(3, 1, 32, 32))
    assert prediction.novelty.shape == (3,)


def test_novelty_of_other_weights_does_not_count(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    tensors, notes = Run.open(folder).read_checkpoint("best")
    changed = {name: tensor + 0.01 for name, tensor in tensors.items() if tensor.is_floating_point()}
    Run.open(folder).write_checkpoint("best", {**tensors, **changed}, notes)
    assert dubito.Predictor(folder).novelty is None
