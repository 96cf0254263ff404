"""The settings of a training: presets, YAML files and flags."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

import dubito
from dubito.errors import OptionError
from dubito.estimators import ESTIMATORS, Weight
from dubito.heads import HEADS, SoftmaxHead
from dubito.runs.config import restore
from dubito.training import configure
from dubito.variational.families import FAMILIES, StdPosterior


def test_the_papers_preset_is_its_appendix() -> None:
    config = configure("paper")
    assert (config.learning_rate, config.epochs, config.batch_size, config.samples) == (1e-3, 100, 128, 10)
    assert (config.kl_schedule, config.posterior, config.l2) == ("blundell", "alpha", 5e-4)
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


def test_natural_gradients_have_defaults_of_their_own_in_every_preset_and_network() -> None:
    for model in ("lenet5", "alexnet", "resnet20"):
        config = configure(model=model, optimizer="natural")
        assert (config.temperature, config.estimator, config.kl_schedule) == (1, "weight", "constant")
        assert config.learning_rate > configure(model=model).learning_rate
    assert configure(optimizer="natural", estimator="local", temperature=0.5).estimator == "local"


def test_fine_tuning_is_by_natural_gradients_unless_that_cannot_be() -> None:
    config = configure("finetune")
    assert (config.optimizer, config.epochs, config.temperature, config.prior) == ("natural", 2, 1, "empirical")
    assert configure("finetune", learning_rate=0.01).learning_rate == 0.01
    for other in ({"optimizer": "adam"}, {"inference": "frequentist"}):
        config = configure("finetune", **other)
        assert (config.optimizer, config.epochs, config.learning_rate) == ("adam", 5, 3e-4)


def test_flags_override_the_file_and_the_file_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("epochs: 7\nlearning_rate: 1.0e-2\nprior: 0.5\n")
    config = configure("paper", file, epochs=3, model=None)
    assert (config.epochs, config.learning_rate, config.kl_schedule) == (3, 0.01, "blundell")
    assert config.layer_options["prior"] == 0.5


@pytest.mark.parametrize("name", dubito.models.names())
def test_every_network_of_the_registry_can_be_chosen(name: str) -> None:
    assert configure(model=name).model == name


def test_registered_heads_estimators_and_posteriors_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HEADS, "mine", SoftmaxHead)
    monkeypatch.setitem(ESTIMATORS, "mine", Weight)
    monkeypatch.setitem(FAMILIES, "mine", StdPosterior)
    config = configure(head="mine", estimator="mine", posterior="mine")
    assert (config.head, config.estimator, config.posterior) == ("mine", "mine", "mine")
    for setting in ("head", "estimator", "posterior"):
        with pytest.raises(OptionError, match=rf"{setting} is 'yours', but must be one of .*'mine'"):
            configure(**{setting: "yours"})
    with pytest.raises(OptionError, match="head is 'gaussian', but must be one of 'softplus', 'softmax'"):
        configure(head="gaussian")  # which does not classify


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"preset": "fast"}, r"preset is 'fast', but must be one of 'default', 'paper'"),
        ({"epoch": 3}, r"setting is 'epoch', but must be one of 'model'"),
        ({"model": "lenet6"}, r"model is 'lenet6', but must be one of 'lenet5', .*; the nearest is 'lenet5'"),
        ({"size": -1}, r"size is -1, but must be at least 0"),
        ({"epochs": 0}, r"epochs is 0, but must be at least 1"),
        ({"epochs": 2.5}, r"epochs is 2.5, but must be a whole number"),
        ({"augment": "perhaps"}, r"augment is 'perhaps', but must be true or false"),
        ({"head": "sigmoid"}, r"head is 'sigmoid', but must be one of 'softplus', 'softmax', 'kendall_gal'"),
        ({"learning_rate": -1}, r"learning_rate is -1.0, but must be positive"),
        ({"initial_std": -1}, r"initial_std is -1.0, but must be positive"),
        ({"temperature": math.inf}, r"temperature is inf, but must be finite"),
        ({"warmup_epochs": math.inf}, r"warmup_epochs is inf, but must be finite"),
        ({"seed": 10**20}, r"seed is 100000000000000000000, but must be at most"),
        ({"validation_fraction": 1.0}, r"validation_fraction is 1.0"),
        ({"hessian_rate": 2}, r"hessian_rate is 2.0, but must be at most 1"),
        ({"optimizer": "natural", "inference": "dropout"}, r"natural, which needs the inference vi, but"),
        ({"optimizer": "natural", "preset": "paper"}, r"needs the posterior std, but posterior is alpha: add --poster"),
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


def test_settings_do_not_wait_for_torch() -> None:
    code = "import sys; from dubito.runs.config import configure; configure('paper'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_settings_of_earlier_versions_have_their_names_of_today() -> None:
    assert configure(accelerator="cpu").device == "cpu"
    assert restore({"accelerator": "gpu"}).device == "gpu"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"class_weights": "balance"}, "class_weights is 'balance', but must be none, balanced, or a number"),
        ({"class_weights": "1,-2"}, "not negative"),
        ({"class_weights": "0,0"}, "not all 0"),
        ({"class_weights": "1,nan"}, "finite"),
        ({"label_smoothing": 1.5}, "label_smoothing is 1.5, but must lie in 0"),
    ],
)
def test_impossible_class_weights_and_label_smoothing_are_refused(settings, message):
    with pytest.raises(OptionError, match=message):
        configure(**settings)
