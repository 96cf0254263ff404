"""Verdicts follow from the numbers by the rules that the document states."""

from __future__ import annotations

from typing import Any

import pytest

from dubito.paper.claims import CLAIMS, goals, judge


def row(model: str, data: str, inference: str = "vi", head: str = "softplus", **measured: Any) -> dict[str, Any]:
    names = {"cell": f"{model}-{data}-{inference}", "model": model, "data": data, "inference": inference, "head": head}
    return {**names, "measured": measured or None, "published": {"accuracy": 70, "aleatoric": None, "epistemic": None}}


def accuracy(value: float, first: float = 50.0, nll: float = 1.0, ece: float = 0.1) -> dict[str, float]:
    return {"accuracy": value, "first_validation_accuracy": first, "nll": nll, "ece": ece}


KINDS = ("aleatoric_auroc", "epistemic_auroc")


def verdict(start: str, contents: dict[str, Any]) -> str:
    (found,) = [judged for judged in judge(contents) if judged.claim.text.startswith(start)]
    return found.verdict


def test_nothing_holds_or_fails_where_nothing_was_run() -> None:
    assert {judged.verdict for judged in judge({})} == {"not run"}
    unfinished = {"table1": {"rows": [row("lenet5", "mnist"), row("lenet5", "mnist", "frequentist")]}}
    assert {judged.verdict for judged in judge(unfinished)} == {"not run"}
    assert len(CLAIMS) == 14


@pytest.mark.parametrize(
    ("ours", "expected"),
    [((70.0, 40.0), "holds"), ((69.0, 38.0), "holds in 1 of 2"), ((68.9, 38.9), "does not hold")],
)
def test_twins_are_as_accurate_within_a_point(ours: tuple[float, float], expected: str) -> None:
    rows = []
    for data, value, twin in zip(("cifar10", "cifar100"), ours, (70.0, 40.0), strict=True):
        rows += [row("lenet5", data, **accuracy(value)), row("lenet5", data, "frequentist", **accuracy(twin))]
    assert verdict("Bayesian networks are as accurate", {"table1": {"rows": rows}}) == expected


def test_overfitting_is_a_rise_of_the_validation_nll() -> None:
    def curve(inference: str, *nlls: float) -> list[dict[str, Any]]:
        values = {"train_accuracy": 0.5, "val_accuracy": 0.4}
        return [row("alexnet", "cifar100", inference, val_nll=nll, **values) for nll in nlls]

    contents = {"regularisation": {"rows": [*curve("frequentist", 2.5, 2.2, 2.4), *curve("vi", 2.5, 2.3, 2.31)]}}
    assert verdict("A frequentist AlexNet overfits", contents) == "holds"
    assert verdict("A Bayesian AlexNet does not overfit", contents) == "holds"
    assert verdict("The Bayesian AlexNet performs", contents) == "not run"
    contents = {"regularisation": {"rows": [*curve("frequentist", 2.5, 2.2), *curve("vi", 2.5, 2.3, 2.4)]}}
    assert verdict("A frequentist AlexNet overfits", contents) == "does not hold"
    assert verdict("A Bayesian AlexNet does not overfit", contents) == "does not hold"


def test_epistemic_uncertainty_must_fall_from_each_network_to_the_next_better_one() -> None:
    def contents(*values: float) -> dict[str, Any]:
        models = zip(("lenet5", "alexnet", "vgg16"), (60.0, 70.0, 80.0), values, strict=True)
        rows = [
            row(m, "cifar10", accuracy=a, epistemic_mean_over_epochs=e, aleatoric_mean_over_epochs=0.05)
            for m, a, e in models
        ]
        return {"table2": {"rows": rows}}

    assert verdict("Epistemic uncertainty falls", contents(0.3, 0.2, 0.1)) == "holds"
    assert verdict("Epistemic uncertainty falls", contents(0.3, 0.1, 0.2)) == "does not hold"
    assert verdict("Aleatoric uncertainty depends", contents(0.3, 0.1, 0.2)) == "holds"


def test_uncertainties_of_logits_are_compared_by_how_they_find_wrong_predictions() -> None:
    def contents(aleatoric: float, epistemic: float | None) -> dict[str, Any]:
        theirs = row("lenet5", "mnist", head="kendall_gal", aleatoric_auroc=aleatoric, epistemic_auroc=epistemic)
        return {"table2": {"rows": [theirs, row("lenet5", "mnist", head="softmax", **dict.fromkeys(KINDS, 0.8))]}}

    start = "Kendall & Gal's uncertainties"
    assert verdict(start, contents(0.7, 0.4)) == "holds"
    assert verdict(start, contents(0.9, 0.4)) == "holds in 1 of 2"
    assert verdict(start, contents(0.9, None)) == "does not hold"  # None: nothing was wrong, or nothing right
    assert verdict(start, {"table2": {"rows": contents(0.7, 0.4)["table2"]["rows"][:1]}}) == "not run"


def test_goals_compare_with_the_paper_and_with_the_twin() -> None:
    twin = row("lenet5", "mnist", "frequentist", **accuracy(71.0, nll=1.0, ece=0.1))
    good = row("lenet5", "mnist", **accuracy(70.0, nll=0.9, ece=0.05))
    (found,) = goals({"table1": {"rows": [good, twin]}})
    assert found.met
    assert found.differences == pytest.approx((-1.0, -0.1, -0.05))
    bad = row("lenet5", "mnist", **accuracy(69.9, nll=1.1, ece=0.2))
    (found,) = goals({"table1": {"rows": [bad, twin]}})
    assert (found.reaches_paper, found.near_twin, found.better_nll, found.better_ece) == (False, False, False, False)
    (alone,) = goals({"table1": {"rows": [good, row("lenet5", "mnist", "frequentist")]}})
    assert (alone.near_twin, alone.better_nll, alone.met) == (None, None, True)
    assert alone.intervals == (None, None, None)


def test_an_interval_belongs_to_the_twin_that_it_was_measured_with() -> None:
    twin = row("lenet5", "mnist", "frequentist", **accuracy(71.0, nll=1.0, ece=0.1))
    ours = row("lenet5", "mnist", **accuracy(70.0, nll=0.9, ece=0.05))
    for name, value in (("accuracy", -1.0), ("nll", -0.2)):  # this NLL is against another twin
        ends = {"": value, "_low": value - 0.5, "_high": value + 0.5}
        ours["measured"] |= {f"{name}_beside_twin{end}": number for end, number in ends.items()}
    (found,) = goals({"table1": {"rows": [ours, twin]}})
    assert found.intervals == ((-1.5, -0.5), None, None)
