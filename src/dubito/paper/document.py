"""The page on what of the paper was reproduced, built from the result files alone."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from dubito.errors import RunError
from dubito.evaluation.headline import leaning
from dubito.files import write_atomically
from dubito.paper.cells import BUDGETS, Cell, estimated_seconds, grid
from dubito.paper.claims import GOALS, NOT_JUDGED, covers_draws, goals, judge
from dubito.paper.display import duration
from dubito.paper.results import read
from dubito.paper.tables import HEADINGS, coverage, markdown, note, table
from dubito.paper.trials import TEXT, trials
from dubito.runs.config import configure, with_defaults

PAPER = (
    "*Uncertainty Estimations by Softplus normalization in Bayesian Convolutional Neural Networks with Variational "
    "Inference* (Shridhar, Laumann, Liwicki, 2019)"
)
FIGURES = {
    "table1": (("table1.png", "Measured and published accuracies"),),
    "table2": (("table2.png", "Uncertainties against accuracy"),),
    "noise": (
        ("noise.png", "One image at four noise levels, with its aleatoric uncertainty"),
        (
            "noise-levels.png",
            "Aleatoric uncertainty against the noise level, normalised over the classes and the batch",
        ),
    ),
    "regularisation": (("regularisation.png", "AlexNet on CIFAR-100: training and validation over the epochs"),),
    "posterior": (
        ("posterior.png", "A weight's distribution at some epochs, and standard deviations over the epochs"),
    ),
    "filters": (("filters.png", "A patch, a filter and its output, as numbers and as distributions"),),
}


MARKS = {True: "✓ ", False: "✗ ", None: ""}


def write_document(results: Path, document: Path) -> None:
    """Write the page of the results in a folder."""
    if not read(results):
        raise RunError(f"{results} holds no results of dubito reproduce; run it first, or give another --results.")
    write_atomically(document, compose(results, os.path.relpath(results, document.parent)))


def compose(results: Path, link: str) -> str:
    """The page; `link` is the path from it to the results."""
    contents = read(results)
    budget = next(iter(contents.values()))["budget"] if contents else results.name
    parts = [
        "# Reproduction",
        f"What of {PAPER} holds when it is done again with dubito. This page is made by `dubito reproduce`, from the "
        f"files in [{_named(link)}]({link}) and, for what was tried, those beside them; every number in it is one "
        "of theirs.",
        _made(contents, budget),
        *_settings(contents),
        "## Which claims hold",
        _about_verdicts(contents),
        _claims(contents),
        "## Bayesian networks beside their twins",
        _goals(contents, link, results),
        *(_section(name, contents.get(name), link, results) for name in HEADINGS),
        *_trials(results.parent / "trials", os.path.join(os.path.dirname(link), "trials")),
        "## Where the paper leaves a choice",
        "Places where the text is ambiguous, or contradicts itself or the authors' code, and what is done here. The "
        "code is kumar-shridhar/PyTorch-BayesianCNN, and hashes are its commits; the repository that a footnote of the "
        "paper names (PyTorch-Softplus-Normalization-Uncertainty-Estimation-Bayesian-CNN) was not examined.",
        (files("dubito.paper") / "ambiguities.md").read_text(encoding="utf-8").rstrip(),
    ]
    return "\n\n".join(parts) + "\n"


def _trials(folder: Path, link: str) -> tuple[str, ...]:
    if not folder.is_dir():
        return ()
    return "## What was tried", f"{TEXT} Learning curves are in [{_named(link)}]({link}).", trials(folder)


def _named(link: str) -> str:
    """A folder as it is called in the repository, wherever the page stands."""
    return link.replace("../", "")


def _made(contents: dict[str, dict[str, Any]], budget: str) -> str:
    known = BUDGETS.get(budget)
    cells = {name: facts for content in contents.values() for name, facts in content["cells"].items()}
    done = [facts for facts in cells.values() if facts is not None]
    count = len(grid(known)) if known else len(cells)
    lines = [f"Budget `{budget}`: {known.says}" if known else f"Results in {budget}."]
    if known and budget != "smoke":
        whole = duration(sum(estimated_seconds(cell, known) for cell in grid(known)))
        lines[0] += f" Its {count} trainings take one core about {whole} in all."
    if done:
        spent = duration(sum(facts["training_seconds"] for facts in done))
        commits = ", ".join(sorted({_commit(facts) for facts in done}))
        hardware = ", ".join(sorted({content["made"]["hardware"] for content in contents.values()}))
        seeds = ", ".join(sorted({str(facts["seed"]) for facts in done}))
        lines.append(
            f"{len(done)} of {count} trainings are finished; they spent {spent} in training steps. Commit "
            f"{commits}; seed {seeds}; {hardware}. What is not finished, or not part of the budget, is shown as "
            "not run."
        )
    else:
        lines.append("No training is finished yet; everything is shown as not run.")
    return "\n\n".join(lines)


def _settings(contents: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    """The settings of the Bayesian networks that differ from the paper's appendix."""
    trained = [facts["settings"] for content in contents.values() for facts in content["cells"].values() if facts]
    here = [with_defaults(given) for given in trained if given["inference"] == "vi"]
    rows = []
    for name, value in configure("paper").in_force().items():
        values = sorted({_value(given[name]) for given in here}, key=_by_size)
        if here and name not in NOT_COMPARED and values != [_value(value)]:
            rows.append((f"`{name}`", _value(value), ", ".join(values)))
    if not rows:
        return ()
    text = (
        "Where the Bayesian networks were not trained with the settings of the paper's appendix, as the preset `paper` "
        "reads them:"
    )
    return "## Settings", text, markdown(("setting", "appendix", "here"), rows)


NOT_COMPARED = ("model", "data", "head", "seed", "init", "warmup_epochs")
"""Settings that differ from cell to cell, and those that the appendix's schedule of KL does not use."""


def _value(given: object) -> str:
    return f"{given:.4g}" if isinstance(given, float) else str(given)


def _by_size(value: str) -> tuple[float, str]:
    try:
        return float(value), ""
    except ValueError:
        return float("inf"), value


def _commit(facts: dict[str, Any]) -> str:
    commit, _, changed = str(facts.get("commit") or "unknown").partition("+")
    return commit[:12] + (" with changes" if changed else "")


def _about_verdicts(contents: dict[str, dict[str, Any]]) -> str:
    text = (
        "The rules compare the numbers as they are, without an interval unless they name one: a verdict is of one "
        "training each."
    )
    rows = [row for row in contents.get("table1", {}).get("rows", []) if row["inference"] != "frequentist"]
    if all(row["measured"] is None or covers_draws(row["measured"]) for row in rows):
        return text
    return (
        f"{text} A claim on test accuracies is open where a network that draws has intervals over images alone: what "
        "another seed of its draws would change was not measured."
    )


def _claims(contents: dict[str, dict[str, Any]]) -> str:
    rows = []
    for judged in judge(contents):
        numbers = "<br>".join(f"{MARKS[test.holds]}{test.numbers}" for test in judged.tests)
        claim = judged.claim
        rule = f"{claim.rule}. {claim.remark}" if claim.remark else claim.rule
        rows.append((f"{claim.text} ({claim.place})", f"**{judged.verdict}**", rule, numbers))
    return markdown(("claim", "verdict", "rule", "numbers"), rows)


def _goals(contents: dict[str, dict[str, Any]], link: str, results: Path) -> str:
    found = goals(contents)
    text = (
        "What a Bayesian network should reach: "
        + "; ".join(GOALS)
        + ". Published accuracies are whole per cents, and ours is compared with them as it is. In brackets 95 % "
        "intervals of the differences between the two networks on the same test images. A tick or a cross beside the "
        "twin says that the whole interval is on one side; otherwise this evaluation does not tell them apart"
        f"{'' if all(goal.judged for goal in found) else ', or the interval covers images alone and is not judged'}. "
        f"{coverage(_bayesian_rows(contents))} No interval covers another training. Finitely many images push "
        "ECE up, most where it is smallest, so that networks look more alike in it than they are; its intervals are "
        "those of ECE with this number of images."
    )
    if not found:
        return f"{text}\n\nNot run."
    rows = []
    for goal in found:
        beside = []
        for i, digits in enumerate((2, 4, 4)):
            told = "" if goal.differences is None else difference(goal.differences[i], goal.intervals[i], digits)
            verdict = goal.beside_twin[i]
            beside.append(
                ", ".join(filter(None, (told, goal.why_open(i)))) if verdict is None else f"{MARKS[verdict]}{told}"
            )
        paper = f"{goal.accuracy:.2f}"
        if goal.published is not None:
            paper = f"{MARKS[goal.reaches_paper]}{paper} to {goal.published:g}"
        cells = (paper, *beside)
        rows.append((goal.title, *cells))
    parts = [text, markdown(("network", *GOALS), rows)]
    missed = [goal for goal in found if not goal.met]
    left = [goal for goal in found if goal.met and None in goal.beside_twin]
    if not missed and not left:
        parts.append(f"Every network that was run ({len(found)}) reaches all of it.")
        return "\n\n".join(parts)
    parts.append(
        f"{len(missed)} of {len(found)} networks miss some of it, and of {len(left)} more some is open. Their learning "
        "curves, on validation images, follow; what was tried is told below. A twin that overfits is compared at its "
        "epoch of lowest NLL, where its probabilities are still calibrated."
    )
    for goal in (goal for goal in found if goal in missed or goal in left):
        model, data = goal.cell.split("-")[:2]
        name = f"table1-{model}-{data}.png"
        parts.append(_course(goal.title, Cell(model, data), contents["table1"]))
        if (results / name).exists():
            parts.append(f"![Learning curves of {goal.title}]({link}/{name})")
    return "\n\n".join(parts)


def _bayesian_rows(contents: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in contents.get("table1", {}).get("rows", []) if row["inference"] == "vi"]


def _course(title: str, cell: Cell, content: dict[str, Any]) -> str:
    """How a training and its twin's went: still learning, saved by an early epoch, too sure or too modest."""
    curves = content["curves"]
    ours, twin = ([row["val_nll"] for row in curves.get(name, [])] for name in (cell.name, cell.twin.name))
    best = f"lowest NLL after epoch {ours.index(min(ours)) + 1} of {len(ours)}"
    last = f"ECE after the last epoch {curves[cell.name][-1]['val_ece']:.3f}"
    if twin:
        best += f" (twin: {twin.index(min(twin)) + 1} of {len(twin)})"
        last += f" (twin: {curves[cell.twin.name][-1]['val_ece']:.3f})"
    more = "; it was still falling, so that more epochs may help" if ours[-1] == min(ours) < ours[0] else ""
    measured = {row["cell"]: row["measured"] for row in content["rows"]}
    return f"{title}: {best}{more}; {last}{_sureness(measured[cell.name], measured.get(cell.twin.name))}."


def _sureness(measured: dict[str, Any], twin: dict[str, Any] | None) -> str:
    """Mean confidence beside accuracy, because calibration error does not say which is larger; empty if not known."""

    def told(row: dict[str, Any], judged: bool) -> str:
        verdict = leaning(row["confidence"], (row["accuracy_low"], row["accuracy_high"])) if judged else NOT_JUDGED
        return f"{row['confidence']:.1f} % sure on average and {row['accuracy']:.1f} % right, {verdict}"

    if "confidence" not in measured:
        return ""
    text = f"; on test images {told(measured, covers_draws(measured))}"
    known = twin is not None and "confidence" in twin
    return f"{text} (twin: {told(twin, True)})" if twin is not None and known else text  # which has no draws


def difference(value: float, ends: tuple[float, float] | None, digits: int) -> str:
    """A difference with its interval.

    >>> difference(0.5, (-0.25, 1.0), 2)
    '+0.50 [-0.25, +1.00]'
    """
    interval = "" if ends is None else f" [{ends[0]:+.{digits}f}, {ends[1]:+.{digits}f}]"
    return f"{value:+.{digits}f}{interval}"


def _section(name: str, content: dict[str, Any] | None, link: str, results: Path) -> str:
    parts = [f"## {HEADINGS[name]}"]
    if content is None:
        return "\n\n".join([*parts, f"Not run: `dubito reproduce {name}`."])
    parts += [table(content), note(content)]
    if name == "noise":
        parts.append(
            "Over a batch of B images the p of every class sum to 1, so their mean is 1/B whatever the images are, "
            "and the mean of p (1 - p) is nearly (1/B)(1 - 1/B), as long as no image takes much of a class: 0.000999 "
            "at B = 1,000, the paper's constant. That B was 1,000 is inferred from this number alone; the appendix's "
            f"batch of 128 would give {(1 - 1 / 128) / 128:.6f}. One image among the others of its batch is not "
            "constant. "
            "Over the classes, aleatoric uncertainty is a property of the image."
        )
    parts += [f"![{title}]({link}/{file})" for file, title in FIGURES[name] if (results / file).exists()]
    made = content["made"]
    parts.append(f"[{name}.csv]({link}/{name}.csv), [{name}.json]({link}/{name}.json), made by `{made['command']}`.")
    return "\n\n".join(parts)
