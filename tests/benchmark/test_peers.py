"""The comparison with other libraries, without them: its own layers, its plan, its tables."""

from __future__ import annotations

import pytest
import torch
from benchmarks.pages import END
from benchmarks.peers.document import TABLE_BEGINS, cell, column, network, page, tables, with_cost_table
from benchmarks.peers.figure import growth_figure
from benchmarks.peers.install import reason, requirements
from benchmarks.peers.plan import AXES, full_plan, quick_plan
from benchmarks.peers.profile import Group
from benchmarks.peers.systems import SYSTEMS, PlainLayers
from torch.distributions import Normal, kl_divergence

import dubito
from dubito.benchmark import Frequentist, PlainNetwork, Work
from dubito.benchmark.systems import LocalTraining, MomentPrediction, WeightPrediction, WeightTraining
from dubito.benchmark.work import Task
from dubito.errors import DubitoError


def test_the_plain_layers_have_the_kl_and_the_moments_of_dubitos() -> None:
    work = Work(PlainNetwork(width=2, depth=2), Task.STEP, 4)
    images, labels = work.data()
    plain, ours = PlainLayers(work.build()), LocalTraining(work.build())
    plain.loss(images, labels)
    layer = plain.network[0]
    stds = [torch.nn.functional.softplus(rho) for rho in (layer.weight_rho, layer.bias_rho)]
    means = (layer.weight_mean, layer.bias_mean)
    exact = sum(kl_divergence(Normal(m, s), Normal(0, 1)).sum() for m, s in zip(means, stds, strict=True))
    torch.testing.assert_close(layer.kl(), exact)
    torch.testing.assert_close(plain.kl(), dubito.kl_divergence(ours.network), rtol=1e-5, atol=0)
    torch.manual_seed(0)
    count = 500
    with torch.no_grad():
        draws = [torch.stack([part[0](images) for _ in range(count)]) for part in (plain.network, ours.network)]
    error = draws[0].std(0) * (2 / count) ** 0.5
    assert ((draws[0].mean(0) - draws[1].mean(0)).abs() < 6 * error).all()
    # the standard error of a standard deviation is 1 / sqrt(2 n) of it, that of a quotient of two 1 / sqrt(n)
    assert ((draws[0].std(0) / draws[1].std(0)).log().abs() < 6 * count**-0.5).all()


def test_the_plain_layers_make_a_resnet_without_biases_bayesian() -> None:
    work = Work("resnet20", Task.STEP, 2)
    plain, ours = PlainLayers(work.build()), LocalTraining(work.build())
    plain.loss(*work.data()).backward()
    torch.testing.assert_close(plain.kl(), dubito.kl_divergence(ours.network), rtol=1e-5, atol=0)


def test_the_full_plan_measures_everything_in_twenty_minutes_by_its_own_account() -> None:
    stages = {stage.name: stage for stage in full_plan()}
    assert sum(stage.seconds for stage in stages.values()) < 20 * 60
    assert {name for name, stage in stages.items() if stage.systems == SYSTEMS} == {"lenet5", "alexnet", "vgg16"}
    for name in ("resnet20", "resnet18"):  # a training step and its memory, beside the peers
        assert [measure.name for measure in stages[name].measures] == ["step"]
        assert stages[name].memory
        assert stages[name].systems == tuple(kind for kind in SYSTEMS if kind.trains)
    grown = {measure.name for measure in stages["growth"].measures}
    assert grown == {f"{axis}={value}" for axis, values in AXES.items() for value in values}
    assert AXES["draws"][-1] == 100
    assert AXES["batch"][-1] == 256
    assert sum(stage.seconds for stage in quick_plan()) < 2 * 60
    profiled = [column(kind.name, work) for kind, work in stages["alexnet"].profiles]
    assert profiled == [
        *(f"{name}, step" for name in (Frequentist.name, LocalTraining.name, WeightTraining.name)),
        *(f"{name}, 10 draws" for name in (Frequentist.name, WeightPrediction.name)),
        f"{WeightPrediction.name}, 1 image by 100 draws",
        f"{MomentPrediction.name}, one pass",
    ]


def ratio(median: float) -> dict[str, float]:
    return {"median": median, "low": median - 0.1, "high": median + 0.1, "seconds": median / 100}


@pytest.fixture
def results() -> dict:
    """A small set of results, one system failed."""
    growth = {f"{axis}={value}": ratio(value / 10 + 1) for axis, values in AXES.items() for value in values[:2]}
    steps = {name: found for name, found in growth.items() if not name.startswith("draws")}
    draws = {name: found for name, found in growth.items() if name.startswith("draws")}
    return {
        "environment": {
            **{"commit": "a" * 40 + "+changes", "dubito": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
            **{"processor": "P", "cores": 2, "threads": 2, "load_before": 0.1, "minutes": 1.0},
        },
        "growth_batch": 64,
        "stages": {
            "lenet5": {
                "batch": 128,
                "samples": 10,
                "versions": {
                    Frequentist.name: "2.13.0",
                    **dict.fromkeys((LocalTraining.name, WeightPrediction.name, MomentPrediction.name), "0.1.0"),
                    "a peer": None,
                },
                "ratios": {
                    Frequentist.name: {"step": ratio(1), "predict": ratio(1)},
                    LocalTraining.name: {"step": ratio(2)},
                    WeightPrediction.name: {"predict": ratio(1.1)},
                    MomentPrediction.name: {"once": ratio(3.5)},
                    "a peer": {},
                },
                "memory": {Frequentist.name: 50.0, LocalTraining.name: 110.0, WeightPrediction.name: 30.0},
                "failures": {"a peer": "it | is gone"},
            },
            "growth": {
                "ratios": {Frequentist.name: growth, LocalTraining.name: steps, WeightTraining.name: steps}
                | {WeightPrediction.name: draws, MomentPrediction.name: draws},
                "failures": {},
            },
        },
    }


def test_the_table_shows_medians_with_quartiles_and_why_a_system_failed(results) -> None:
    lines = network("lenet5", results["stages"]["lenet5"]).splitlines()
    assert "| system | version | training step, batch 128 | 128 images, 10 draws | peak memory |" in lines
    assert "| frequentist twin | 2.13.0 | 1 (10 ms) | 1 (10 ms) | 1.00 (50 MB) |" in lines
    assert "| dubito local | 0.1.0 | 2.00 [1.90, 2.10] | – | 2.20 (110 MB) |" in lines  # noqa: RUF001
    assert "| dubito.Predictor | 0.1.0 | – | 1.10 [1.00, 1.20] | 30 MB |" in lines  # noqa: RUF001
    assert "| a peer | – | failed: it / is gone | – | – |" in lines  # noqa: RUF001
    assert any("costs 3.50 [3.40, 3.60] passes" in line for line in lines)


def test_the_readme_gets_a_row_for_each_system_that_worked(results) -> None:
    readme = f"Before.\n{TABLE_BEGINS}\nold\n{END}\nAfter.\n"
    written = with_cost_table(readme, results)
    assert written.splitlines() == [
        *("Before.", TABLE_BEGINS),
        "| system | step | 10 draws | 1 image, 100 draws | memory |",
        "| --- | --- | --- | --- | --- |",
        "| `dubito local` | 2.00 | – | – | 2.20 |",  # noqa: RUF001
        "| `dubito.Predictor` | – | 1.10 | – | – |",  # noqa: RUF001
        *(END, "After."),
    ]
    assert with_cost_table(written, results) == written
    with pytest.raises(DubitoError, match=r"no place for a table between .*cost table"):
        with_cost_table("nothing", results)


def test_the_page_holds_every_table_and_the_figure(results) -> None:
    text = page(results)
    assert tables(results) in text
    assert all(f"| {axis} | twin |" in text for axis in AXES)
    assert "aaaaaaaaaaaa with changes" in text
    assert "mean nothing" not in text
    assert "mean nothing" in tables({**results, "quick": True})
    assert growth_figure(results["stages"]["growth"]).startswith(b"\x89PNG")
    assert cell(None) == "–"  # noqa: RUF001


def test_the_page_says_where_the_time_goes_if_that_was_measured(results) -> None:
    assert "Where the time goes" not in page(results)
    times = {group.value: 1.25 * number for number, group in enumerate(Group)}
    results["stages"]["lenet5"]["profile"] = {
        "frequentist twin, step": {"groups": times, "wall": 12.34},
        "dubito local, 10 draws": {"groups": {**times, "noise": 400.0}, "wall": 300.0},
        "a peer, step": {"failure": "it is gone"},
    }
    text = page(results)
    assert tables(results) in text
    assert text.index("## LeNet-5") < text.index("## Where the time goes") < text.index("## How cost grows")
    lines = text.splitlines()
    start = lines.index("| LeNet-5, batch 128 | frequentist twin, step | dubito local, 10 draws | a peer, step |")
    assert lines[start + 2 : start + 10] == [
        "| convolutions and matrix products | 0.0 | 0.0 | – |",  # noqa: RUF001
        "| noise | 1.2 | 400.0 | – |",  # noqa: RUF001
        "| weights | 2.5 | 2.5 | – |",  # noqa: RUF001
        "| optimiser | 3.8 | 3.8 | – |",  # noqa: RUF001
        "| activations | 5.0 | 5.0 | – |",  # noqa: RUF001
        "| the rest | 6.2 | 6.2 | – |",  # noqa: RUF001
        "| together, with the profiler | 18.8 | 417.5 | – |",  # noqa: RUF001
        "| without the profiler | 12.3 | 300.0 | – |",  # noqa: RUF001
    ]
    assert "a peer, step failed: it is gone" in lines


def test_the_page_says_how_much_memory_parameters_and_the_optimiser_take(results) -> None:
    """Sixteen bytes a parameter: itself, its gradient and two moments in float32."""
    assert "Adam's two moments" not in page(results)
    results["stages"]["lenet5"]["parameters"] = 5_000_000
    shown = page(results)
    assert "Adam's two moments take 80 MB of the twin's memory." in shown
    assert "standard deviation for each weight needs 160 MB for them." in shown


def test_installing_reads_names_and_keeps_the_reason_of_a_failure() -> None:
    assert requirements("# a comment\n\nblitz==1 # another\ntorchbnn==2\n") == ["blitz==1", "torchbnn==2"]
    assert reason("WARNING: w\nERROR: No matching distribution\nERROR: later") == "No matching distribution"
    assert reason("") == "pip said nothing"
