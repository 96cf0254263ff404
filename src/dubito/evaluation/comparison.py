"""Comparing evaluations on the same test images: metrics side by side, and paired differences with their intervals.

All evaluations get the same resamples of the images, so that what makes some images hard for every network cancels in
the differences. The intervals also cover the draws: see :mod:`dubito.evaluation.intervals`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dubito.errors import OptionError
from dubito.evaluation.evaluation import Evaluation
from dubito.evaluation.intervals import Measurement
from dubito.evaluation.summary import measured, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RANKED_BY = "entropy"
"""The uncertainty by which mistakes are looked for: every network has it, Bayesian or not."""
COMPARED: dict[str, tuple[str, bool | None]] = {
    "accuracy": ("accuracy", True),
    "top5_accuracy": ("top-5 accuracy", True),
    "nll": ("NLL", False),
    "brier": ("Brier score", False),
    "ece": ("ECE", False),
    "ece_equal_mass": ("ECE, equal mass", False),
    f"errors/{RANKED_BY}/auroc": ("AUROC of mistakes", True),
    f"errors/{RANKED_BY}/aurc": ("AURC", False),
    "aleatoric": ("aleatoric", None),
    "epistemic": ("epistemic", None),
}
"""Title of each metric, and whether more is better; None if neither is."""
DRAWN = ("accuracy", "nll", "ece", f"errors/{RANKED_BY}/aurc")


@dataclass(frozen=True)
class Compared:
    """One metric of every evaluation, in their order.

    Attributes:
        metric: its key, such as ``nll`` or ``errors/entropy/aurc``.
        values: one for each evaluation.
        intervals: of the values, 95 %.
        differences: value minus that of the first evaluation; 0 for the first.
        difference_intervals: of the differences, 95 %, over images (paired) and draws.
        best: which evaluation is best; None if the metric has no better or worse.
    """

    metric: str
    values: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]
    differences: tuple[float, ...]
    difference_intervals: tuple[tuple[float, float], ...]
    best: int | None

    @property
    def title(self) -> str:
        """The metric's name for people."""
        return COMPARED[self.metric][0]

    def differs(self, index: int) -> bool:
        """Whether an evaluation differs from the first one: the interval of the difference is all on one side of 0."""
        low, high = self.difference_intervals[index]
        return low > 0 or high < 0


@dataclass(frozen=True)
class Comparison:
    """Several evaluations side by side; differences are against the first."""

    names: tuple[str, ...]
    data: str
    images: int
    rows: tuple[Compared, ...]

    def __getitem__(self, metric: str) -> Compared:
        """The row of a metric."""
        return next(row for row in self.rows if row.metric == metric)

    def to_dict(self) -> dict[str, Any]:
        """What comparison.json holds."""
        rows = {
            row.metric: {
                "values": row.values,
                "intervals": row.intervals,
                "differences": row.differences,
                "difference_intervals": row.difference_intervals,
                "best": None if row.best is None else self.names[row.best],
            }
            for row in self.rows
        }
        content = {"names": self.names, "data": self.data, "images": self.images, "metrics": rows}
        whole: dict[str, Any] = plain(content)
        return whole


def compare(
    evaluations: Sequence[Evaluation], names: Sequence[str] | None = None, *, bootstrap: int = 1000, seed: int = 0
) -> Comparison:
    """Compare evaluations of the same test images with the first of them.

    Intervals cover the images and the draws: a network compared with itself under another seed has 0 inside 95 % of
    them. Where draws were not kept, or a network has none, they cover the images alone. `names` default to those of
    the run folders.
    """
    if len(evaluations) < 2:
        raise OptionError(f"A comparison needs at least 2 evaluations, but there are {len(evaluations)}.")
    titles = tuple(names) if names is not None else distinct_names(evaluations)
    if len(titles) != len(evaluations):
        raise OptionError(f"There are {len(titles)} names for {len(evaluations)} evaluations.")
    _require_same_images(evaluations, titles)
    found = [measured(evaluation.test, bootstrap, seed, [RANKED_BY]) for evaluation in evaluations]
    apart = [
        part.minus(found[0], same_draws=_same_draws(evaluation, evaluations[0]))
        for part, evaluation in zip(found, evaluations, strict=True)
    ]
    rows = tuple(_row(metric, found, apart) for metric in COMPARED if metric in found[0].names)
    return Comparison(titles, evaluations[0].test.name, len(evaluations[0].test), rows)


def _same_draws(one: Evaluation, other: Evaluation) -> bool:
    """Whether draw i of both comes from the same random numbers."""
    seeds = [evaluation.metrics.get("settings", {}).get("seed") for evaluation in (one, other)]
    return one is other or (seeds[0] is not None and seeds[0] == seeds[1])


def _row(metric: str, found: Sequence[Measurement], apart: Sequence[Measurement]) -> Compared:
    values = tuple(part[metric] for part in found)
    return Compared(
        metric,
        values,
        tuple(part.interval(metric) for part in found),
        tuple(part[metric] for part in apart),
        tuple(part.interval(metric) for part in apart),
        _best(values, COMPARED[metric][1]),
    )


def _best(values: Sequence[float], more_is_better: bool | None) -> int | None:
    known = [index for index, value in enumerate(values) if value == value]  # not NaN
    if more_is_better is None or not known:
        return None
    return max(known, key=lambda index: values[index] if more_is_better else -values[index])


def _require_same_images(evaluations: Sequence[Evaluation], names: Sequence[str]) -> None:
    first = evaluations[0].test
    for evaluation, name in zip(evaluations[1:], names[1:], strict=True):
        test = evaluation.test
        same = evaluation.class_names == evaluations[0].class_names and torch.equal(test.truth, first.truth)
        if test.name != first.name or not same:
            raise OptionError(
                f"{name} was evaluated on {test.name} ({len(test):,} images), but {names[0]} on {first.name} "
                f"({len(first):,} images): a comparison needs the same images and classes."
            )


def distinct_names(evaluations: Sequence[Evaluation]) -> tuple[str, ...]:
    """The names of the run folders, longer where they would be equal."""
    paths = [[run.path.resolve() for run in evaluation.runs] for evaluation in evaluations]
    for parts in range(1, 20):
        names = tuple("+".join(str(Path(*path.parts[-parts:])) for path in group) for group in paths)
        if len(set(names)) == len(names):
            return names
    return tuple(f"{name} ({index + 1})" for index, name in enumerate(names))


def draw_metric(axes: Axes, row: Compared, names: Sequence[str]) -> None:
    """Draw one metric of every evaluation with its interval, the best one filled."""
    for index, (value, (low, high)) in enumerate(zip(row.values, row.intervals, strict=True)):
        face = "C0" if index == row.best else "white"
        # A shifted interval may end on the value's other side.
        reach = [[max(value - low, 0.0)], [max(high - value, 0.0)]]
        axes.errorbar([value], [index], xerr=reach, fmt="o", color="C0", markerfacecolor=face, capsize=3)
    axes.set_yticks(range(len(names)), [name.replace("$", r"\$") for name in names])  # which would begin a formula
    axes.set_ylim(len(names) - 0.5, -0.5)
    better = {True: "more is better", False: "less is better", None: ""}[COMPARED[row.metric][1]]
    axes.set_title(row.title)
    axes.set_xlabel(better)
    axes.grid(axis="x", alpha=0.3)
    axes.locator_params(axis="x", nbins=4)


def figure(comparison: Comparison) -> Figure:
    """Accuracy, NLL, ECE and AURC of every evaluation with their 95 % intervals."""
    from matplotlib.figure import Figure

    drawn = [row for row in comparison.rows if row.metric in DRAWN]
    whole = Figure(figsize=(2.6 * len(drawn) + 1, 1.3 + 0.35 * len(comparison.names)), layout="constrained")
    for index, (axes, row) in enumerate(zip(whole.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True)):
        draw_metric(axes, row, comparison.names)
        if index:
            axes.tick_params(labelleft=False)
    return whole
