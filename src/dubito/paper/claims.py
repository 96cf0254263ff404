"""Which statements of the paper hold in our results, each by a rule that is stated and computed.

A claim is tested in as many places as have been run: networks, data sets, pairs of twins. Where it compares test
accuracies of networks that draw, and a stored row has intervals over images alone, the claim is open there: such rows
are of earlier code, and another seed of the draws can move their numbers by more than the intervals say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from dubito.paper.cells import TITLES
from dubito.paper.tables import COVERS_BOTH
from dubito.runs.config import with_defaults

Contents = dict[str, dict[str, Any]]
POINTS = 1.0
"""Percentage points of accuracy within which two networks are called equal."""
NOT_JUDGED = "not judged: interval over images alone"
"""What is said of a row of earlier code instead of a verdict."""


def covers_draws(measured: dict[str, Any]) -> bool:
    """Whether the intervals of a network that draws cover images and draws, so that it can be judged."""
    return bool(measured.get("intervals_cover") == COVERS_BOTH)


class Test(NamedTuple):
    """One place where a claim was tested: whether it holds there, None if that is open, and the numbers."""

    holds: bool | None
    numbers: str


def _judgement(holds: bool, numbers: str, *drawing: dict[str, Any]) -> Test:
    """A test by test accuracies of these networks that draw, open if a row has intervals over images alone."""
    if all(covers_draws(measured) for measured in drawing):
        return Test(holds, numbers)
    return Test(None, f"{numbers} ({NOT_JUDGED})")


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, where it stands, the rule by which it is judged, and what to bear in mind."""

    text: str
    place: str
    rule: str
    tests: Callable[[Contents], Iterator[Test]]
    remark: str = ""


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict: ``holds``, ``does not hold``, ``holds in K of N``, ``open`` or ``not run``."""

    claim: Claim
    tests: Sequence[Test]

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        judged = [test.holds for test in self.tests if test.holds is not None]
        good, count, left = sum(judged), len(judged), len(self.tests) - len(judged)
        if not count:
            return "open" if left else "not run"
        found = "holds" if good == count else "does not hold" if not good else f"holds in {good} of {count}"
        return f"{found}, open in {left}" if left else found


def judge(contents: Contents) -> list[Judged]:
    """Every claim with its verdict, from the contents of the result files."""
    return [Judged(claim, tuple(claim.tests(contents))) for claim in CLAIMS]


# ---- rows ----------------------------------------------------------------------------------------------------------


def _measured(contents: Contents, experiment: str, **wanted: str) -> list[dict[str, Any]]:
    """The rows that have been run and have these names."""
    rows = contents.get(experiment, {}).get("rows", [])
    return [r for r in rows if r["measured"] is not None and all(r[key] == value for key, value in wanted.items())]


def _pairs(contents: Contents, inference: str = "frequentist") -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each Bayesian network of table 1 that has been run, with its twin."""
    for row in _measured(contents, "table1", inference="vi"):
        twins = _measured(contents, "table1", inference=inference, model=row["model"], data=row["data"])
        for twin in twins:
            yield f"{TITLES[row['model']]}, {TITLES[row['data']]}", row["measured"], twin["measured"]


def _trained_alike(contents: Contents) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The pairs whose Bayesian network does not start from its twin's weights and whose rows have all numbers."""
    cells = contents.get("table1", {}).get("cells", {})
    warm = {
        f"{TITLES[row['model']]}, {TITLES[row['data']]}"
        for row in _measured(contents, "table1", inference="vi")
        if with_defaults((cells.get(row["cell"]) or {}).get("settings", {}))["init"] != "none"
    }
    asked = {"best_validation_accuracy", "validation_images"}
    return (pair for pair in _pairs(contents) if pair[0] not in warm and asked <= pair[1].keys() & pair[2].keys())


def _comparable(contents: Contents) -> Iterator[Test]:
    for name, ours, twin in _trained_alike(contents):
        test, validation = (ours[key] - twin[key] for key in ("accuracy", "best_validation_accuracy"))
        yield _judgement(min(test, validation) >= -POINTS, f"{name}: {test:+.2f} and {validation:+.2f} points", ours)


def _slow_start(contents: Contents) -> Iterator[Test]:
    for name, ours, twin in _trained_alike(contents):
        a, b = (part["first_validation_accuracy"] for part in (ours, twin))
        error = math.sqrt(sum(p * (100 - p) for p in (a, b)) / ours["validation_images"])
        yield Test(b - a > 2 * error, f"{name}: {a:.2f} % against {b:.2f} % (standard error {error:.2f})")


def _dropout_on_mnist(contents: Contents) -> Iterator[Test]:
    for name, ours, dropout in _pairs(contents, "dropout"):
        if name.endswith(TITLES["mnist"]):
            difference = dropout["accuracy"] - ours["accuracy"]
            yield _judgement(abs(difference) <= POINTS, f"{name}: dropout {difference:+.2f} points", ours, dropout)


def _dropout_on_cifar10(contents: Contents) -> Iterator[Test]:
    for name, ours, dropout in _pairs(contents, "dropout"):
        if name.endswith(TITLES["cifar10"]):
            difference = dropout["accuracy"] - ours["accuracy"]
            yield _judgement(difference > POINTS, f"{name}: dropout {difference:+.2f} points", ours, dropout)


def _curve(contents: Contents, inference: str) -> list[dict[str, Any]]:
    return [row["measured"] for row in _measured(contents, "regularisation", inference=inference)]


OVERFITS = 0.05
"""Nats by which the validation NLL of the last epoch exceeds the lowest."""


def _rise(curve: list[dict[str, Any]]) -> float:
    return float(curve[-1]["val_nll"] - min(row["val_nll"] for row in curve))


def _frequentist_overfits(contents: Contents) -> Iterator[Test]:
    if curve := _curve(contents, "frequentist"):
        yield Test(
            _rise(curve) > OVERFITS, f"validation NLL ends {_rise(curve):.3f} nats above its lowest; {_gap(curve)}"
        )


def _bayesian_does_not(contents: Contents) -> Iterator[Test]:
    if curve := _curve(contents, "vi"):
        yield Test(
            _rise(curve) <= OVERFITS, f"validation NLL ends {_rise(curve):.3f} nats above its lowest; {_gap(curve)}"
        )


def _gap(curve: list[dict[str, Any]]) -> str:
    gap = 100 * (curve[-1]["train_accuracy"] - curve[-1]["val_accuracy"])
    fall = 100 * (max(row["val_accuracy"] for row in curve) - curve[-1]["val_accuracy"])
    return (
        f"training accuracy minus validation accuracy is {gap:.1f} points; validation accuracy ends {fall:.1f} points "
        "below its highest"
    )


def _as_good_as_dropout(contents: Contents) -> Iterator[Test]:
    ours, dropout = _curve(contents, "vi"), _curve(contents, "dropout")
    if ours and dropout:
        difference = 100 * (ours[-1]["val_accuracy"] - dropout[-1]["val_accuracy"])
        numbers = f"{difference:+.2f} points of validation accuracy at the end"
        if _rise(dropout) == 0:
            numbers += "; with dropout the validation NLL was still falling, so that more epochs would help it"
        yield Test(abs(difference) <= POINTS, numbers)


def _uncertainties(contents: Contents, data: str) -> list[dict[str, Any]]:
    return [row["measured"] for row in _measured(contents, "table2", data=data, head="softplus")]


def _epistemic_falls(contents: Contents) -> Iterator[Test]:
    for data in ("mnist", "cifar10"):
        rows = sorted(_uncertainties(contents, data), key=lambda row: row["accuracy"])
        if rows and rows[-1]["accuracy"] - rows[0]["accuracy"] > POINTS:
            values = [row["epistemic_mean_over_epochs"] for row in rows]
            told = ", ".join(f"{row['accuracy']:.1f} %: {value:.5f}" for row, value in zip(rows, values, strict=True))
            yield Test(all(a > b for a, b in pairwise(values)), f"{TITLES[data]}: {told}")


def _aleatoric_is_of_the_data(contents: Contents) -> Iterator[Test]:
    for data in ("mnist", "cifar10"):
        values = [row["aleatoric_mean_over_epochs"] for row in _uncertainties(contents, data)]
        if len(values) > 1:
            ratio = max(values) / min(values)
            yield Test(ratio < 1.1, f"{TITLES[data]}: the largest is {ratio:.2f} times the smallest")


def _noise(contents: Contents, axis: str) -> Iterator[Test]:
    for model in ("lenet5", "vgg16"):
        rows = _measured(contents, "noise", model=model)
        for which, name in (("image", "one image"), ("test", "mean of many")) if rows else ():
            values = [row["measured"][f"{axis}_{which}"] for row in rows]
            told = " ".join(f"{value:.6f}" for value in values)
            yield Test(max(values) < 1.05 * min(values), f"{TITLES[model]}, {name}: {told}")


def _std_falls(contents: Contents) -> Iterator[Test]:
    trace = contents.get("posterior", {}).get("trace", [])
    for layer in dict.fromkeys(row["layer"] for row in trace):
        stds = [row["std"] for row in trace if row["layer"] == layer]
        yield Test(stds[-1] < stds[0], f"{layer}: {stds[0]:.5f} to {stds[-1]:.5f}")


def _beside_softmax(contents: Contents, head: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each network of table 2 with another head, with the one that has the softmax head."""
    for row in _measured(contents, "table2", head=head):
        for other in _measured(contents, "table2", head="softmax", model=row["model"], data=row["data"]):
            yield f"{TITLES[row['model']]}, {TITLES[row['data']]}", row["measured"], other["measured"]


def _finds_mistakes(contents: Contents, head: str, *, better: bool) -> Iterator[Test]:
    for name, ours, softmax in _beside_softmax(contents, head):
        for kind in ("aleatoric", "epistemic"):
            a, b = (part[f"{kind}_auroc"] for part in (ours, softmax))
            if a is not None and b is not None:
                yield Test(a > b if better else a < b, f"{name}, {kind}: {a:.3f} against {b:.3f}")


def _zeros(contents: Contents) -> Iterator[Test]:
    for name, ours, softmax in _beside_softmax(contents, "softplus"):
        a, b = (100 * part["nearly_zero"] for part in (ours, softmax))
        yield Test(a > b, f"{name}: {a:.2f} % against {b:.2f} %")


def _no_zeros(contents: Contents) -> Iterator[Test]:
    for row in _measured(contents, "table2", head="softmax"):
        share = 100 * row["measured"]["nearly_zero"]
        yield Test(share == 0, f"{TITLES[row['model']]}, {TITLES[row['data']]}: {share:.2f} %")


CLAIMS = (
    Claim(
        "Bayesian networks are as accurate as the same networks with point estimates.",
        "abstract, section 4.1, table 1",
        f"at most {POINTS:g} point below the twin in test accuracy, both at their epochs of lowest validation NLL, and "
        "in validation accuracy, both at their most accurate epochs (a network that starts where its twin ends does "
        "not count)",
        _comparable,
        "Of a network that overfits, the epoch of lowest NLL is early and not the most accurate.",
    ),
    Claim(
        "In the first epochs Bayesian networks have a lower validation accuracy than frequentist ones.",
        "section 4.1",
        "validation accuracy after the first epoch below the twin's by more than two standard errors (a network "
        "that starts where its twin ends does not count); the standard error is over validation images, not over draws",
        _slow_start,
        "Under the budget `cpu` the Bayesian networks begin as near as nothing to point estimates: with a standard "
        "deviation of exp(-5), and with KL that is warmed up.",
    ),
    Claim(
        "On MNIST variational inference and dropout are comparable.",
        "section 4.1",
        f"test accuracies within {POINTS:g} point",
        _dropout_on_mnist,
    ),
    Claim(
        "On CIFAR-10 LeNet-5 with dropout is considerably more accurate than with variational inference.",
        "section 4.1, which could not reproduce it",
        f"more than {POINTS:g} point of test accuracy above",
        _dropout_on_cifar10,
    ),
    Claim(
        "A frequentist AlexNet overfits greatly on CIFAR-100.",
        "section 4.1, figure 2",
        f"validation NLL of the last epoch more than {OVERFITS:g} nats above the lowest",
        _frequentist_overfits,
        "The paper shows accuracies; NLL shows it earlier.",
    ),
    Claim(
        "A Bayesian AlexNet does not overfit on CIFAR-100.",
        "section 4.1, figure 2",
        f"validation NLL of the last epoch at most {OVERFITS:g} nats above the lowest",
        _bayesian_does_not,
        "With KL at the temperature of table 1, not at its full weight.",
    ),
    Claim(
        "The Bayesian AlexNet performs as the frequentist one with three dropout layers.",
        "section 4.1, figure 2",
        f"validation accuracies of the last epoch within {POINTS:g} point",
        _as_good_as_dropout,
        "Dropout with p = 0.5, validated by draws of its masks.",
    ),
    Claim(
        "The standard deviation of a weight falls over the epochs.",
        "commented out in the paper's source",
        "lower after the last epoch than after the first, for one weight of each layer",
        _std_falls,
        "It starts at exp(-5), where the paper's text has 1.",
    ),
    Claim(
        "Epistemic uncertainty falls as accuracy rises, from network to network.",
        "section 4.2, table 2",
        "mean over the epochs strictly falls with test accuracy, on each data set on which the networks' accuracies "
        f"differ by more than {POINTS:g} point",
        _epistemic_falls,
        "The networks differ in temperature and epochs too (table 1).",
    ),
    Claim(
        "Aleatoric uncertainty depends on the data set alone, not on the network.",
        "section 4.2, table 2",
        "largest mean over the epochs less than 1.1 times the smallest",
        _aleatoric_is_of_the_data,
    ),
    Claim(
        "Aleatoric uncertainty does not depend on noise added to the images (normalised over the classes).",
        "section 4.2, figure 3, of one image",
        "largest value less than 1.05 times the smallest",
        lambda contents: _noise(contents, "classes"),
    ),
    Claim(
        "The same, normalised over the batch as the paper's prose has it.",
        "section 4.2, figure 3, of one image",
        "largest value less than 1.05 times the smallest",
        lambda contents: _noise(contents, "batch"),
        "The mean of p is 1/B by arithmetic; that of p (1 - p) is near it while no image takes much of a class.",
    ),
    Claim(
        "Softmax cannot give probabilities that are zero in practice.",
        "section 3.2",
        "no test probability of a network with the softmax head is below 0.001",
        _no_zeros,
    ),
    Claim(
        "Softplus normalisation gives them more easily than softmax.",
        "section 3.2",
        "a larger share of test probabilities below 0.001 than the network with the softmax head",
        _zeros,
        "One training of each.",
    ),
    Claim(
        "Uncertainties by softplus normalisation are more appropriate than those by softmax (Kwon et al.).",
        "section 3.1, conclusion; the rule is ours",
        "higher AUROC of wrong predictions than with the softmax head",
        lambda contents: _finds_mistakes(contents, "softplus", better=True),
        "One training of each.",
    ),
    Claim(
        "Kendall & Gal's uncertainties, of linear predictors and not of probabilities, are deficient.",
        "section 3.1, after Kwon et al.; the rule is ours",
        "lower AUROC of wrong predictions than with the softmax head",
        lambda contents: _finds_mistakes(contents, "kendall_gal", better=False),
    ),
)


# ---- goals ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """How a Bayesian network of table 1 compares with the paper and with its twin.

    Beside the twin it is judged by the intervals of the differences, if they cover images and draws: a goal is reached
    or missed if all of an interval is on one side. None is anything else, and `why_open` says what.
    """

    cell: str
    title: str
    accuracy: float
    published: float | None
    reaches_paper: bool | None
    differences: tuple[float, ...] | None
    intervals: tuple[tuple[float, float] | None, ...]
    judged: bool

    @property
    def beside_twin(self) -> tuple[bool | None, ...]:
        """Whether it is at most a point below the twin, has lower NLL and lower ECE; None if that is open."""
        bounds = ((POINTS, -1.0), (0.0, 1.0), (0.0, 1.0))  # the accuracy is turned round: lower is better for all
        return tuple(
            None if ends is None or not self.judged else _below(sorted(sign * end for end in ends), bound)
            for ends, (bound, sign) in zip(self.intervals, bounds, strict=True)
        )

    def why_open(self, number: int) -> str:
        """Why a difference from the twin is not judged."""
        if self.differences is None:
            return "not run"
        if not self.judged:
            return NOT_JUDGED
        return "not judged: no interval with this twin" if self.intervals[number] is None else "not told apart"

    @property
    def met(self) -> bool:
        """Whether no known goal is missed."""
        return False not in (self.reaches_paper, *self.beside_twin)


def _below(ends: Sequence[float], bound: float) -> bool | None:
    """Whether an interval is below a bound; None if the bound is inside.

    >>> _below((-2.0, -1.0), 0.0), _below((1.0, 2.0), 0.0), _below((-1.0, 1.0), 0.0)
    (True, False, None)
    """
    low, high = ends
    return True if high < bound else False if low > bound else None


GOALS = (
    "at or above the published accuracy",
    f"at most {POINTS:g} point below the twin",
    "lower NLL than the twin",
    "lower ECE than the twin",
)


COMPARED = ("accuracy", "nll", "ece")
"""What is compared with the twin."""


def goals(contents: Contents) -> list[Goal]:
    """Every Bayesian network of table 1 that has been run, judged by `GOALS`."""
    found = []
    for row in _measured(contents, "table1", inference="vi"):
        ours, prints = row["measured"], row["published"]["accuracy"]
        twins = _measured(contents, "table1", inference="frequentist", model=row["model"], data=row["data"])
        twin = twins[0]["measured"] if twins else None
        found.append(
            Goal(
                row["cell"],
                f"{TITLES[row['model']]}, {TITLES[row['data']]}",
                ours["accuracy"],
                prints,
                None if prints is None else ours["accuracy"] >= prints,
                None if twin is None else tuple(ours[name] - twin[name] for name in COMPARED),
                tuple(_interval(ours, name, twin) for name in COMPARED),
                covers_draws(ours),
            )
        )
    return found


def _interval(ours: dict[str, Any], name: str, twin: dict[str, Any] | None) -> tuple[float, float] | None:
    """The interval of the difference from the twin; None if not known, or if it was measured against an older twin."""
    key = f"{name}_beside_twin"
    if twin is None or key not in ours or abs(ours[key] - (ours[name] - twin[name])) > 1e-9:
        return None
    return ours[f"{key}_low"], ours[f"{key}_high"]
