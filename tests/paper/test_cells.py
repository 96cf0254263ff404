"""The grid: which trainings there are under each budget, with which settings, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from dubito.errors import OptionError
from dubito.paper.cells import (
    BUDGETS,
    CPU_KL,
    LONG,
    LONG_SETTINGS,
    Cell,
    Experiment,
    cells_of,
    chosen,
    estimated_seconds,
    grid,
    settings,
    warm,
)
from dubito.training import configure

CPU, PAPER, SMOKE = BUDGETS["cpu"], BUDGETS["paper"], BUDGETS["smoke"]


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=lambda budget: budget.name)
def test_the_first_table_has_every_network_on_every_data_set_and_dropout_for_lenet5(budget) -> None:
    cells = cells_of(Experiment.TABLE1, budget)
    assert len(cells) == 3 * 3 * 2 + 3
    assert {cell.model for cell in cells if cell.inference == "dropout"} == {"lenet5"}
    assert {cell.head for cell in cells} == {"softplus"}


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=lambda budget: budget.name)
def test_every_cell_belongs_to_an_experiment_and_has_a_folder_of_its_own(budget) -> None:
    cells = grid(budget)
    assert set(cells) == {cell for experiment in Experiment for cell in cells_of(experiment, budget)}
    assert len({cell.name for cell in cells}) == len(cells)


def test_the_second_table_trains_each_head_apart() -> None:
    cells = cells_of(Experiment.TABLE2, PAPER)
    assert len(cells) == 3 * 2 * 3
    assert {settings(cell, PAPER, Path()).head for cell in cells} == {"softplus", "softmax", "kendall_gal"}
    assert {cell.inference for cell in cells} == {"vi"}
    left_out = set(cells) - set(cells_of(Experiment.TABLE2, CPU))
    assert {(cell.model, cell.head) for cell in left_out} == {("vgg16", "softmax"), ("vgg16", "kendall_gal")}


def test_experiments_share_trainings() -> None:
    table1 = set(cells_of(Experiment.TABLE1, CPU))
    for experiment in (Experiment.NOISE, Experiment.FILTERS):
        assert set(cells_of(experiment, CPU)) <= table1
    assert set(cells_of(Experiment.REGULARISATION, CPU)) - table1 == {Cell("alexnet", "cifar100", "dropout")}


def test_a_weight_is_followed_for_a_hundred_epochs() -> None:
    for budget in (CPU, PAPER):
        (cell,) = cells_of(Experiment.POSTERIOR, budget)
        assert (cell.model, cell.data, cell.inference) == ("lenet5", "cifar10", "vi")
        assert settings(cell, budget, Path()).epochs == 100
    assert LONG not in grid(PAPER)
    assert LONG.name == "lenet5-cifar10-vi-100-epochs"
    assert cells_of(Experiment.POSTERIOR, SMOKE) == [Cell("lenet5", "cifar10")]


def test_the_paper_budget_is_the_preset_of_that_name_untouched() -> None:
    for cell in grid(PAPER):
        names = {"model": cell.model, "data": cell.data, "inference": cell.inference, "head": cell.head}
        assert settings(cell, PAPER, Path("runs")) == configure("paper", **names)
    assert settings(Cell("vgg16", "cifar10"), PAPER, Path()).epochs == 100


def test_the_cpu_budget_changes_nothing_of_the_default_preset_but_epochs_kl_of_alexnet_and_the_start_of_vgg16() -> None:
    for cell in grid(CPU):
        found = settings(cell, CPU, Path("runs"))
        names = {"model": cell.model, "data": cell.data, "inference": cell.inference, "head": cell.head}
        changed = {"epochs"} | ({"init", "prior", "warmup_epochs"} if warm(cell, CPU) else set())
        changed |= set(LONG_SETTINGS) if cell == LONG else set()
        weighed = CPU_KL.get((cell.model, cell.data), {})
        assert weighed == {name: getattr(found, name) for name in weighed}
        changed |= set(weighed)
        given = {name: getattr(found, name) for name in changed}
        assert found == configure(**names, **given)
        assert warm(cell, CPU) == (cell.model == "vgg16" and cell.inference == "vi")
    assert {name for weighed in CPU_KL.values() for name in weighed} == {"temperature", "warmup_epochs"}
    assert {model for model, _ in CPU_KL} == {"alexnet"}


def test_the_cheapest_networks_come_first_and_vgg16_last_and_after_its_twin() -> None:
    cells = grid(CPU)
    models = [cell.model for cell in cells if cell.head == "softplus" and cell != LONG]
    assert models == sorted(models, key=("lenet5", "alexnet", "vgg16").index)
    assert [cell.data for cell in cells if cell.name.startswith("alexnet") and cell.inference == "frequentist"] == [
        "cifar10",
        "cifar100",
        "mnist",
    ]
    assert all(cells.index(cell.twin) < cells.index(cell) for cell in cells if warm(cell, CPU))
    hours = sum(estimated_seconds(cell, CPU) for cell in cells) / 3600
    assert hours < 24  # of one core


def test_only_chooses_cells_and_keeps_what_they_start_from() -> None:
    names = [cell.name for cell in chosen(list(Experiment), CPU, "model=vgg16, data=mnist, inference=vi")]
    assert names == ["vgg16-mnist-frequentist", "vgg16-mnist-vi"]
    both = chosen([Experiment.TABLE1], CPU, "model=lenet5,model=alexnet,data=mnist")
    assert {cell.model for cell in both} == {"lenet5", "alexnet"}
    assert chosen([Experiment.TABLE1], SMOKE) == [c for c in grid(SMOKE) if c in cells_of(Experiment.TABLE1, SMOKE)]


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("lenet5", "'lenet5', but takes NAME=VALUE"),
        ("network=lenet5", "'network', but must be one of 'model', 'data'"),
        ("model=lenet", "'lenet', but must be one of 'lenet5'"),
        ("data=cifar100,head=softmax", "leaves no cell"),
    ],
)
def test_a_wrong_only_is_told_in_one_sentence(only: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        chosen(list(Experiment), CPU, only)
