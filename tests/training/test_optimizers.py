"""Optimisers by name, and their state in checkpoints."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
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
    with pytest.raises(RunError, match=r"exp_avg of parameter 0 is torch.float32 \(2,\), not"):
        restore_state(make_optimizer("adam", model), model, *pack_state(optimizer, model))


def first_tensor(optimizer: torch.optim.Optimizer) -> tuple[dict, str]:
    """The state of the first parameter that has one, and the name of its first value that is no single number."""
    state = next(values for values in optimizer.state.values() if values)
    return state, next(name for name, value in state.items() if isinstance(value, Tensor) and value.dim())


def set_state(optimizer: torch.optim.Optimizer, value: Callable[[Tensor], Tensor]) -> None:
    state, name = first_tensor(optimizer)
    state[name] = value(state[name])


DAMAGES: dict[str, tuple[Callable[[torch.optim.Optimizer], object], str]] = {
    "another shape": (lambda o: set_state(o, lambda t: t.flatten()[:-1].clone()), "not torch.float32"),
    "no shape": (lambda o: set_state(o, lambda t: torch.tensor(1.0)), "not torch.float32"),
    "another dtype": (lambda o: set_state(o, lambda t: t.double()), "is torch.float64"),
    "not finite": (lambda o: set_state(o, lambda t: t * float("nan")), "not finite"),
    "infinite": (lambda o: set_state(o, lambda t: t + float("inf")), "not finite"),
    "another name": (lambda o: (lambda state, name: state.update(other=state.pop(name)))(*first_tensor(o)), "other"),
    "a number for a tensor": (lambda o: (lambda state, name: state.update({name: 3}))(*first_tensor(o)), "is a int"),
    "one parameter without": (lambda o: first_tensor(o)[0].clear(), "other values for parameter"),
    "no state": (lambda o: o.state.clear(), "it has nothing for parameter"),
    "a learning rate of NaN": (lambda o: o.param_groups[0].update(lr=float("nan")), "lr has values"),
    "a learning rate of text": (lambda o: o.param_groups[0].update(lr="fast"), "lr is a str"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_that_would_crash_or_spoil_a_step_is_refused(name: str, damage: str) -> None:
    change, words = DAMAGES[damage]
    model = network()
    optimizer = make_optimizer(name, model)
    steps(model, optimizer, 1)
    _, sound = pack_state(optimizer, model)
    change(optimizer)
    tensors, notes = pack_state(optimizer, model)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(RunError, match=words):
        restore_state(make_optimizer(name, model), model, tensors, {**notes, "stateless": sound["stateless"]})
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize(
    ("name", "value", "number"),
    [("adam", "exp_avg_sq", -1.0), ("adam", "step", 0.0), ("natural", "initial_variance", 0.0)],
)
def test_what_is_divided_by_is_positive(name: str, value: str, number: float) -> None:
    model = network()
    optimizer = make_optimizer(name, model)
    steps(model, optimizer, 1)
    first_tensor(optimizer)[0][value].fill_(number)
    with pytest.raises(RunError, match=f"{value} of parameter . has values that are too small"):
        restore_state(make_optimizer(name, model), model, *pack_state(optimizer, model))


def test_options_of_an_optimiser_are_those_of_the_settings() -> None:
    model = network()
    optimizer = make_optimizer("natural", model)
    steps(model, optimizer, 3)
    optimizer.param_groups[0].update(momentum=1.0, lr=0.25)
    again = make_optimizer("natural", model)
    restore_state(again, model, *pack_state(optimizer, model))
    kept = again.param_groups[0]
    assert (kept["momentum"], kept["lr"], kept["step"]) == (0.9, 0.25, 3)


def test_a_parameter_without_a_gradient_needs_no_state() -> None:
    model = network()
    model.unused = nn.Parameter(torch.zeros(2))  # type: ignore[assignment]
    optimizer = make_optimizer("adam", model)
    steps(model, optimizer, 2)
    restore_state(make_optimizer("adam", model), model, *pack_state(optimizer, model))


NOTES: dict[str, Callable[[dict], object]] = {
    "progress of a text": lambda notes: notes["progress"].update(epoch="1"),
    "progress before the beginning": lambda notes: notes["progress"].update(batch=-1),
    "progress of a list": lambda notes: notes.update(progress=[1]),
    "an unknown sum": lambda notes: notes["sums"].update(more=1),
    "rows of texts": lambda notes: notes.update(rows=["x"]),
    "a row without a column": lambda notes: notes["rows"][0].pop("kl"),
    "a row with a text": lambda notes: notes["rows"][0].update(kl="x"),
    "no trace": lambda notes: notes.pop("trace"),
    "a best of a text": lambda notes: notes.update(best="x"),
    "settings of a list": lambda notes: notes.update(settings=[1]),
    "optimiser of a list": lambda notes: notes.update(optimizer=[1]),
    "no state": lambda notes: notes["optimizer"]["structure"]["dict"][0].__setitem__(1, {"dict": []}),
}


@pytest.mark.parametrize("damage", NOTES)
def test_a_checkpoint_with_other_notes_is_not_resumed(damage: str, whole: Path, tmp_path: Path) -> None:
    run = Run.open(whole)
    again = Run(tmp_path / "run", replace(run.config, epochs=3), run.data)
    again.create()
    tensors, notes = run.read_checkpoint("last")
    NOTES[damage](notes)
    again.write_checkpoint("last", tensors, notes)
    with pytest.raises(RunError, match=r"is damaged|does not fit this training"):
        resume(again.path, console=quiet, accept_changes=damage != "settings of a list")


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
