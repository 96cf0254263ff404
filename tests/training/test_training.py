"""Training end to end on the embedded digits: resumption, processes, failures, run folders."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from rich.console import Console
from torch.utils.data import DataLoader, TensorDataset

import dubito
from dubito.data.dataset import DataSource
from dubito.errors import DataError, NonFiniteError, OptionError, RunError
from dubito.files import write_atomically
from dubito.layers import BayesLayer
from dubito.models import build
from dubito.training import Classifier, ImageData, InterruptedTraining, Run, configure, resume, train
from dubito.training.classifier import Progress, centralize_gradients, one_cycle

SMALL = {"data": "digits", "batch_size": 256, "epochs": 3, "validation_samples": 2}
quiet = Console(quiet=True)


def script(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Sums depend on the number of threads in their last bits, so the process gets as many as this one.
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


def tensors(run: Path) -> dict[str, torch.Tensor]:
    return Run.open(run).read_checkpoint("last")[0]


def assert_identical(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert different == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(configure(**SMALL), folder, console=quiet)
    return folder


KILLED = """
import os, signal, sys
from rich.console import Console
import pytorch_lightning as pl
from dubito.training import configure, train


out, epoch, batch, minutes, while_writing = sys.argv[1], *map(float, sys.argv[2:6])

class Kill(pl.Callback):
    def on_train_batch_end(self, trainer, module, outputs, images, index):
        if module.position(index).epoch == epoch and module.position(index).batch == batch:
            if while_writing:  # half of the file is on disk, and has not taken its place
                def die(*arguments):
                    os.kill(os.getpid(), signal.SIGKILL)
                os.replace = die
            else:
                os.kill(os.getpid(), signal.SIGKILL)

config = configure(data="digits", batch_size=256, epochs=3, validation_samples=2, checkpoint_minutes=minutes)
train(config, out, console=Console(quiet=True), callbacks=[Kill()])
"""


@pytest.mark.parametrize(
    ("epoch", "batch", "minutes", "while_writing"),
    [
        (0, 0, 5, 0),  # before any checkpoint
        (1, 3, 5, 0),  # in the middle of an epoch, with a checkpoint at its start
        (1, 3, 0, 0),  # with a checkpoint after every step
        (1, 5, 5, 1),  # while the epoch's checkpoint is being written
    ],
)
def test_a_killed_run_resumes_to_the_same_weights_bit_for_bit(
    whole: Path, tmp_path: Path, epoch: int, batch: int, minutes: int, while_writing: int
) -> None:
    out = tmp_path / "killed"
    killed = script(KILLED, str(out), str(epoch), str(batch), str(minutes), str(while_writing))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    if minutes == 0:
        assert Run.open(out).read_checkpoint("last")[1]["progress"] == {"epoch": 1, "batch": 4}
    resume(out, console=quiet)
    assert_identical(tensors(whole), tensors(out))
    drop = {"seconds"}
    rows = [[{k: v for k, v in row.items() if k not in drop} for row in Run.open(r).metrics()] for r in (whole, out)]
    assert rows[0] == rows[1]
    assert [row["epoch"] for row in rows[0]] == [1, 2, 3]


def test_the_same_seed_gives_the_same_run_and_another_seed_another(whole: Path, tmp_path: Path) -> None:
    train(configure(**SMALL), tmp_path / "again", console=quiet)
    assert_identical(tensors(whole), tensors(tmp_path / "again"))
    train(configure(**{**SMALL, "seed": 1, "epochs": 1}), tmp_path / "other", console=quiet)
    assert not torch.equal(
        tensors(whole)["network.linear7.weight_mean"], tensors(tmp_path / "other")["network.linear7.weight_mean"]
    )


def test_control_c_stops_between_steps_with_a_checkpoint_and_says_how_to_go_on(whole: Path, tmp_path: Path) -> None:
    class PressControlC(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, module: Classifier, batch: object, index: int) -> None:
            if module.position(index) == Progress(1, 2):
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    out = tmp_path / "stopped"
    with pytest.raises(InterruptedTraining, match=rf"epoch 2. Continue with: dubito train --resume .*{out.name}"):
        train(configure(**SMALL), out, console=quiet, callbacks=[PressControlC()])
    assert Run.open(out).read_checkpoint("last")[1]["progress"] == {"epoch": 1, "batch": 3}
    assert signal.getsignal(signal.SIGINT) is before
    resume(out, console=quiet)
    assert_identical(tensors(whole), tensors(out))


GRADIENTS = """
import sys, torch
import pytorch_lightning as pl
from rich.console import Console
from dubito.training import configure, train

class Keep(pl.Callback):
    def on_before_optimizer_step(self, trainer, module, optimizer):
        if trainer.is_global_zero and module.global_step == 0:
            grads = {name: p.grad for name, p in module.network.named_parameters()}
            torch.save(grads, sys.argv[2])

out, _, devices = sys.argv[1:4]
config = configure(data="digits", epochs=1, batch_size=64, estimator="mean", augment=False, devices=int(devices),
                   kl_schedule="uniform", temperature=1.0, validation_samples=1)
train(config, out, console=Console(quiet=True), callbacks=[Keep()])
"""


def test_two_processes_have_the_gradients_of_one_on_the_joined_batch_and_count_kl_once(tmp_path: Path) -> None:
    file = tmp_path / "gradients.py"
    file.write_text(GRADIENTS)
    found = {}
    for devices in (1, 2):
        saved = tmp_path / f"gradients{devices}.pt"
        command = [sys.executable, str(file), str(tmp_path / f"run{devices}"), str(saved), str(devices)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        found[devices] = torch.load(saved, weights_only=True)
    for name, one in found[1].items():
        torch.testing.assert_close(found[2][name], one, rtol=2e-4, atol=1e-5 * float(one.abs().max()), msg=name)
    # A standard deviation's gradient under the mean estimator is that of KL alone: counted twice it would be double.
    assert any("rho" in name and one.abs().max() > 0 for name, one in found[1].items())
    assert len(Run.open(tmp_path / "run2").metrics()) == 1


def test_a_loss_that_is_not_finite_stops_with_a_sentence_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    class Poison(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, module: Classifier, batch: object, index: int) -> None:
            if module.position(index) == Progress(1, 1):
                with torch.no_grad():
                    module.network.linear7.weight_mean[0, 0] = float("nan")

    out = tmp_path / "poisoned"
    with pytest.raises(NonFiniteError, match=r"(?s)linear7.weight_mean|epoch 2, batch 2") as caught:
        train(configure(**SMALL), out, console=quiet, callbacks=[Poison()])
    assert "last good checkpoint is kept" in str(caught.value)
    assert Run.open(out).read_checkpoint("last")[1]["progress"] == {"epoch": 1, "batch": 0}
    assert all(t.isfinite().all() for t in tensors(out).values())


def test_training_never_reads_the_test_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: DataSource) -> None:
        raise AssertionError("the test split was read")

    monkeypatch.setattr(DataSource, "test", refuse)
    train(configure(**{**SMALL, "epochs": 1}), tmp_path / "run", console=quiet)


def test_the_validation_split_is_disjoint_stratified_and_seeded() -> None:
    a, b = ImageData("digits", seed=0), ImageData("digits", seed=0)
    assert torch.equal(a.validation_part.images, b.validation_part.images)
    assert len(a.train_part) + len(a.validation_part) == 1438
    shares = torch.bincount(a.validation_part.labels) / torch.bincount(a.train_part.labels)
    assert (shares - 1 / 9).abs().max() < 0.02


def test_a_run_folder_has_what_it_takes_to_load_the_network(whole: Path) -> None:
    names = {path.name for path in whole.iterdir()}
    tables = {"config.yaml", "environment.json", "metrics.csv", "posterior.csv"}
    assert names == tables | {"best.safetensors", "last.safetensors"}
    environment = json.loads((whole / "environment.json").read_text())
    assert environment["seed"] == 0
    assert environment["versions"]["torch"] == torch.__version__
    run = Run.open(whole)
    best = min(run.metrics(), key=lambda row: row["val_nll"])
    assert run.read_checkpoint("best")[1] == {"epoch": best["epoch"]}
    network = dubito.load(whole, "last")
    trace = run.posterior_trace()
    assert [(row["epoch"], row["layer"]) for row in trace[-2:]] == [(3, "linear6"), (3, "linear7")]
    assert trace[-1]["std"] == pytest.approx(network.linear7.weight_std.flatten()[trace[-1]["index"]].item())
    assert not network.training
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, tensors(whole)[f"network.{name}"])
    prediction = dubito.predict(network, torch.randn(3, 1, 32, 32))
    assert prediction.probs.shape == (3, 10)


@pytest.mark.parametrize("inference", ["frequentist", "dropout"])
def test_the_other_twins_train_and_load_by_the_same_commands(inference: str, tmp_path: Path) -> None:
    train(configure(**{**SMALL, "epochs": 1, "inference": inference}), tmp_path / "run", console=quiet)
    network = dubito.load(tmp_path / "run")
    assert not any(isinstance(layer, BayesLayer) for layer in network)
    epistemic = dubito.predict(network, torch.randn(3, 1, 32, 32)).epistemic
    assert bool((epistemic > 0).all()) == (inference == "dropout")


def test_point_estimates_are_not_computed_again_for_every_draw(tmp_path: Path) -> None:
    passes: list[bool] = []

    class Count(pl.Callback):
        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            pl_module.network.register_forward_hook(lambda network, *_: passes.append(network.training))

    config = configure(data="digits", inference="frequentist", samples=5, batch_size=512, epochs=1)
    run = train(config, tmp_path / "run", console=quiet, callbacks=[Count()])
    assert passes.count(True) == -(-run.data.num_data // 512)


def test_learning_happens_and_the_bar_and_lines_show_it(tmp_path: Path) -> None:
    console = Console(record=True, force_terminal=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115
    config = configure(data="digits", epochs=15, batch_size=64, augment=False, warmup_epochs=5)
    run = train(config, tmp_path / "run", console=console, report_every=5)
    last = run.metrics()[-1]
    assert last["val_accuracy"] > 0.9
    assert last["val_nll"] < 0.5
    assert last["val_epistemic"] > 0
    text = console.export_text()
    assert "left" in text  # the bar's time
    assert re.findall(r"(?<!\d)(5|10|15) +\d\.\d{4} ", text) == ["5", "10", "15"]
    assert f"{last['val_accuracy']:.2%}" in text


def test_tensorboard_logs_appear_on_request(tmp_path: Path) -> None:
    train(configure(**{**SMALL, "epochs": 1, "tensorboard": True}), tmp_path / "run", console=quiet)
    assert list((tmp_path / "run" / "tensorboard").glob("events.out.tfevents.*"))


def users_trainer(**options: object) -> pl.Trainer:
    quietly = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return pl.Trainer(accelerator="cpu", **dict.fromkeys(quietly, False), **options)


def test_the_module_works_with_a_trainer_and_loaders_of_the_users_own() -> None:
    torch.manual_seed(0)
    network = build("lenet5", num_classes=3, in_channels=1)
    images, labels = torch.randn(48, 1, 32, 32), torch.arange(48) % 3
    loader = DataLoader(TensorDataset(images, labels), batch_size=16)
    module = Classifier(network, num_data=48, epochs=2, learning_rate=1e-3)
    trainer = users_trainer(max_epochs=2)
    before = network.linear7.weight_mean.clone()
    trainer.fit(module, loader, loader)
    assert not torch.equal(before, network.linear7.weight_mean)
    assert set(trainer.callback_metrics) >= {"val_nll", "val_accuracy", "val_ece", "train_nll", "kl"}


def test_the_validation_nll_is_that_of_the_mean_probabilities(whole: Path) -> None:
    """Against a direct computation from the saved weights: the last epoch's row and its checkpoint belong together."""
    run = Run.open(whole)
    data = ImageData("digits", seed=0)
    images, labels = next(iter(data.batches(data.validation_part, train=False)))
    prediction = dubito.predict(run.load("last"), images, samples=200)
    nll = -prediction.probs.gather(1, labels[:, None]).log().mean()
    assert float(nll) == pytest.approx(run.metrics()[-1]["val_nll"], rel=0.1)


def test_one_cycle_rises_and_falls() -> None:
    rates = [one_cycle(i / 100) for i in range(101)]
    assert max(rates) == rates[25] == 1
    assert rates[0] == pytest.approx(0.04)
    assert rates[-1] == pytest.approx(0)
    assert all(a < b for a, b in pairwise(rates[:26]))
    assert all(a > b for a, b in pairwise(rates[25:]))


def test_the_papers_preset_is_its_appendix() -> None:
    config = configure("paper")
    assert (config.learning_rate, config.epochs, config.batch_size, config.samples) == (1e-3, 100, 128, 10)
    assert (config.kl_schedule, config.parameterization, config.l2) == ("blundell", "alpha", 5e-4)
    assert config.initial_std**2 == pytest.approx(4.5399929762e-05)  # exp(-10)
    assert (config.prior, config.temperature, config.lr_schedule, config.augment) == ("standard", 1, "constant", False)
    assert configure("default").epochs == 10


def test_the_default_preset_is_gentler_with_wide_networks_unless_told_otherwise() -> None:
    assert configure(model="lenet5").temperature > configure(model="alexnet").temperature
    assert configure(model="alexnet", temperature=1).temperature == 1
    assert configure("paper", model="alexnet").temperature == 1


def test_narrow_networks_drop_fewer_units_unless_told_otherwise():
    assert configure(inference="dropout").dropout == configure(model="lenet5", inference="dropout").dropout < 0.5
    assert configure(model="alexnet", inference="dropout").dropout == 0.5
    assert configure("paper", inference="dropout").dropout == 0.5
    assert configure(inference="dropout", dropout=0.3).dropout == 0.3


def test_the_papers_preset_trains(tmp_path: Path) -> None:
    config = configure("paper", data="digits", epochs=2, samples=2, validation_samples=2)
    rows = train(config, tmp_path / "run", console=quiet).metrics()
    assert rows[-1]["train_nll"] < rows[0]["train_nll"]


def test_flags_override_the_file_and_the_file_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("epochs: 7\nlearning_rate: 1.0e-2\nprior: 0.5\n")
    config = configure("paper", file, epochs=3, model=None)
    assert (config.epochs, config.learning_rate, config.kl_schedule) == (3, 0.01, "blundell")
    assert config.bayesian["prior"] == 0.5


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"preset": "fast"}, r"preset is 'fast', but must be one of 'default', 'paper'"),
        ({"epoch": 3}, r"setting is 'epoch', but must be one of 'model'"),
        ({"epochs": 0}, r"epochs is 0, but must be at least 1"),
        ({"epochs": 2.5}, r"epochs is 2.5, but must be of type int"),
        ({"augment": "perhaps"}, r"augment is 'perhaps', but must be of type bool"),
        ({"head": "sigmoid"}, r"head is 'sigmoid', but must be one of 'softplus', 'softmax', 'kendall_gal'"),
        ({"learning_rate": -1}, r"learning_rate is -1.0, but must be positive"),
        ({"initial_std": -1}, r"initial_std is -1.0, but must be positive"),
        ({"temperature": math.inf}, r"temperature is inf, but must be finite"),
        ({"warmup_epochs": math.inf}, r"warmup_epochs is inf, but must be finite"),
        ({"seed": 10**20}, r"seed is 100000000000000000000, but must be at most"),
        ({"validation_fraction": 1.0}, r"validation_fraction is 1.0"),
        ({"batch_size": 5, "devices": 2}, r"batch_size is 5, but must be a multiple of the 2 processes"),
    ],
)
def test_bad_settings_get_one_sentence(settings: dict, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        configure(**settings)


@pytest.mark.parametrize("content", ["- a list", "epochs: [", "epochs: many"])
def test_bad_files_get_one_sentence(content: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(content)
    with pytest.raises(OptionError, match=r"settings\.yaml|epochs"):
        configure(file=file)
    with pytest.raises(OptionError, match="does not exist"):
        configure(file=tmp_path / "none.yaml")


def test_an_existing_folder_is_never_written_into(whole: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in whole.iterdir()}
    with pytest.raises(RunError, match=r"exists already .* continue it with `dubito train --resume"):
        train(configure(**SMALL), whole, console=quiet)
    assert before == {path: path.read_bytes() for path in whole.iterdir()}
    (tmp_path / "photo.png").touch()
    with pytest.raises(RunError, match="choose another --out"):
        train(configure(**SMALL), tmp_path, console=quiet)


def test_a_finished_run_resumes_to_itself(whole: Path) -> None:
    before = tensors(whole)
    resume(whole, console=quiet)
    assert_identical(before, tensors(whole))


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


def test_too_few_images_are_refused(tmp_path: Path) -> None:
    import numpy as np

    np.savez(tmp_path / "few.npz", images=np.zeros((2, 32, 32), np.uint8), labels=np.array([0, 1]))
    with pytest.raises(DataError):
        train(configure(data=str(tmp_path / "few.npz")), tmp_path / "run", console=quiet)
    assert not (tmp_path / "run").exists()


def own_images(path: Path, labels: list[int]) -> Path:
    import numpy as np

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (len(labels), 8, 8), dtype=np.uint8)
    np.savez(path, x_train=images, y_train=np.array(labels), x_test=images, y_test=np.array(labels))
    return path


OWN = {"batch_size": 16, "epochs": 1, "validation_samples": 1, "validation_fraction": 0.25}


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


def test_one_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has only the class 0, but needs two or more"):
        train(configure(data=str(own_images(tmp_path / "own.npz", [0] * 16))), tmp_path / "run", console=quiet)


def test_a_start_that_fails_leaves_no_folder_in_the_way(tmp_path: Path) -> None:
    class Fail(pl.Callback):
        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        train(configure(**SMALL), tmp_path / "run", console=quiet, callbacks=[Fail()])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "words"), [("foo", "accelerator is 'foo', but must be one of"), ("gpu", "finds none")]
)
def test_an_accelerator_that_is_not_there_is_refused_at_once(name: str, words: str, tmp_path: Path) -> None:
    if name == "gpu" and (torch.cuda.is_available() or torch.backends.mps.is_available()):
        pytest.skip("it is there")
    with pytest.raises(OptionError, match=words):
        train(configure(**SMALL, accelerator=name), tmp_path / "run", console=quiet)
    assert not (tmp_path / "run").exists()


def test_a_run_that_stopped_between_its_first_checkpoints_begins_again(whole: Path, tmp_path: Path) -> None:
    """The best weights were written, the state of the training was not yet."""
    for name in ("config.yaml", "environment.json", "best.safetensors"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    resume(tmp_path, console=quiet)
    assert_identical(tensors(whole), tensors(tmp_path))


def test_weights_without_the_state_of_a_training_are_not_trained_again(whole: Path, tmp_path: Path) -> None:
    for name in ("config.yaml", "environment.json", "best.safetensors", "metrics.csv"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    with pytest.raises(RunError, match="cannot be trained further"):
        resume(tmp_path, console=quiet)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("channels: 1", "channels: x", r"config\.yaml is not a run's configuration .channels is 'x'"),
        ("channels: 1", "channels: 3", "channels is 3, with 1 means"),
        ("padding: 0", "padding: 40", "padding is 40"),
        ("  mean:", "  meen:", "it lacks 'mean'"),
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
    with pytest.raises(OSError, match="directory") as error:
        write_atomically(tmp_path / "folder", "text")
    assert error.value.filename == str(tmp_path / "folder")


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


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bayesian", [False, True])
def test_gradients_of_transposed_convolutions_are_centralized_over_the_inputs_too(bayesian: bool, groups: int) -> None:
    torch.manual_seed(0)
    kind = dubito.BayesConvTranspose2d if bayesian else torch.nn.ConvTranspose2d
    layer = kind(4, 6, 2, groups=groups)
    layer(torch.randn(3, 4, 5, 5)).square().sum().backward()
    gradient = layer.weight.grad
    before = gradient.clone()
    centralize_gradients(layer)
    for group in range(groups):
        rows = slice(group * 4 // groups, (group + 1) * 4 // groups)
        for output in range(6 // groups):
            part = before[rows, output]
            torch.testing.assert_close(gradient[rows, output], part - part.mean())


def test_data_without_a_length_asks_for_the_number_of_batches(tmp_path: Path) -> None:
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            while True:
                yield torch.zeros(1, 32, 32), 0

    network = build("lenet5", num_classes=10, in_channels=1)
    trainer = users_trainer(max_steps=2, default_root_dir=tmp_path)
    with pytest.raises(OptionError, match="batches_per_epoch"):
        trainer.fit(Classifier(network, num_data=8, epochs=1), DataLoader(Endless(), batch_size=4))
    trainer = users_trainer(max_steps=2, default_root_dir=tmp_path)
    trainer.fit(Classifier(network, num_data=8, epochs=1, batches_per_epoch=2), DataLoader(Endless(), batch_size=4))
    assert trainer.global_step == 2


class Logged(pl.Callback):
    """What a logger gets to see."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.rows.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch:
            self.on_train_end(trainer, pl_module)


def test_logged_metrics_are_those_of_their_epoch(tmp_path: Path) -> None:
    logged = Logged()
    run = train(configure(**SMALL), tmp_path / "run", console=quiet, callbacks=[logged])
    rows = run.metrics()
    assert len(logged.rows) == len(rows) == 3
    for row, seen in zip(rows, logged.rows, strict=True):
        for name in ("train_nll", "train_accuracy", "kl", "val_nll"):
            assert seen[name] == pytest.approx(row[name], rel=1e-5), name


def test_training_means_begin_anew_in_every_epoch_of_a_users_trainer() -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(32, 1, 32, 32), torch.arange(32) % 3
    module = Classifier(build("lenet5", num_classes=3, in_channels=1), num_data=32, epochs=3)
    counts = []

    class Count(pl.Callback):
        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            counts.append(pl_module.sums.images)

    trainer = users_trainer(max_epochs=3, callbacks=[Count()])
    trainer.fit(module, DataLoader(TensorDataset(images, labels), batch_size=16))
    assert counts == [32, 32, 32]
