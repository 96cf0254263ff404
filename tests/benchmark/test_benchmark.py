from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmark_workers import ClockWorker, Exits, Missing, Raises, here
from torch import nn

import dubito
from dubito.benchmark import OURS, Frequentist, Measure, PlainNetwork, Work, compare, measures_of, open_workers, ratios
from dubito.benchmark.memory import forget_peak, peak
from dubito.benchmark.systems import PREDICTION, TRAINING, LocalTraining, MomentPrediction, WeightPrediction
from dubito.benchmark.work import Task
from dubito.benchmark.workers import WorkerError

TINY = PlainNetwork(width=2, depth=1)
STEP = Work(TINY, Task.STEP, 2)


def test_a_ratio_compares_times_of_the_same_round() -> None:
    ours, twins = [3.0, 8.0, 5.0, 9.0, 1.0], [1.0, 2.0, 1.0, 9.0, 2.0]
    found = ratios(ours, twins)
    low, median, high = np.quantile(np.divide(ours, twins), [0.25, 0.5, 0.75])
    assert (found.low, found.median, found.high) == pytest.approx((low, median, high))
    assert found.seconds == 5.0
    assert ratios([2.0], [4.0]).low == ratios([2.0], [4.0]).high == 0.5


def clocks(log: list[str], **times: list[float]) -> dict[str, ClockWorker]:
    kinds = {"twin": Frequentist, "local": LocalTraining, "draws": WeightPrediction, "moments": MomentPrediction}
    return {kinds[name].name: ClockWorker(kinds[name], given, log) for name, given in times.items()}


def test_workers_take_turns_and_short_work_is_repeated() -> None:
    log: list[str] = []
    workers = clocks(log, twin=[1.0, 1.0, 2.0], local=[1.0, 3.0, 4.0])
    found = compare(workers, [Measure("step", STEP, STEP, rounds=2)])
    assert log == [Frequentist.name, LocalTraining.name] * 2
    assert found.ratios[LocalTraining.name]["step"].median == 2.5
    assert found.ratios[Frequentist.name]["step"].median == 1.0


def test_as_many_rounds_as_fit_but_three() -> None:
    for seconds, expected in ((100.0, 9), (10.1, 5), (0.1, 3)):
        log: list[str] = []
        workers = clocks(log, twin=[1.0] * 10, local=[1.0] * 10)
        compare(workers, [Measure("step", STEP, STEP, rounds=9, seconds=seconds)])
        assert len(log) == 2 * expected


def test_a_system_that_fails_is_left_out_with_its_reason_and_the_others_go_on() -> None:
    workers = clocks([], twin=[1.0] * 9, local=[1.0, 2.0, 2.0])
    measures = [Measure(name, STEP, STEP, rounds=rounds) for name, rounds in (("first", 1), ("second", 5))]
    workers[LocalTraining.name]._times = iter([1.0, 2.0, 1.0, 2.0])
    found = compare(workers, measures)
    assert found.failures == {LocalTraining.name: "out of time"}
    assert set(found.ratios[LocalTraining.name]) == {"first"}
    assert set(found.ratios[Frequentist.name]) == {"first", "second"}


def test_without_the_twin_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(WorkerError, match=r"frequentist twin failed.*out of time"):
        compare(clocks([], twin=[1.0], local=[1.0] * 9), [Measure("step", STEP, STEP, rounds=3)])


def test_the_twin_that_all_are_compared_with_has_layers_of_torch_alone() -> None:
    made = dubito.models.build("lenet5", 10, 3, "frequentist").state_dict()
    network = Work("lenet5", Task.STEP, 2).build()
    with_weights = [layer for layer in network.modules() if list(layer.parameters(recurse=False))]
    assert {type(layer) for layer in with_weights} == {nn.Conv2d, nn.Linear}
    assert {name: value.shape for name, value in network.state_dict().items()} == {
        name: value.shape for name, value in made.items()
    }


def test_systems_do_only_what_they_can_and_are_asked_for() -> None:
    workers = clocks([], **dict.fromkeys(("twin", "local", "draws", "moments"), [1.0] * 9))
    draws = Work(TINY, Task.PREDICT, 2, 3)
    named = Measure("once", draws, draws, 1, only=(MomentPrediction.name,))
    found = compare(workers, [Measure("step", STEP, STEP, 1), Measure("predict", draws, draws, 1), named])
    assert {name: set(by) for name, by in found.ratios.items()} == {
        Frequentist.name: {"step", "predict", "once"},
        LocalTraining.name: {"step"},
        WeightPrediction.name: {"predict"},
        MomentPrediction.name: {"once"},
    }


@pytest.mark.parametrize("kind", [Frequentist, *TRAINING])
def test_a_training_step_changes_every_parameter(kind) -> None:
    with here([kind], 1) as workers:
        worker = workers[kind.name]
        assert worker.prepare(STEP) > 0
        system = worker._bench._systems[TINY]
        before = [parameter.detach().clone() for parameter in system.network.parameters()]
        worker.seconds(STEP, 2)
        assert all(not torch.equal(a, b) for a, b in zip(before, system.network.parameters(), strict=True))


def test_all_systems_start_from_the_same_network_and_see_the_same_data() -> None:
    images, labels = STEP.data()
    assert torch.equal(images, STEP.data()[0])
    twin = Frequentist(STEP.build())
    reference = twin.head.probs(twin.network(images))
    for kind in OURS:
        system = kind(STEP.build())
        with dubito.estimator(system.network, "mean"):
            assert torch.equal(system.head.probs(system.network(images)), reference)
        assert system.loss(images, labels).isfinite()


@pytest.mark.parametrize("kind", PREDICTION)
def test_predictions_that_are_measured_are_predictions_of_dubito(kind) -> None:
    images, _ = STEP.data()
    predictor = kind(STEP.build()).predictor(3)
    assert isinstance(predictor(images), dubito.Prediction)
    torch.testing.assert_close(predictor(images).probs, predictor(images).probs)


def test_measures_of_a_network_relate_draws_to_as_many_passes() -> None:
    by_name = {measure.name: measure for measure in measures_of("lenet5", 128, 5)}
    assert by_name["predict"].work == by_name["predict"].reference == Work("lenet5", Task.PREDICT, 128, 10)
    assert by_name["single"].work == Work("lenet5", Task.PREDICT, 1, 100)
    assert by_name["single"].reference == Work("lenet5", Task.PREDICT, 100, 1)
    assert "single" not in {measure.name for measure in measures_of("lenet5", 128, 5, single=False)}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux forgets a peak")
def test_peak_memory_is_that_since_it_was_forgotten() -> None:
    use_and_give_back(300_000_000)
    forget_peak()
    before = peak()
    use_and_give_back(100_000_000)
    assert peak() - before == pytest.approx(100, abs=5)


def use_and_give_back(size: int) -> None:
    """Fill so many bytes straight from the system: an allocator could keep what is freed, and hand it out again."""
    with mmap.mmap(-1, size) as memory:
        for _ in range(size // 1_000_000):
            memory.write(bytes(1_000_000))


@pytest.mark.slow
def test_processes_that_fail_say_why_and_the_others_work() -> None:
    with open_workers([Frequentist, Exits, Raises, Missing], 1) as workers:
        found = compare(workers, [Measure("step", STEP, STEP, rounds=3)], memory=True)
    assert found.failures == {
        "exits": "its process ended with exit code 7",
        "raises": "ValueError: no loss today",
        "missing": "it cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
    }
    assert found.ratios[Frequentist.name]["step"].median == 1.0
    assert found.memory.keys() == {Frequentist.name}
    assert found.versions["missing"] is None
    assert found.versions[Frequentist.name] == torch.__version__
