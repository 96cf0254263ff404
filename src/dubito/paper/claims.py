"""Which statements of the paper hold in our results, each by a rule that is stated and computed.

A claim is tested in as many places as have been run: networks, data sets, pairs of twins. Where it compares test
accuracies of networks that draw, and a stored row has intervals over images alone, the claim is open there: such rows
are of earlier code, and another seed of the draws can move their numbers by more than the intervals say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
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
    """One place where a claim was tested.

    Attributes:
        holds: whether it holds there; None if that is open.
        numbers: what was measured there.
        value: the number for the claim's one sentence, if this place has one.
    """

    holds: bool | None
    numbers: str
    value: float | None = None


def _judgement(holds: bool, numbers: str, value: float, *drawing: dict[str, Any]) -> Test:
    """A test by test accuracies of these networks that draw, open if a row has intervals over images alone."""
    if all(covers_draws(measured) for measured in drawing):
        return Test(holds, numbers, value)
    return Test(None, f"{numbers} ({NOT_JUDGED})", value)


class Reach(NamedTuple):
    """From the smallest to the largest of some numbers.

    >>> f"{Reach(-0.5, 2):+.1f}", f"{Reach(1, 1.01):.1f}"
    ('-0.5 to +2.0', '1.0')
    """

    low: float
    high: float

    def __format__(self, spec: str) -> str:
        low, high = format(self.low, spec), format(self.high, spec)
        return low if low == high else f"{low} to {high}"


class Topic(str, Enum):
    """What a claim is about: the sections of the page, in their order."""

    ACCURACY = "Are Bayesian networks as accurate?"
    OVERFITTING = "Do they overfit less?"
    WEIGHTS = "What happens to a weight?"
    UNCERTAINTY = "What do the uncertainties depend on?"
    NOISE = "Does noise change aleatoric uncertainty?"
    HEADS = "Is softplus better than softmax?"


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and how it is judged.

    Attributes:
        name: in the record of verdicts.
        topic: what it is about.
        text: the statement.
        place: where the paper has it.
        rule: by which it is judged.
        says: one sentence on what was measured, with {values} of the tests, and in how many places it holds.
        tests: the rule, applied wherever the networks have been run.
        remark: what to bear in mind.
    """

    name: str
    topic: Topic
    text: str
    place: str
    rule: str
    says: str
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

    @property
    def sentence(self) -> str:
        """What was measured, in a sentence; empty if nothing was."""
        values = [test.value for test in self.tests if test.value is not None]
        if not self.tests or ("{values" in self.claim.says and not values):
            return ""
        reach = Reach(min(values), max(values)) if values else None
        good = sum(test.holds is True for test in self.tests)
        return self.claim.says.format(values=reach, good=good, count=len(self.tests))


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
        yield _judgement(
            min(test, validation) >= -POINTS, f"{name}: {test:+.2f} and {validation:+.2f} points", test, ours
        )


def _slow_start(contents: Contents) -> Iterator[Test]:
    for name, ours, twin in _trained_alike(contents):
        a, b = (part["first_validation_accuracy"] for part in (ours, twin))
        error = math.sqrt(sum(p * (100 - p) for p in (a, b)) / ours["validation_images"])
        yield Test(b - a > 2 * error, f"{name}: {a:.2f} % against {b:.2f} % (standard error {error:.2f})", a - b)


def _beside_dropout(contents: Contents, data: str, holds: Callable[[float], bool]) -> Iterator[Test]:
    for name, ours, dropout in _pairs(contents, "dropout"):
        if name.endswith(TITLES[data]):
            ahead = dropout["accuracy"] - ours["accuracy"]
            yield _judgement(holds(ahead), f"{name}: dropout {ahead:+.2f} points", ahead, ours, dropout)


def _curve(contents: Contents, inference: str) -> list[dict[str, Any]]:
    return [row["measured"] for row in _measured(contents, "regularisation", inference=inference)]


OVERFITS = 0.05
"""Nats by which the validation NLL of the last epoch exceeds the lowest."""


def _rise(curve: list[dict[str, Any]]) -> float:
    return float(curve[-1]["val_nll"] - min(row["val_nll"] for row in curve))


def _overfits(contents: Contents, inference: str, expected: bool) -> Iterator[Test]:
    if curve := _curve(contents, inference):
        rise = _rise(curve)
        told = f"validation NLL ends {rise:.3f} nats above its lowest; {_gap(curve)}"
        yield Test((rise > OVERFITS) == expected, told, rise)


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
        yield Test(abs(difference) <= POINTS, numbers, difference)


def _uncertainties(contents: Contents, data: str) -> list[dict[str, Any]]:
    return [row["measured"] for row in _measured(contents, "table2", data=data, head="softplus")]


def _epistemic_falls(contents: Contents) -> Iterator[Test]:
    for data in ("mnist", "cifar10"):
        rows = sorted(_uncertainties(contents, data), key=lambda row: row["accuracy"])
        if rows and rows[-1]["accuracy"] - rows[0]["accuracy"] > POINTS:
            values = [row["epistemic_mean_over_epochs"] for row in rows]
            told = ", ".join(f"{row['accuracy']:.1f} %: {value:.5f}" for row, value in zip(rows, values, strict=True))
            falls = all(a > b for a, b in pairwise(values))
            yield Test(falls, f"{TITLES[data]}: {told}", values[-1] / values[0])


def _aleatoric_is_of_the_data(contents: Contents) -> Iterator[Test]:
    for data in ("mnist", "cifar10"):
        values = [row["aleatoric_mean_over_epochs"] for row in _uncertainties(contents, data)]
        if len(values) > 1:
            ratio = max(values) / min(values)
            yield Test(ratio < 1.1, f"{TITLES[data]}: the largest is {ratio:.2f} times the smallest", ratio)


def _noise(contents: Contents, axis: str, summed_up: str) -> Iterator[Test]:
    """Of one image and of the mean of many, one of which is summed up in the claim's sentence."""
    for model in ("lenet5", "vgg16"):
        rows = _measured(contents, "noise", model=model)
        for which, name in (("image", "one image"), ("test", "mean of many")) if rows else ():
            values = [row["measured"][f"{axis}_{which}"] for row in rows]
            told = " ".join(f"{value:.2g}" if axis == "classes" else f"{value:.6f}" for value in values)
            factor = max(values) / min(values) if which == summed_up and min(values) > 0 else None
            yield Test(max(values) < 1.05 * min(values), f"{TITLES[model]}, {name}: {told}", factor)


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
                value = a - b if better else a
                yield Test(a > b if better else a < b, f"{name}, {kind}: {a:.3f} against {b:.3f}", value)


def _zeros(contents: Contents) -> Iterator[Test]:
    for name, ours, softmax in _beside_softmax(contents, "softplus"):
        a, b = (100 * part["nearly_zero"] for part in (ours, softmax))
        yield Test(a > b, f"{name}: {a:.2f} % against {b:.2f} %", a - b)


def _no_zeros(contents: Contents) -> Iterator[Test]:
    for row in _measured(contents, "table2", head="softmax"):
        share = 100 * row["measured"]["nearly_zero"]
        yield Test(share == 0, f"{TITLES[row['model']]}, {TITLES[row['data']]}: {share:.2f} %", share)


CLAIMS = (
    Claim(
        "as-accurate-as-twins",
        Topic.ACCURACY,
        "Bayesian networks are as accurate as the same networks with point estimates.",
        "abstract, section 4.1, table 1",
        f"at most {POINTS:g} point below the twin in test accuracy, both at their epochs of lowest validation NLL, and "
        "in validation accuracy, both at their most accurate epochs (a network that starts where its twin ends does "
        "not count)",
        "Their test accuracy minus their twins' is {values:+.2f} points.",
        _comparable,
        "Of a network that overfits, the epoch of lowest NLL is early and not the most accurate.",
    ),
    Claim(
        "slow-start",
        Topic.ACCURACY,
        "In the first epochs Bayesian networks have a lower validation accuracy than frequentist ones.",
        "section 4.1",
        "validation accuracy after the first epoch below the twin's by more than two standard errors (a network "
        "that starts where its twin ends does not count); the standard error is over validation images, not over draws",
        "After one epoch, their validation accuracy minus their twins' is {values:+.1f} points.",
        _slow_start,
        "Under the budget `cpu` the Bayesian networks begin as near as nothing to point estimates: with a standard "
        "deviation of exp(-5), and with KL that is warmed up.",
    ),
    Claim(
        "dropout-on-mnist",
        Topic.ACCURACY,
        "On MNIST variational inference and dropout are comparable.",
        "section 4.1",
        f"test accuracies within {POINTS:g} point",
        "Test accuracy with dropout minus the Bayesian network's is {values:+.2f} points.",
        lambda contents: _beside_dropout(contents, "mnist", lambda ahead: abs(ahead) <= POINTS),
    ),
    Claim(
        "dropout-on-cifar10",
        Topic.ACCURACY,
        "On CIFAR-10 LeNet-5 with dropout is considerably more accurate than with variational inference.",
        "section 4.1, which could not reproduce it",
        f"more than {POINTS:g} point of test accuracy above",
        "Test accuracy with dropout minus the Bayesian network's is {values:+.2f} points.",
        lambda contents: _beside_dropout(contents, "cifar10", lambda ahead: ahead > POINTS),
    ),
    Claim(
        "frequentist-overfits",
        Topic.OVERFITTING,
        "A frequentist AlexNet overfits greatly on CIFAR-100.",
        "section 4.1, figure 2",
        f"validation NLL of the last epoch more than {OVERFITS:g} nats above the lowest",
        "Its validation NLL ends {values:.2f} nats above its lowest.",
        lambda contents: _overfits(contents, "frequentist", True),
        "The paper shows accuracies; NLL shows it earlier.",
    ),
    Claim(
        "bayesian-does-not-overfit",
        Topic.OVERFITTING,
        "A Bayesian AlexNet does not overfit on CIFAR-100.",
        "section 4.1, figure 2",
        f"validation NLL of the last epoch at most {OVERFITS:g} nats above the lowest",
        "Its validation NLL ends {values:.2f} nats above its lowest.",
        lambda contents: _overfits(contents, "vi", False),
        "With KL at the temperature of table 1, not at its full weight.",
    ),
    Claim(
        "as-good-as-dropout",
        Topic.OVERFITTING,
        "The Bayesian AlexNet performs as the frequentist one with three dropout layers.",
        "section 4.1, figure 2",
        f"validation accuracies of the last epoch within {POINTS:g} point",
        "In the end its validation accuracy minus that with dropout is {values:+.1f} points.",
        _as_good_as_dropout,
        "Dropout with p = 0.5, validated by draws of its masks.",
    ),
    Claim(
        "std-falls",
        Topic.WEIGHTS,
        "The standard deviation of a weight falls over the epochs.",
        "commented out in the paper's source",
        "lower after the last epoch than after the first, for one weight of each layer",
        "It falls for {good} of the {count} weights that were followed, one in each layer.",
        _std_falls,
        "It starts at exp(-5), where the paper's text has 1.",
    ),
    Claim(
        "epistemic-falls",
        Topic.UNCERTAINTY,
        "Epistemic uncertainty falls as accuracy rises, from network to network.",
        "section 4.2, table 2",
        "mean over the epochs strictly falls with test accuracy, on each data set on which the networks' accuracies "
        f"differ by more than {POINTS:g} point",
        "The most accurate network has {values:.1f} times the epistemic uncertainty of the least accurate one.",
        _epistemic_falls,
        "The networks differ in temperature and epochs too (table 1).",
    ),
    Claim(
        "aleatoric-of-the-data",
        Topic.UNCERTAINTY,
        "Aleatoric uncertainty depends on the data set alone, not on the network.",
        "section 4.2, table 2",
        "largest mean over the epochs less than 1.1 times the smallest",
        "On the same data, the largest of the networks' is {values:.1f} times the smallest.",
        _aleatoric_is_of_the_data,
    ),
    Claim(
        "noise-over-classes",
        Topic.NOISE,
        "Aleatoric uncertainty does not depend on noise added to the images (normalised over the classes).",
        "section 4.2, figure 3, of one image",
        "largest value less than 1.05 times the smallest",
        "With noise, the mean over many images changes by a factor of {values:.0f}.",
        lambda contents: _noise(contents, "classes", "test"),
    ),
    Claim(
        "noise-over-batch",
        Topic.NOISE,
        "Aleatoric uncertainty does not depend on noise (normalised over the batch, as the paper's prose has it).",
        "section 4.2, figure 3, of one image",
        "largest value less than 1.05 times the smallest",
        "With noise, that of one image changes by a factor of {values:.1f}.",
        lambda contents: _noise(contents, "batch", "image"),
        "The mean of p is 1/B by arithmetic; that of p (1 - p) is near it while no image takes much of a class.",
    ),
    Claim(
        "softmax-no-zeros",
        Topic.HEADS,
        "Softmax cannot give probabilities that are zero in practice.",
        "section 3.2",
        "no test probability of a network with the softmax head is below 0.001",
        "With softmax, {values:.0f} % of the test probabilities are below 0.001.",
        _no_zeros,
    ),
    Claim(
        "softplus-more-zeros",
        Topic.HEADS,
        "Softplus normalisation gives probabilities of almost zero more easily than softmax.",
        "section 3.2",
        "a larger share of test probabilities below 0.001 than the network with the softmax head",
        "The share below 0.001 minus that with softmax is {values:+.1f} points.",
        _zeros,
        "One training of each.",
    ),
    Claim(
        "softplus-more-appropriate",
        Topic.HEADS,
        "Uncertainties by softplus normalisation are more appropriate than those by softmax (Kwon et al.).",
        "section 3.1, conclusion; the rule is ours",
        "higher AUROC of wrong predictions than with the softmax head",
        "Their AUROC of finding mistakes minus that with softmax is {values:+.3f}.",
        lambda contents: _finds_mistakes(contents, "softplus", better=True),
        "One training of each.",
    ),
    Claim(
        "kendall-gal-deficient",
        Topic.HEADS,
        "Kendall & Gal's uncertainties, of linear predictors and not of probabilities, are deficient.",
        "section 3.1, after Kwon et al.; the rule is ours",
        "lower AUROC of wrong predictions than with the softmax head",
        "They find mistakes with an AUROC of {values:.2f}; guessing has 0.5.",
        lambda contents: _finds_mistakes(contents, "kendall_gal", better=False),
    ),
)


# ---- goals ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """How a Bayesian network of table 1 compares with the paper and with its twin.

    Beside the twin it is judged by the intervals of the differences, if they cover images and draws: a goal is reached
    or missed if all of an interval is on one side. None is anything else.
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
