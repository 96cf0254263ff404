"""Where the time goes: operators of known names and shapes, and whether the groups hold everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmark_workers import Raises, here
from benchmarks.peers import __main__ as peers
from benchmarks.peers.plan import Stage
from benchmarks.peers.profile import Group, grouped, profile
from torch import nn
from torch.profiler import ProfilerActivity, record_function

from dubito.benchmark import Frequentist, Measure, PlainNetwork, System, Work
from dubito.benchmark.systems import LocalTraining, WeightPrediction, WeightTraining
from dubito.benchmark.work import Task
from dubito.benchmark.workers import _training_step

NETWORK = nn.ModuleList([nn.Conv2d(6, 7, 3), nn.Linear(11, 5)])
WEIGHT, BIAS = (parameter.detach() for parameter in NETWORK[0].parameters())
ACTIVATION, LOGITS = torch.ones(4, 6, 8, 8), torch.ones(11, 5)
TRANSPOSED = ACTIVATION.transpose(2, 3)
TINY = PlainNetwork(width=2, depth=2)
STEP, DRAWS = Work(TINY, Task.STEP, 2), Work(TINY, Task.PREDICT, 2, 3)


def events_of(action: Callable[[], Any]) -> Any:
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        action()
    return recorded.events()


def groups_of(events: list[Any]) -> set[Group]:
    return {group for group, taken in grouped(events, NETWORK).items() if taken}


@pytest.mark.parametrize(
    ("action", "operator", "group"),
    [
        (lambda: F.conv2d(ACTIVATION, WEIGHT), "aten::convolution", Group.PRODUCTS),
        (lambda: LOGITS.T @ LOGITS, "aten::mm", Group.PRODUCTS),
        (lambda: torch.addmm(BIAS[:5], LOGITS, LOGITS[:5]), "aten::addmm", Group.PRODUCTS),
        (lambda: torch.randn_like(WEIGHT), "aten::normal_", Group.NOISE),
        (lambda: torch.randint(2, (4, 6)), "aten::random_", Group.NOISE),
        (lambda: F.softplus(WEIGHT), "aten::softplus", Group.WEIGHTS),
        (lambda: WEIGHT * torch.tensor(2.0), "aten::mul", Group.WEIGHTS),
        (lambda: WEIGHT.flatten().dot(WEIGHT.flatten()), "aten::dot", Group.WEIGHTS),
        (lambda: torch.ones(9, 7, 6).add_(1), "aten::add_", Group.WEIGHTS),
        (lambda: BIAS.exp(), "aten::exp", Group.WEIGHTS),
        (lambda: F.softplus(ACTIVATION), "aten::softplus", Group.ACTIVATIONS),
        (lambda: ACTIVATION * BIAS[:6, None, None], "aten::mul", Group.ACTIVATIONS),
        (lambda: F.max_pool2d(ACTIVATION, 2), "aten::max_pool2d_with_indices", Group.ACTIVATIONS),
        (lambda: torch.cat([ACTIVATION, ACTIVATION]), "aten::cat", Group.ACTIVATIONS),
        (lambda: ACTIVATION.lgamma(), "aten::lgamma", Group.ACTIVATIONS),
        (lambda: LOGITS.exp(), "aten::exp", Group.ACTIVATIONS),  # as many as weights of the linear layer
        (lambda: WEIGHT.view(-1), "aten::view", Group.REST),
        (lambda: ACTIVATION[0], "aten::select", Group.REST),
        (lambda: torch.empty(7, 6, 3, 3), "aten::empty", Group.REST),
    ],
)
def test_an_operator_belongs_to_the_group_of_its_name_and_its_largest_input(action, operator, group) -> None:
    assert groups_of([event for event in events_of(action) if event.name == operator]) == {group}


def optimiser_step() -> Callable[[], None]:
    parameter = nn.Parameter(torch.ones(7, 6, 3, 3))
    parameter.grad = torch.ones_like(parameter)
    return torch.optim.Adam([parameter], fused=True).step


@pytest.mark.parametrize(
    ("action", "group"),
    [
        (lambda: torch.randn(5), Group.NOISE),
        (lambda: F.conv2d(TRANSPOSED, WEIGHT, BIAS), Group.PRODUCTS),
        (optimiser_step(), Group.OPTIMISER),
    ],
    ids=["noise", "convolution", "optimiser"],
)
def test_what_is_called_inside_belongs_to_the_group_too(action, group) -> None:
    inside = [event for event in events_of(action) if event.cpu_parent is not None]
    assert len({event.name for event in inside}) > 1
    assert groups_of(inside) == {group}


@pytest.mark.parametrize("kind", [Frequentist, LocalTraining, WeightTraining])
def test_the_groups_add_up_to_all_self_times(kind: type[System]) -> None:
    system = kind(STEP.build())
    step = _training_step(system, *STEP.data())

    def execution() -> None:
        with record_function("whole"):
            step()

    step()
    events = events_of(execution)
    sums = grouped(events, system.network)
    (whole,) = [event for event in events if event.name == "whole"]
    assert sum(sums.values()) == pytest.approx(sum(event.self_cpu_time_total for event in events))
    assert sum(sums.values()) == pytest.approx(whole.cpu_time_total)
    assert {group for group, taken in sums.items() if not taken} == ({Group.NOISE} if kind is Frequentist else set())


def test_a_profile_is_of_as_many_executions_with_the_profiler_as_without() -> None:
    profiled = []
    found = profile(lambda: profiled.append(torch.autograd.profiler._is_profiler_enabled), NETWORK, executions=3)
    assert sorted(profiled) == [False] * 3 + [True] * 3
    assert found.groups.keys() == {group.value for group in Group}
    assert sum(found.groups.values()) == found.groups["the rest"] > 0
    assert found.wall > 0


def test_a_stage_profiles_after_the_ratios_and_says_who_failed(monkeypatch) -> None:
    monkeypatch.setattr(peers, "open_workers", here)
    kinds = (Frequentist, WeightPrediction, Raises)
    profiles = ((Frequentist, STEP), (WeightPrediction, DRAWS), (Raises, STEP))
    measures = (Measure("step", STEP, STEP, 1), Measure("predict", DRAWS, DRAWS, 1))
    found = peers.measure(Stage("tiny", kinds, measures, 1, profiles=profiles), 1, lambda share: None)
    assert list(found["profile"]) == ["frequentist twin, step", "dubito.Predictor, 3 draws", "raises, step"]
    twin, ours, failed = found["profile"].values()
    assert twin["groups"]["optimiser"] > 0 == ours["groups"]["optimiser"]
    assert ours["groups"]["convolutions and matrix products"] > 0
    assert min(twin["wall"], ours["wall"]) > 0
    assert failed == {"failure": "no loss\ntoday"}
    assert "profile" not in peers.measure(Stage("tiny", kinds[:1], measures, 1), 1, lambda share: None)
