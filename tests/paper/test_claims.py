"""Verdicts follow from the numbers by the rules that the document states."""

from __future__ import annotations

from typing import Any

import pytest

from dubito.paper.claims import CLAIMS, NOT_JUDGED, goals, judge


def row(model: str, data: str, inference: str = "vi", head: str = "softplus", **measured: Any) -> dict[str, Any]:
    names = {"cell": f"{model}-{data}-{inference}", "model": model, "data": data, "inference": inference, "head": head}
    return {**names, "measured": measured or None, "published": {"accuracy": 70, "aleatoric": None, "epistemic": None}}


def accuracy(value: float, first: float = 50.0, nll: float = 1.0, ece: float = 0.1) -> dict[str, float]:
    validation = {"first_validation_accuracy": first, "best_validation_accuracy": value, "validation_images": 5000}
    return {"accuracy": value, "nll": nll, "ece": ece, "intervals_cover": "images and draws", **validation}


def set_beside(ours: dict[str, Any], twin: dict[str, Any], *widths: float) -> dict[str, Any]:
    """The row with intervals of its differences from the twin, so wide to both sides."""
    for name, width in zip(("accuracy", "nll", "ece"), widths, strict=True):
        value = ours["measured"][name] - twin["measured"][name]
        ends = {"": value, "_low": value - width, "_high": value + width}
        ours["measured"] |= {f"{name}_beside_twin{end}": number for end, number in ends.items()}
    return ours


def verdict(start: str, contents: dict[str, Any]) -> str:
    (found,) = [judged for judged in judge(contents) if judged.claim.text.startswith(start)]
    return found.verdict


def test_nothing_holds_or_fails_where_nothing_was_run() -> None:
    assert {judged.verdict for judged in judge({})} == {"not run"}
    unfinished = {"table1": {"rows": [row("lenet5", "mnist"), row("lenet5", "mnist", "frequentist")]}}
    assert {judged.verdict for judged in judge(unfinished)} == {"not run"}
    assert len(CLAIMS) == len({claim.name for claim in CLAIMS}) == 16
    assert {judged.sentence for judged in judge({})} == {""}


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


def test_of_networks_that_are_equally_accurate_nothing_is_said() -> None:
    values = {"aleatoric_mean_over_epochs": 0.05, "epistemic_mean_over_epochs": 0.1}
    rows = [row(model, "mnist", accuracy=value, **values) for model, value in (("lenet5", 99.0), ("alexnet", 99.9))]
    assert verdict("Epistemic uncertainty falls", {"table2": {"rows": rows}}) == "not run"


def uncertainties(head: str, aleatoric: float, epistemic: float | None, nearly_zero: float) -> dict[str, Any]:
    values = {"aleatoric_mean_over_epochs": 0.05, "epistemic_mean_over_epochs": 0.1, "accuracy": 70.0}
    found = {"aleatoric_auroc": aleatoric, "epistemic_auroc": epistemic, "nearly_zero": nearly_zero}
    return row("lenet5", "cifar10", head=head, **values, **found)


def test_heads_are_compared_by_how_their_uncertainties_find_wrong_predictions() -> None:
    def contents(head: str, aleatoric: float, epistemic: float | None) -> dict[str, Any]:
        ours = uncertainties(head, aleatoric, epistemic, 0.5)
        return {"table2": {"rows": [ours, uncertainties("softmax", 0.8, 0.8, 0.5)]}}

    logits, softplus = "Kendall & Gal's uncertainties", "Uncertainties by softplus"
    assert verdict(logits, contents("kendall_gal", 0.7, 0.4)) == "holds"
    assert verdict(logits, contents("kendall_gal", 0.9, 0.4)) == "holds in 1 of 2"
    assert verdict(logits, contents("kendall_gal", 0.9, None)) == "does not hold"  # None: nothing wrong, or all
    assert verdict(logits, contents("softplus", 0.9, 0.4)) == "not run"
    assert verdict(softplus, contents("softplus", 0.9, 0.4)) == "holds in 1 of 2"
    assert verdict(softplus, contents("softplus", 0.8, 0.8)) == "does not hold"


@pytest.mark.parametrize(
    ("softplus", "softmax", "more", "none"),
    [(0.5, 0.4, "holds", "does not hold"), (0.4, 0.4, "does not hold", "does not hold"), (0.1, 0.0, "holds", "holds")],
)
def test_shares_of_probabilities_that_are_nearly_zero(softplus: float, softmax: float, more: str, none: str) -> None:
    rows = [uncertainties("softplus", 0.8, 0.8, softplus), uncertainties("softmax", 0.8, 0.8, softmax)]
    assert verdict("Softplus normalisation gives probabilities of almost zero", {"table2": {"rows": rows}}) == more
    assert verdict("Softmax cannot give", {"table2": {"rows": rows}}) == none


def test_a_slow_start_is_more_than_the_noise_of_the_validation_images() -> None:
    """Of 5,000 images at about 50 %, a difference has a standard error of 1 point."""

    def contents(model: str, first: float) -> dict[str, Any]:
        rows = [row(model, "cifar10", **accuracy(70, first)), row(model, "cifar10", "frequentist", **accuracy(70, 50))]
        return {"table1": {"rows": rows}}

    start = "In the first epochs"
    assert verdict(start, contents("lenet5", 47.9)) == "holds"
    assert verdict(start, contents("lenet5", 48.1)) == "does not hold"
    assert verdict(start, contents("lenet5", 60.0)) == "does not hold"
    assert verdict(start, contents("vgg16", 10.0)) == "holds"
    warm = contents("vgg16", 10.0)
    warm["table1"]["cells"] = {"vgg16-cifar10-vi": {"settings": {"warm_start": "vgg16-cifar10-frequentist"}}}
    assert verdict(start, warm) == "not run"  # it starts where its twin ends


def test_accuracy_is_compared_at_the_most_accurate_epochs_too() -> None:
    ours, twin = (row("lenet5", "mnist", inference, **accuracy(70.0)) for inference in ("vi", "frequentist"))
    contents = {"table1": {"rows": [ours, twin]}}
    assert verdict("Bayesian networks are as accurate", contents) == "holds"
    twin["measured"]["best_validation_accuracy"] = 71.1
    assert verdict("Bayesian networks are as accurate", contents) == "does not hold"


def test_one_image_and_the_mean_of_many_must_not_depend_on_noise() -> None:
    def level(image: float, many: float) -> dict[str, Any]:
        batch = {"batch_image": image, "batch_test": many}
        return row("lenet5", "mnist", classes_image=image, classes_test=10 * image, **batch)

    contents = {"noise": {"rows": [level(0.001, 0.001), level(0.002, 0.00104)]}}
    assert verdict("Aleatoric uncertainty does not depend on noise added", contents) == "does not hold"
    assert (
        verdict("Aleatoric uncertainty does not depend on noise (normalised over the batch", contents)
        == "holds in 1 of 2"
    )


def test_the_sentence_of_a_claim_has_the_smallest_and_the_largest_number() -> None:
    def sentence(start: str, contents: dict[str, Any]) -> str:
        (found,) = [judged for judged in judge(contents) if judged.claim.text.startswith(start)]
        return found.sentence

    rows = []
    for data, value in (("mnist", 70.5), ("cifar10", 69.25), ("cifar100", 70.0)):
        rows += [row("lenet5", data, **accuracy(value)), row("lenet5", data, "frequentist", **accuracy(70))]
    told = sentence("Bayesian networks are as accurate", {"table1": {"rows": rows}})
    assert told == "Their test accuracy minus their twins' is -0.75 to +0.50 points."
    told = sentence("Bayesian networks are as accurate", {"table1": {"rows": rows[:2]}})
    assert told == "Their test accuracy minus their twins' is +0.50 points."
    trace = [{"layer": layer, "std": std} for layer in ("a", "b", "c") for std in (0.2, 0.1 if layer == "b" else 0.3)]
    told = sentence("The standard deviation of a weight", {"posterior": {"trace": trace}})
    assert told == "It falls for 1 of the 3 weights that were followed, one in each layer."


def test_a_factor_of_what_was_zero_is_not_told() -> None:
    levels = [
        row("vgg16", "mnist", classes_image=0.0, classes_test=value, batch_image=1, batch_test=1) for value in (0, 1)
    ]
    (found,) = [judged for judged in judge({"noise": {"rows": levels}}) if judged.claim.name == "noise-over-classes"]
    assert (found.verdict, found.sentence) == ("does not hold", "")


def test_a_network_that_has_not_converged_is_told() -> None:
    def curve(inference: str, *nlls: float) -> list[dict[str, Any]]:
        values = {"train_accuracy": 0.5, "val_accuracy": 0.4}
        return [row("alexnet", "cifar100", inference, val_nll=nll, **values) for nll in nlls]

    for nlls, told in (((2.5, 2.4), True), ((2.4, 2.5), False)):
        contents = {"regularisation": {"rows": [*curve("vi", 2.5, 2.3), *curve("dropout", *nlls)]}}
        (judged,) = [j for j in judge(contents) if j.claim.text.startswith("The Bayesian AlexNet performs")]
        assert judged.verdict == "holds"
        assert ("still falling" in judged.tests[0].numbers) == told


def test_goals_compare_with_the_paper_and_with_the_twin() -> None:
    twin = row("lenet5", "mnist", "frequentist", **accuracy(71.0, nll=1.0, ece=0.1))
    good = set_beside(row("lenet5", "mnist", **accuracy(70.5, nll=0.9, ece=0.05)), twin, 0.4, 0.05, 0.01)
    (found,) = goals({"table1": {"rows": [good, twin]}})
    assert found.beside_twin == (True, True, True)
    assert found.differences == pytest.approx((-0.5, -0.1, -0.05))
    bad = set_beside(row("lenet5", "mnist", **accuracy(69.0, nll=1.1, ece=0.2)), twin, 0.4, 0.05, 0.01)
    (found,) = goals({"table1": {"rows": [bad, twin]}})
    assert (found.reaches_paper, *found.beside_twin) == (False, False, False, False)
    (alone,) = goals({"table1": {"rows": [good, row("lenet5", "mnist", "frequentist")]}})
    assert alone.beside_twin == alone.intervals == (None, None, None)
    assert alone.differences is None


def test_an_interval_that_holds_the_bound_tells_nothing() -> None:
    twin = row("lenet5", "mnist", "frequentist", **accuracy(71.0, nll=1.0, ece=0.1))
    ours = set_beside(row("lenet5", "mnist", **accuracy(70.5, nll=0.9, ece=0.2)), twin, 0.6, 0.2, 0.2)
    (found,) = goals({"table1": {"rows": [ours, twin]}})
    assert found.beside_twin == (None, None, None)


def test_a_row_with_intervals_over_images_alone_is_never_judged_beside_its_twin() -> None:
    twin = row("lenet5", "mnist", "frequentist", **accuracy(71.0, nll=1.0, ece=0.1))
    dropout = row("lenet5", "mnist", "dropout", **accuracy(71.0))
    claim, comparable = "Bayesian networks are as accurate", "On MNIST variational inference and dropout"
    for value, nll in ((80.0, 0.1), (60.0, 5.0)):
        ours = set_beside(row("lenet5", "mnist", **accuracy(value, nll=nll, ece=nll / 2)), twin, 0.01, 0.01, 0.01)
        contents = {"table1": {"rows": [ours, twin, dropout]}}
        assert None not in goals(contents)[0].beside_twin
        assert verdict(claim, contents) in ("holds", "does not hold")
        assert verdict(comparable, contents) == "does not hold"
        for old in (ours, dropout):
            kept = old["measured"].pop("intervals_cover")
            assert verdict(comparable, contents) == "open"
            if old is ours:
                (found,) = goals(contents)
                assert found.beside_twin == (None, None, None)
                assert verdict(claim, contents) == "open"
                assert all(NOT_JUDGED in t.numbers for j in judge(contents) for t in j.tests if t.holds is None)
                for covers in ("images", None):
                    old["measured"]["intervals_cover"] = covers
                    assert goals(contents)[0].beside_twin == (None, None, None)
            old["measured"]["intervals_cover"] = kept


def test_a_claim_that_is_open_in_some_places_says_so() -> None:
    rows = []
    for data in ("mnist", "cifar10", "cifar100"):
        rows += [row("lenet5", data, **accuracy(70)), row("lenet5", data, "frequentist", **accuracy(70))]
    del rows[0]["measured"]["intervals_cover"]
    contents = {"table1": {"rows": rows}}
    assert verdict("Bayesian networks are as accurate", contents) == "holds, open in 1"
    rows[2]["measured"]["accuracy"] = 60.0
    assert verdict("Bayesian networks are as accurate", contents) == "holds in 1 of 2, open in 1"


def test_an_interval_belongs_to_the_twin_that_it_was_measured_with() -> None:
    twin = row("lenet5", "mnist", "frequentist", **accuracy(71.0, nll=1.0, ece=0.1))
    ours = row("lenet5", "mnist", **accuracy(70.0, nll=0.9, ece=0.05))
    for name, value in (("accuracy", -1.0), ("nll", -0.2)):  # this NLL is against another twin
        ends = {"": value, "_low": value - 0.5, "_high": value + 0.5}
        ours["measured"] |= {f"{name}_beside_twin{end}": number for end, number in ends.items()}
    (found,) = goals({"table1": {"rows": [ours, twin]}})
    assert found.intervals == ((-1.5, -0.5), None, None)
