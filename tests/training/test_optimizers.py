"""Optimisers by name, and their state in checkpoints."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from training_runs import SMALL, quiet

import dubito
from dubito.errors import OptionError, RunError
from dubito.runs.config import TrainingConfig
from dubito.training import Run, configure, resume, train
from dubito.training.optimizer_state import pack_state, restore_state
from dubito.training.optimizers import OPTIMIZERS, OptimizerSettings, make_optimizer


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), dubito.BayesLinear(3, 2, prior=1.0))


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    torch.manual_seed(1)
    inputs = torch.arange(12.0).reshape(3, 4) / 12
    for _ in range(count):
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_restored_optimiser_goes_on_bit_for_bit(name: str) -> None:
    settings = OptimizerSettings(0.01, l2=0.1, num_data=3)
    model = network()
    optimizer = make_optimizer(name, model, settings)
    steps(model, optimizer, 3)
    optimizer.param_groups[0]["lr"] = 0.003
    tensors, notes = pack_state(optimizer, model)
    stored = {name: tensor.clone() for name, tensor in tensors.items()}
    again = copy.deepcopy(model)
    other = make_optimizer(name, again, settings)
    restore_state(other, again, {**stored, "network.weight": torch.zeros(1)}, json.loads(json.dumps(notes)))
    assert other.param_groups[0]["lr"] == 0.003
    assert other.param_groups[0]["initial_lr"] == 0.01
    steps(model, optimizer, 3)
    steps(again, other, 3)
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimiser_lowers_the_loss_and_is_named_in_the_help(name: str) -> None:
    model = network()
    inputs = torch.randn(8, 4)
    before = model(inputs).square().sum().item()
    steps(model, make_optimizer(name, model, OptimizerSettings(0.01)), 20)
    assert model(inputs).square().sum().item() < before
    assert name in TrainingConfig.__dataclass_fields__["optimizer"].metadata["help"]


def test_an_unknown_optimiser_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"optimizer is 'adamm', but must be one of 'adam', .*nearest is 'adam'"):
        train(configure(**SMALL, optimizer="adamm"), tmp_path / "run", console=quiet)
    assert not (tmp_path / "run").exists()


AVERAGE = "optimizer.state.0.exp_avg"
Change = Callable[[dict[str, Tensor], dict], object]
CHANGES: dict[str, tuple[Change, str]] = {
    "a tensor is missing": (lambda tensors, notes: tensors.pop(AVERAGE), "exp_avg' is missing"),
    "a tensor too many": (lambda tensors, notes: tensors.update({"optimizer.more": torch.zeros(1)}), "unknown tensor"),
    "another shape": (lambda tensors, notes: tensors.update({AVERAGE: torch.zeros(4, 3)}), "exp_avg is torch.float32"),
    "another type": (lambda tensors, notes: tensors.update({AVERAGE: torch.zeros(3, 4).half()}), "is torch.float16"),
    "other parameters": (lambda tensors, notes: notes["parameters"].reverse(), "belongs to other parameters"),
    "no structure": (lambda tensors, notes: notes.pop("structure"), "'structure' is missing"),
    "a wrong structure": (lambda tensors, notes: notes.update(structure=[]), "does not fit"),
}


@pytest.mark.parametrize("fault", CHANGES)
def test_a_state_that_does_not_fit_is_refused(fault: str) -> None:
    change, words = CHANGES[fault]
    model = network()
    optimizer = make_optimizer("adam", model)
    steps(model, optimizer, 1)
    tensors, notes = pack_state(optimizer, model)
    change(tensors, notes)
    with pytest.raises(RunError, match=words):
        restore_state(make_optimizer("adam", model), model, tensors, notes)


def test_a_consistent_state_of_another_shape_is_refused_too() -> None:
    model = network()
    optimizer = make_optimizer("adam", model)
    steps(model, optimizer, 1)
    optimizer.state[model[0].weight]["exp_avg"] = torch.zeros(2)
    with pytest.raises(RunError, match=r"exp_avg of parameter 0 has the shape \(2,\)"):
        restore_state(make_optimizer("adam", model), model, *pack_state(optimizer, model))


def test_the_state_of_one_optimiser_is_not_given_to_another() -> None:
    model = network()
    with pytest.raises(RunError, match="does not fit this training"):
        restore_state(make_optimizer("adam", model), model, *pack_state(make_optimizer("sgd", model), model))


def test_a_checkpoint_without_the_optimisers_state_is_refused(whole: Path, tmp_path: Path) -> None:
    run = Run.open(whole)
    again = Run(tmp_path / "run", run.config, run.data)
    again.create()
    tensors, notes = run.read_checkpoint("last")
    del notes["optimizer"]
    again.write_checkpoint("last", tensors, notes)
    with pytest.raises(RunError, match="was trained by an earlier version"):
        resume(again.path, console=quiet)
