"""Ensembles: several networks trained into one run folder, and trained runs joined into one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from training_runs import assert_identical, own_images, quiet, tensors

import dubito
from dubito.errors import DubitoWarning, OptionError, RunError
from dubito.evaluation import evaluate
from dubito.prediction import pool
from dubito.runs.config import LARGEST_SEED
from dubito.training import InterruptedTraining, Run, assemble, configure, resume, train

CLASSES = [number % 2 for number in range(40)]
TINY = {"batch_size": 8, "epochs": 1, "validation_samples": 1, "validation_fraction": 0.25, "novelty": False}
KILLED = """
import json, os, signal, sys
import pytorch_lightning as pl
from rich.console import Console
from dubito.training import configure, train

class Kill(pl.Callback):
    def on_train_batch_end(self, trainer, module, outputs, images, index):
        if module.seed == 1 and index == 1:
            os.kill(os.getpid(), signal.SIGKILL)

settings, out = json.loads(sys.argv[1])
train(configure(**settings), out, console=Console(quiet=True), callbacks=[Kill()])
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(own_images(tmp_path_factory.mktemp("data") / "two.npz", CLASSES))


@pytest.fixture(scope="module")
def pair(data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "pair"
    train(configure(**TINY, data=data, members=2, head="softplus"), folder, console=quiet)
    return folder


def batch() -> torch.Tensor:
    return torch.randn(5, 1, 32, 32, generator=torch.Generator().manual_seed(0))


def test_members_differ_in_their_seeds_and_hold_out_the_same_images(pair: Path) -> None:
    run = Run.open(pair)
    assert [(member.config.seed, member.config.members) for member in run.members] == [(0, 1), (1, 1)]
    labels = run.open_data().train()
    first, second = (member.split(labels)[1] for member in run.members)
    assert torch.equal(first, second)
    assert torch.equal(first, run.split(labels)[1])
    one, other = (member.load().state_dict() for member in run.members)
    assert not any(torch.equal(one[name], other[name]) for name in one if name.endswith("weight.mean"))


def test_a_member_is_what_a_run_with_its_seed_would_be(pair: Path, data: str, tmp_path: Path) -> None:
    alone = train(configure(**TINY, data=data, seed=1, split_seed=0), tmp_path / "alone", console=quiet)
    assert_identical(tensors(alone.path), tensors(pair / "members" / "1"))


def test_an_ensemble_predicts_with_the_mixture_of_its_members(pair: Path) -> None:
    run, images = Run.open(pair), batch()
    predictor = dubito.Predictor(pair, 4)
    parts = [dubito.Predictor(m, 2, seed=p.seed)(images) for m, p in zip(run.members, predictor.members, strict=True)]
    expected = pool(parts, [1.0, 1.0])
    for found in (
        predictor(images),
        dubito.predict(run.load(), images, 4),
        dubito.predict(dubito.load(pair), images, 4),
    ):
        torch.testing.assert_close(found.probs, expected.probs)
        torch.testing.assert_close(found.epistemic, expected.epistemic)
        assert found.samples == 4


def test_the_record_of_an_ensemble_is_of_its_mixture(pair: Path) -> None:
    run = Run.open(pair)
    record, images = run.validation(), run.parts()[1].images
    found = dubito.Predictor(run)(dubito.data.normalize(images, run.data.mean, run.data.std))
    torch.testing.assert_close(record.prediction.probs, found.probs)
    assert record.calibration.weights == run.fingerprint() != run.members[0].fingerprint()
    assert dubito.Predictor(run, calibrated=True).temperature == record.calibration.temperature


def test_a_saved_ensemble_comes_back_from_its_folder(pair: Path, tmp_path: Path) -> None:
    network, images = Run.open(pair).load(), batch()
    again = dubito.load(dubito.save(network, tmp_path / "saved"))
    assert torch.equal(dubito.predict(again, images).probs, dubito.predict(network, images).probs)


def test_an_evaluation_of_an_ensemble_has_a_stratum_of_draws_for_each_member(pair: Path) -> None:
    found = evaluate(pair, samples=8, bootstrap=20, noise=())
    assert found.test.members == (4, 4)
    assert found.metrics["settings"]["intervals_cover"] == "images and draws"
    assert len(found.runs) == 1
    assert len(found.members) == 2
    assert found.is_current
    # Beside a run, its members count as much as any other.
    assert evaluate([pair, pair / "members" / "0"], samples=6, bootstrap=20, noise=()).test.members == (2, 2, 2)


@pytest.mark.parametrize("inference", ["frequentist", "dropout"])
def test_other_networks_make_ensembles_too(inference: str, data: str, tmp_path: Path) -> None:
    settings = configure(**TINY, data=data, members=2, inference=inference)
    run = train(settings, tmp_path / "run", console=quiet)
    found = dubito.predict(run, batch(), 4)
    assert found.samples == (2 if inference == "frequentist" else 4)
    assert bool((found.epistemic > 0).all())


def test_a_killed_ensemble_resumes_to_the_same_weights_bit_for_bit(pair: Path, data: str, tmp_path: Path) -> None:
    import json

    settings = {**TINY, "data": data, "members": 2, "head": "softplus"}
    command = [sys.executable, "-c", KILLED, json.dumps([settings, str(tmp_path / "run")])]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGKILL
    (tmp_path / "run/members/1/config.yaml").unlink()  # as if the kill had come before it was written
    with pytest.raises(RunError, match=r"ensemble of 2, of which only 1 have begun .* --resume"):
        Run.open(tmp_path / "run").load()
    first = (tmp_path / "run/members/0/last.safetensors").stat().st_mtime_ns
    resume(tmp_path / "run", console=quiet)
    assert (tmp_path / "run/members/0/last.safetensors").stat().st_mtime_ns == first
    for number in ("0", "1"):
        assert_identical(tensors(pair / "members" / number), tensors(tmp_path / "run/members" / number))
    assert Run.open(tmp_path / "run").fingerprint() == Run.open(pair).fingerprint()
    assert Run.open(tmp_path / "run").find_validation() is not None


def test_control_c_names_the_folder_of_the_ensemble(data: str, tmp_path: Path) -> None:
    class PressControlC(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: object, i: int) -> None:
            if module.seed == 1:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedTraining, match=r"Continue with: dubito train --resume \S*/run$"):
        train(configure(**TINY, data=data, members=2), tmp_path / "run", console=quiet, callbacks=[PressControlC()])


def test_trained_runs_are_joined_into_one(pair: Path, tmp_path: Path) -> None:
    made = assemble([pair / "members" / "1", pair / "members" / "0"], tmp_path / "joined")
    assert made.config.members == 2
    images = batch()
    own = Run.open(pair)
    expected = dubito.predict(dubito.ensemble([own.members[1].load(), own.members[0].load()]), images).probs
    assert torch.equal(dubito.predict(Run.open(made.path), images).probs, expected)
    assert len(made.validation()) == len(own.validation())
    # The members of an ensemble become members of the new one, which all count alike.
    with_more = assemble([pair, pair / "members" / "0"], tmp_path / "more")
    assert [member.fingerprint() for member in with_more.members] == [
        member.fingerprint() for member in (*own.members, own.members[0])
    ]


def test_runs_without_common_validation_images_are_joined_with_a_warning(pair: Path, tmp_path: Path) -> None:
    import yaml

    other = Path(assemble([pair / "members" / "0"] * 2, tmp_path / "copy").member_path(1))
    content = yaml.safe_load((other / "config.yaml").read_text())
    content["data"]["num_data"] += 1  # as if the data had grown since
    (other / "config.yaml").write_text(yaml.safe_dump(content))
    with pytest.warns(DubitoWarning, match="has no validation record: two has changed|has changed since"):
        made = assemble([pair / "members" / "0", other], tmp_path / "made")
    assert made.find_validation() is None
    assert dubito.predict(made, batch()).samples == 10


def test_runs_that_take_other_images_are_not_joined(pair: Path, tmp_path: Path) -> None:
    others = own_images(tmp_path / "three.npz", [number % 3 for number in range(40)])
    stranger = train(configure(**TINY, data=str(others)), tmp_path / "stranger", console=quiet)
    with pytest.raises(RunError, match="need the same data set"):
        assemble([pair, stranger], tmp_path / "out")
    with pytest.raises(OptionError, match="at least 2 members"):
        assemble([stranger], tmp_path / "out")


def test_each_member_starts_from_the_member_of_its_number(pair: Path, data: str, tmp_path: Path) -> None:
    settings = {**TINY, "data": data, "init": str(pair), "preset": "finetune"}
    run = train(configure(**settings, members=2), tmp_path / "run", console=quiet)
    assert [member.config.init for member in run.members] == [str(pair / "members" / n) for n in ("0", "1")]
    with pytest.raises(OptionError, match="an ensemble of 2, but members is 1: give --members 2"):
        train(configure(**settings), tmp_path / "other", console=quiet)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"members": 0}, "members is 0, but must be at least 1"),
        ({"members": 2, "devices": 2}, "an ensemble is trained by one process"),
        ({"members": 2, "head": "kendall_gal"}, "an ensemble needs the head softplus or softmax"),
        ({"members": 2, "seed": LARGEST_SEED}, "seed is .*, but must be at most"),
    ],
)
def test_settings_that_make_no_ensemble_are_refused(settings: dict[str, object], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        configure(**settings)
