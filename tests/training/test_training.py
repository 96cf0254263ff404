"""Training end to end on the embedded digits: seeds, processes, failures, and users' own Trainers."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import LambdaCallback
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training_runs import OWN, SMALL, assert_identical, own_images, quiet, tensors

import dubito
from dubito.data.batches import key_seed
from dubito.data.dataset import DataSource
from dubito.errors import DataError, NonFiniteError, OptionError, RunError
from dubito.layers import BayesLayer
from dubito.models import build
from dubito.training import Classifier, ImageData, Run, configure, train
from dubito.training.classifier import Progress, centralize_gradients, one_cycle


def test_the_same_seed_gives_the_same_run_and_another_seed_another(whole: Path, tmp_path: Path) -> None:
    train(configure(**SMALL), tmp_path / "again", console=quiet)
    assert_identical(tensors(whole), tensors(tmp_path / "again"))
    train(configure(**{**SMALL, "seed": 1, "epochs": 1}), tmp_path / "other", console=quiet)
    assert not torch.equal(
        tensors(whole)["network.linear7.posteriors.weight.mean"],
        tensors(tmp_path / "other")["network.linear7.posteriors.weight.mean"],
    )


# One step is enough. Under the mean estimator a standard deviation's gradient is that of KL alone, so that KL counted
# twice would double it.
GRADIENTS = """
import sys, torch
import pytorch_lightning as pl
from rich.console import Console
from dubito.training import configure, train

class Keep(pl.Callback):
    def on_before_optimizer_step(self, trainer, module, optimizer):
        if trainer.is_global_zero and module.global_step == 0:
            torch.save({name: p.grad for name, p in module.network.named_parameters()}, sys.argv[2])

config = configure(data="digits", epochs=1, batch_size=1024, estimator="mean", augment=False, devices=int(sys.argv[3]),
                   kl_schedule="uniform", temperature=1.0, validation_samples=1)
train(config, sys.argv[1], console=Console(quiet=True), callbacks=[Keep()])
"""


def test_two_processes_have_the_gradients_of_one_on_the_joined_batch_and_count_kl_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, saved = tmp_path / "gradients.py", [tmp_path / "one.pt", tmp_path / "two.pt"]
    file.write_text(GRADIENTS)
    monkeypatch.setattr(sys, "argv", [str(file), str(tmp_path / "one"), str(saved[0]), "1"])
    exec(compile(GRADIENTS, str(file), "exec"), {})  # one process needs no other than this
    command = [sys.executable, str(file), str(tmp_path / "two"), str(saved[1]), "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    one, two = (torch.load(path, weights_only=True) for path in saved)
    for name, gradient in one.items():
        tolerance = 1e-5 * float(gradient.abs().max())
        torch.testing.assert_close(two[name], gradient, rtol=2e-4, atol=tolerance, msg=name)
    assert any("rho" in name and gradient.abs().max() > 0 for name, gradient in one.items())
    assert len(Run.open(tmp_path / "two").metrics()) == 1


def test_a_loss_that_is_not_finite_stops_with_a_sentence_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    class Poison(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, module: Classifier, batch: object, index: int) -> None:
            if module.position(index) == Progress(1, 1):
                with torch.no_grad():
                    module.network.linear7.weight_mean[0, 0] = float("nan")

    out = tmp_path / "poisoned"
    with pytest.raises(NonFiniteError, match=r"(?s)linear7.posteriors.weight.mean|epoch 2, batch 2") as caught:
        train(configure(**SMALL), out, console=quiet, callbacks=[Poison()])
    assert "last good checkpoint is kept" in str(caught.value)
    assert Run.open(out).read_checkpoint("last")[1]["progress"] == {"epoch": 1, "batch": 0}
    assert all(t.isfinite().all() for t in tensors(out).values())


def test_natural_gradients_that_diverge_name_what_to_lower_and_keep_the_last_good_checkpoint(tmp_path: Path) -> None:
    class Poison(pl.Callback):
        def on_after_backward(self, trainer: pl.Trainer, module: Classifier) -> None:
            if module.sums.steps == 2 and trainer.current_epoch == 1:
                module.network.linear7.weight_mean.grad[0, 0] = float("inf")

    out = tmp_path / "diverged"
    with pytest.raises(
        NonFiniteError, match=r"lower the learning rate, .* or clip the gradient\. The last good"
    ) as caught:
        train(configure(**SMALL, optimizer="natural"), out, console=quiet, callbacks=[Poison()])
    assert "\n" not in str(caught.value)
    assert Run.open(out).read_checkpoint("last")[1]["progress"] == {"epoch": 1, "batch": 0}
    assert all(t.isfinite().all() for t in tensors(out).values())


@pytest.mark.parametrize("precision", ["32", "bf16"])
@pytest.mark.parametrize("optimizer", ["adam", "natural"])
def test_gradients_are_clipped_in_any_precision(tmp_path: Path, precision: str, optimizer: str) -> None:
    norms: list[float] = []

    class Norms(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, module: Classifier, *given: object) -> None:
            gradients = [p.grad.flatten() for p in module.network.parameters() if p.grad is not None]
            norms.append(float(torch.cat(gradients).norm()))

    settings = {**SMALL, "epochs": 1, "optimizer": optimizer, "precision": precision, "clip": 0.01}
    train(configure(**settings), tmp_path / "run", console=quiet, callbacks=[Norms()])
    assert norms == pytest.approx([0.01] * len(norms), rel=1e-3)
    assert len(norms) > 1


def test_the_table_of_metrics_has_the_free_energy(whole: Path) -> None:
    run = Run.open(whole)
    for row in run.metrics():
        assert row["free_energy"] == pytest.approx(row["train_nll"] + row["kl"] / run.data.num_data)


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
    config = configure(data="digits", epochs=4, batch_size=32, augment=False)
    run = train(config, tmp_path / "run", console=console, report_every=2)
    last = run.metrics()[-1]
    assert last["val_accuracy"] > 0.6  # chance is 0.1
    assert last["val_nll"] < 1.2  # chance is 2.3
    assert last["val_epistemic"] > 0
    text = console.export_text()
    assert "left" in text  # the bar's time
    assert re.findall(r"(?<!\d)([1-4]) +\d\.\d{4} ", text) == ["2", "4"]
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


class Own(nn.Module):
    """A network that dubito cannot build."""

    num_classes = 3

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def test_a_users_trainer_tests_predicts_and_loads_from_its_checkpoint(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = dubito.to_bayesian(Own(), head="softmax", prior="mixture", estimator="weight")
    images, labels = torch.randn(24, 1, 4, 4), torch.arange(24) % 3
    loader = DataLoader(TensorDataset(images, labels), batch_size=10)
    schedule = dubito.KLSchedule("warmup", temperature=0.1)
    module = Classifier(
        network, 24, 1, schedule=schedule, test_samples=4, optimizer="sgd", class_weights=torch.tensor([1.0, 2.0, 3.0])
    )
    trainer = users_trainer(max_epochs=1)
    trainer.fit(module, loader)
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    torch.load(tmp_path / "own.ckpt", weights_only=True)  # holds nothing that would have to be trusted
    with pytest.raises(RunError, match=r"holds a Own, which dubito cannot build: give an instance"):
        Classifier.load_from_checkpoint(tmp_path / "own.ckpt")
    again = Classifier.load_from_checkpoint(tmp_path / "own.ckpt", network=Own(), learning_rate=0.5)
    assert (again.schedule, again.optimizer, again.optimizer_settings.learning_rate) == (schedule, "sgd", 0.5)
    assert again.hparams["class_weights"] == [1.0, 2.0, 3.0]
    expected = dubito.predict(network, images, samples=4)
    predictions = trainer.predict(again, loader)
    torch.testing.assert_close(dubito.Prediction.cat(predictions).probs, expected.probs)
    tested = trainer.test(again, loader, verbose=False)[0]
    right = (expected.label == labels).double().mean().item()
    nll = -expected.probs.gather(1, labels[:, None]).double().log().mean().item()
    assert tested["test_accuracy"] == pytest.approx(right)
    assert tested["test_nll"] == pytest.approx(nll, rel=1e-5)
    assert tested["test_epistemic"] == pytest.approx(expected.epistemic.mean().item(), rel=1e-5)


def test_a_network_that_does_not_say_how_many_classes_it_has_is_told_what_to_give() -> None:
    network = dubito.attach_head(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), "softmax")
    with pytest.raises(OptionError, match=r"\(Sequential\) does not say how many classes .*: give num_classes"):
        Classifier(network, 24, 1)
    assert Classifier(network, 24, 1, num_classes=3).hparams["num_classes"] == 3


def test_a_users_training_that_goes_on_from_its_checkpoint_is_one_that_never_stopped(tmp_path: Path) -> None:
    images, labels = torch.randn(24, 1, 4, 4), torch.arange(24) % 3
    loader = DataLoader(TensorDataset(images, labels), batch_size=8)
    first = dubito.to_bayesian(Own(), head="softmax", estimator="weight")

    def fitted(epochs: int, checkpoint: Path | None = None) -> tuple[pl.Trainer, Classifier]:
        module = Classifier(copy.deepcopy(first), 24, 2, optimizer="natural", learning_rate=0.1, seed=0)
        trainer = users_trainer(max_epochs=epochs)
        trainer.fit(module, loader, ckpt_path=checkpoint)
        return trainer, module

    fitted(1)[0].save_checkpoint(tmp_path / "half.ckpt")
    _, resumed = fitted(2, tmp_path / "half.ckpt")
    _, whole = fitted(2)
    assert_identical(whole.network.state_dict(), resumed.network.state_dict())


def test_a_trainer_without_a_last_epoch_can_train_too() -> None:
    def stop(trainer: pl.Trainer, module: pl.LightningModule) -> None:
        trainer.should_stop = True

    module = Classifier(dubito.to_bayesian(Own(), head="softmax"), 8, 5, optimizer="natural")
    trainer = users_trainer(max_epochs=-1, callbacks=[LambdaCallback(on_train_epoch_end=stop)])
    trainer.fit(module, DataLoader(TensorDataset(torch.randn(8, 1, 4, 4), torch.arange(8) % 3), batch_size=4))
    assert trainer.global_step == 2
    assert trainer.optimizers[0].param_groups[0]["hessian_rate"] == pytest.approx(
        0.25 / 10_000
    )  # as if nothing is known


def test_the_validation_metrics_are_those_of_one_predictor_with_the_epochs_seed(whole: Path) -> None:
    """Against a direct computation from the saved weights: the last epoch's row and its checkpoint belong together."""
    run = Run.open(whole)
    data = ImageData("digits", seed=0)
    images, labels = next(iter(data.batches(data.validation_part, train=False)))
    prediction = dubito.Predictor(run.load("last"), run.config.validation_samples, seed=key_seed(0, 3, 1))(images)
    row = run.metrics()[-1]
    assert float(-prediction.probs.gather(1, labels[:, None]).log().mean()) == pytest.approx(row["val_nll"], rel=1e-4)
    assert prediction.epistemic.mean().item() == pytest.approx(row["val_epistemic"], rel=1e-4)
    assert prediction.aleatoric.mean().item() == pytest.approx(row["val_aleatoric"], rel=1e-4)


def test_one_cycle_rises_and_falls() -> None:
    rates = [one_cycle(i / 100) for i in range(101)]
    assert max(rates) == rates[25] == 1
    assert rates[0] == pytest.approx(0.04)
    assert rates[-1] == pytest.approx(0)
    assert all(a < b for a, b in pairwise(rates[:26]))
    assert all(a > b for a, b in pairwise(rates[25:]))


def test_the_papers_preset_trains(tmp_path: Path) -> None:
    config = configure("paper", data="digits", epochs=2, batch_size=256, samples=2, validation_samples=2)
    rows = train(config, tmp_path / "run", console=quiet).metrics()
    assert rows[-1]["train_nll"] < rows[0]["train_nll"]


def test_too_few_images_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", images=np.zeros((2, 32, 32), np.uint8), labels=np.array([0, 1]))
    with pytest.raises(DataError):
        train(configure(data=str(tmp_path / "few.npz")), tmp_path / "run", console=quiet)
    assert not (tmp_path / "run").exists()


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


@pytest.mark.parametrize(("name", "words"), [("foo", "device is 'foo', but must be one of"), ("gpu", "finds none")])
def test_a_device_that_is_not_there_is_refused_at_once(name: str, words: str, tmp_path: Path) -> None:
    if name == "gpu" and (torch.cuda.is_available() or torch.backends.mps.is_available()):
        pytest.skip("it is there")
    with pytest.raises(OptionError, match=words):
        train(configure(**SMALL, device=name), tmp_path / "run", console=quiet)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bayesian", [False, True])
def test_gradients_of_transposed_convolutions_are_centralized_over_the_inputs_too(bayesian: bool, groups: int) -> None:
    torch.manual_seed(0)
    kind = dubito.BayesConvTranspose2d if bayesian else torch.nn.ConvTranspose2d
    layer = kind(4, 6, 2, groups=groups)
    layer(torch.randn(3, 4, 5, 5)).square().sum().backward()
    gradient = layer.weight_mean.grad if bayesian else layer.weight.grad
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
    assert len(logged.rows) == len(rows) == 2
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


def test_class_weights_and_label_smoothing_reach_the_objective(tmp_path: Path) -> None:
    labels = [0] * 24 + [1] * 8 + [2] * 16
    data = own_images(tmp_path / "data.npz", labels)
    seen: list[tuple[Classifier, list[int]]] = []

    class Look(pl.Callback):
        def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
            seen.append((module, trainer.datamodule.train_part.labels.tolist()))

    settings = {**OWN, "data": str(data), "label_smoothing": 0.1}
    for number, (given, expected) in enumerate([("none", None), ("balanced", "balanced"), ("1,2,0.5", [1, 2, 0.5])]):
        config = configure(**settings, class_weights=given)
        train(config, tmp_path / str(number), console=quiet, callbacks=[Look()])
        likelihood, kept = seen[-1][0].objective.likelihood, seen[-1][1]
        if expected == "balanced":
            expected = [len(kept) / (3 * kept.count(c)) for c in range(3)]
        weights = likelihood.class_weights
        assert weights is None if expected is None else weights.tolist() == pytest.approx(expected)
        assert likelihood.label_smoothing == 0.1
    with pytest.raises(OptionError, match="class_weights has 2 numbers, but the data has 3 classes"):
        train(configure(**settings, class_weights="1,2"), tmp_path / "refused", console=quiet)
    assert not (tmp_path / "refused").exists()
