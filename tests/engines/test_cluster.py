"""Evaluations, trainings and grids on Ray are those of one process; a node that is killed takes nothing with it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from rich.console import Console

from dubito.engines import LocalEngine, RayEngine
from dubito.errors import OptionError
from dubito.evaluation import evaluate
from dubito.paper.cells import BUDGETS, Cell, Experiment, chosen
from dubito.paper.grid import Grid
from dubito.runs.run import Run
from dubito.training import configure, resume_on_ray, train, train_on_ray

if TYPE_CHECKING:
    from conftest import TwoNodes

QUIET = Console(quiet=True)


def slowly(number: int) -> int:
    time.sleep(0.1)
    return number**2


def test_a_node_that_is_killed_loses_nothing(two_nodes: TwoNodes) -> None:
    two_nodes.ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # which workers do not find
    nodes = set()
    found = []

    def make() -> Any:
        import ray

        own = ray.get_runtime_context().get_node_id()
        return lambda number: (own, slowly(number))

    try:
        for number, (node, square) in RayEngine(workers=2).map(make, iter(range(40))):
            found.append((number, square))
            nodes.add(node)
            if len(nodes) == 2 and two_nodes.second is not None:
                two_nodes.kill_second()
                two_nodes.second = None
    finally:
        two_nodes.replace_second()
    assert len(nodes) == 2
    assert sorted(found) == [(number, number**2) for number in range(40)]


def test_an_evaluation_is_that_of_one_process(digits_run: Path, ray_of_two: Any) -> None:
    options: dict[str, Any] = {"samples": 3, "noise": (0.3,), "noise_images": None, "bootstrap": 20}
    alone = evaluate(digits_run, **options)
    shared = evaluate(digits_run, **options, engine=RayEngine(workers=2))
    assert shared.metrics == alone.metrics
    assert torch.equal(shared.test.draws, alone.test.draws)


def kill_a_worker_after(epochs: int, folder: Path) -> None:
    """Kill one of the processes that train, once so many epochs are done."""
    file = folder / "metrics.csv"
    while not (file.exists() and len(file.read_bytes().splitlines()) > epochs):
        time.sleep(0.02)
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::_Partner" in (place / "cmdline").read_bytes():
                os.kill(int(place.name), signal.SIGKILL)
                return
        except OSError:
            continue


def test_workers_train_as_one_process_does_on_the_joined_batches_although_one_is_killed(
    tmp_path: Path, ray_of_two: Any
) -> None:
    """Plain gradient descent, so that weights differ by sums of differences of gradients."""
    config = configure(
        data="digits",
        epochs=3,
        batch_size=512,
        estimator="mean",
        augment=False,
        optimizer="sgd",
        learning_rate=0.01,
        novelty=False,
    )
    killer = threading.Thread(target=kill_a_worker_after, args=(1, tmp_path / "two"))
    killer.start()
    two = train_on_ray(RayEngine(workers=2), config, tmp_path / "two", console=QUIET)
    killer.join()
    one = train(config, tmp_path / "one", console=QUIET)
    start, _ = train(configure(**{**config.to_dict(), "epochs": 1}), tmp_path / "s", console=QUIET).read_checkpoint(
        "last"
    )
    ours, theirs = (run.read_checkpoint("last")[0] for run in (two, one))
    for name in (name for name in theirs if name.startswith("network.")):
        moved = float((theirs[name] - start[name]).abs().max())
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-3 * moved + 1e-7, msg=name)
    assert [row["epoch"] for row in two.metrics()] == [1, 2, 3]
    assert two.config.num_nodes == 2
    with pytest.raises(OptionError, match="was trained by 2 processes"):
        resume_on_ray(RayEngine(workers=1), two.path)


def test_cells_of_a_grid_are_carried_by_an_engine(tmp_path: Path) -> None:
    cells = chosen([Experiment.TABLE1], BUDGETS["smoke"], "model=lenet5,data=mnist")[:2]
    shown: list[list[str]] = []

    def show(grid: Grid) -> None:
        shown.append([state.status for state in grid.states.values()])

    grid = Grid(cells, BUDGETS["smoke"], tmp_path, show=show, engine=LocalEngine())
    grid.run()
    assert shown[-1] == ["finished", "finished"]
    assert all(Run.open(tmp_path / cell.name).metrics() for cell in cells)


def test_a_cell_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell: Cell = chosen([Experiment.TABLE1], BUDGETS["smoke"], "model=lenet5,data=mnist")[0]
    (tmp_path / cell.name).mkdir()
    (tmp_path / cell.name / "config.yaml").write_text("nothing")
    grid = Grid([cell], BUDGETS["smoke"], tmp_path, engine=LocalEngine())
    grid.run()
    assert grid.count("failed") == 1
    assert "config.yaml" in grid.states[cell].error


def test_more_workers_than_cores_are_refused_where_all_must_work_at_once(ray_of_two: Any) -> None:
    with pytest.raises(OptionError, match="64 workers that work together need 64 cores, but the cluster has"):
        RayEngine(workers=64).together(lambda place: None)
