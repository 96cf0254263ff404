"""A Bayesian network that starts from its trained frequentist twin."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console

from dubito.errors import RunError
from dubito.layers import BayesLayer
from dubito.training import Run, configure, train

quiet = Console(quiet=True)
SMALL = {"data": "digits", "batch_size": 512, "epochs": 1, "validation_samples": 1}


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "twin"
    train(configure(**SMALL, inference="frequentist"), folder, console=quiet)
    return folder


def test_the_twins_weights_become_the_means_and_the_centre_of_an_empirical_prior(twin: Path, tmp_path: Path) -> None:
    # At this learning rate an epoch of three steps moves no weight by more than 1e-8.
    config = configure(**SMALL, init=str(twin), prior="empirical", learning_rate=1e-9, centralize=False)
    network = train(config, tmp_path / "warm", console=quiet).load("last")
    point = Run.open(twin).load()
    layers = [(name, layer) for name, layer in network.named_children() if isinstance(layer, BayesLayer)]
    assert len(layers) == 5
    for name, layer in layers:
        weight = point.get_submodule(name).weight
        torch.testing.assert_close(layer.weight_mean, weight, atol=1e-7, rtol=0)
        prior = layer.posteriors["weight"].prior
        torch.testing.assert_close(prior.mean, weight, atol=0, rtol=0)
        torch.testing.assert_close(prior.std, weight.square().mean().sqrt())
        torch.testing.assert_close(layer.weight_std, torch.full_like(weight, config.initial_std), rtol=1e-4, atol=0)


@pytest.mark.parametrize("other", [{"head": "softmax"}, {"model": "alexnet"}, {"activation": "relu"}])
def test_what_is_no_twin_is_refused_before_anything_is_written(twin: Path, tmp_path: Path, other: dict) -> None:
    (name,) = other
    with pytest.raises(RunError, match=f"init is .*twin, whose {name} is .*, but this training's is {other[name]}"):
        train(configure(**{**SMALL, **other}, init=str(twin)), tmp_path / "out", console=quiet)
    assert not (tmp_path / "out").exists()


def test_settings_of_earlier_versions_name_the_twin_in_their_way(twin: Path) -> None:
    assert configure(warm_start=str(twin)) == configure(init=str(twin))


def test_a_training_takes_its_network_from_the_run_that_it_starts_from(twin: Path) -> None:
    config = configure("finetune", init=str(twin))
    assert (config.model, config.head, config.activation, config.prior) == (
        "lenet5",
        "softplus",
        "softplus",
        "empirical",
    )
    assert configure("finetune", init=str(twin), head="softmax").head == "softmax"
