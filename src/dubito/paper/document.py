"""The page on what of the paper was reproduced, built from the result files alone.

First the verdicts, then a picture for each topic; what only some readers need is folded or in the files beside.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dubito.errors import RunError
from dubito.files import write_atomically
from dubito.paper.cells import BUDGETS, Cell, estimated_seconds, grid
from dubito.paper.claims import GOALS, Goal, Judged, Topic, covers_draws, goals, judge
from dubito.paper.display import duration
from dubito.paper.record import before, record, verdicts
from dubito.paper.results import read
from dubito.paper.tables import HEADINGS, coverage, markdown
from dubito.paper.trials import TEXT, trials
from dubito.runs.config import configure, with_defaults

Contents = dict[str, dict[str, Any]]
PAPER = (
    "*Uncertainty Estimations by Softplus normalization in Bayesian Convolutional Neural Networks with Variational "
    "Inference* (Shridhar, Laumann, Liwicki, 2019)"
)
WORDS = (
    "A *twin* is the same network with a number for each weight instead of a distribution, trained alike. *NLL* is the "
    "negative log-likelihood and *ECE* the calibration error: less is better. *AUROC* is the chance that a mistake is "
    "more uncertain than a right answer. *Aleatoric* uncertainty is that of the image, *epistemic* that of the network."
)
OPEN = (
    "*Open*: the numbers are there, but not by how much they would change with another seed of the random draws; "
    "training again with `dubito reproduce table1` measures it."
)
PICTURES = {
    Topic.ACCURACY: ("table1.png", "Test accuracy with its 95 % interval, and what the paper has"),
    Topic.OVERFITTING: ("regularisation.png", "AlexNet on CIFAR-100 over the epochs"),
    Topic.WEIGHTS: ("posterior.png", "A weight at some epochs, and the standard deviation of one weight of each layer"),
    Topic.UNCERTAINTY: ("table2.png", "Mean uncertainties over the epochs; hollow is what the paper has"),
    Topic.NOISE: ("noise-levels.png", "Aleatoric uncertainty of MNIST with more and more noise"),
    Topic.HEADS: (
        "table2-heads.png",
        "Probabilities of almost zero, and how well uncertainties find mistakes, by head",
    ),
}
FOLDED = {
    Topic.ACCURACY: ("table1-curves.png", "Validation NLL of every network over the epochs; a dot is the lowest"),
    Topic.WEIGHTS: ("filters.png", "A patch, a filter and its output, as numbers and as distributions"),
    Topic.NOISE: ("noise.png", "One image at four noise levels, with its aleatoric uncertainty"),
}
"""The picture of each topic that is shown at once, and one more."""
FILES = {
    Topic.ACCURACY: ("table1",),
    Topic.OVERFITTING: ("regularisation",),
    Topic.WEIGHTS: ("posterior", "filters"),
    Topic.UNCERTAINTY: ("table2",),
    Topic.NOISE: ("noise",),
    Topic.HEADS: ("table2",),
}
"""The experiments of each topic."""
MARKS = {True: "✓ ", False: "✗ ", None: ""}


def write_document(results: Path, document: Path) -> None:
    """Write the page of the results in a folder, and record the verdicts that have changed."""
    contents = read(results)
    if not contents:
        raise RunError(f"{results} holds no results of dubito reproduce; run it first, or give another --results.")
    record(results, judge(contents))
    write_atomically(document, compose(results, os.path.relpath(results, document.parent)))


def compose(results: Path, link: str) -> str:
    """The page; `link` is the path from it to the results."""
    contents = read(results)
    budget = next(iter(contents.values()))["budget"] if contents else results.name
    judged = judge(contents)
    known = verdicts(results)
    earlier = {one.claim.name: before(known.get(one.claim.name, []), one.verdict) for one in judged}
    parts = [
        "# Reproduction",
        f"Does {PAPER} hold when it is done again with dubito? {_counts(judged, earlier)}",
        _of_what(contents, budget),
        "## Verdicts",
        _verdicts(judged, earlier),
        " ".join([WORDS, *([OPEN] if any("open" in one.verdict for one in judged) else [])]),
    ]
    for topic in Topic:
        parts += _section(topic, [one for one in judged if one.claim.topic is topic], contents, link, results)
    parts += ["## How this was made", _made(contents, budget, link), *_settings(contents)]
    parts += _trials(results.parent / "trials", os.path.join(os.path.dirname(link), "trials"))
    return "\n\n".join(parts) + "\n"


def _counts(judged: Sequence[Judged], earlier: dict[str, str]) -> str:
    kinds = Counter(one.verdict if one.verdict in _KINDS else "partly" for one in judged)
    told = [f"{kinds[kind]} {words}" for kind, words in _KINDS.items() if kinds[kind]]
    changed = sum(1 for was in earlier.values() if was)
    more = f" Changed since an earlier page: {changed}." if changed else ""
    return f"Of the paper's {len(judged)} claims, {_listed(told)}.{more}"


_KINDS = {
    "holds": "hold",
    "partly": "hold in part",
    "does not hold": "do not hold",
    "open": "are open",
    "not run": "were not tested",
}
"""Verdicts, and how those of several claims are counted."""


def _listed(words: Sequence[str]) -> str:
    """
    >>> _listed(["1 holds", "2 do not", "3 are open"])
    '1 holds, 2 do not and 3 are open'
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _of_what(contents: Contents, budget: str) -> str:
    """What a reader must know of every number on the page."""
    trained = [facts for content in contents.values() for facts in content["cells"].values() if facts is not None]
    known = BUDGETS.get(budget)
    text = f"Budget `{budget}`: {known.says}" if known else f"Results in {budget}."
    if not trained:
        return f"{text} No training is finished yet."
    seeds = sorted({facts["seed"] for facts in trained})
    bayesian = [with_defaults(facts["settings"]) for facts in trained if facts["settings"]["inference"] == "vi"]
    kl = _listed(sorted({f"{settings['temperature']:g}" for settings in bayesian}, key=float))
    weighed = f" KL is weighed by {kl}, where Bayes' rule has 1." if kl and kl != "1" else ""
    return (
        f"{text} A verdict is of one training of each network, with seed {_listed([str(s) for s in seeds])}.{weighed}"
    )


def _verdicts(judged: Iterable[Judged], earlier: dict[str, str]) -> str:
    rows = []
    for one in judged:
        was = earlier[one.claim.name]
        rows.append((one.claim.text, f"**{one.verdict}**", one.sentence, f"**changed**, was: {was}" if was else ""))
    return markdown(("the paper's claim", "verdict", "what was measured", "earlier"), rows)


def _section(topic: Topic, judged: Sequence[Judged], contents: Contents, link: str, results: Path) -> list[str]:
    parts = [f"## {topic.value}"]
    file, title = PICTURES[topic]
    if (results / file).exists():
        parts += [f"![{title}]({link}/{file})", f"*{title}.*"]
    if topic is Topic.ACCURACY:
        parts += [fold("Each network beside its twin", _goals(contents))]
        parts += [fold("The twin's rule: the epoch of lowest validation NLL, and the last one", _rule(contents))]
    parts.append(fold("Rules and numbers", _rules(judged)))
    picture = FOLDED.get(topic)
    if picture is not None and (results / picture[0]).exists():
        parts.append(fold(picture[1], f"![{picture[1]}]({link}/{picture[0]})"))
    for name in FILES[topic]:
        parts.append(_files(name, contents.get(name), link))
    return parts


def fold(title: str, *parts: str) -> str:
    """Text that is shown when its title is clicked, on GitHub and on the site."""
    return "\n\n".join([f'<details markdown="1">\n<summary>{title}</summary>', *parts, "</details>"])


def _rules(judged: Iterable[Judged]) -> str:
    rows = []
    for one in judged:
        claim = one.claim
        numbers = "<br>".join(f"{MARKS[test.holds]}{test.numbers}" for test in one.tests)
        rule = f"{claim.rule}. {claim.remark}" if claim.remark else claim.rule
        rows.append((f"{claim.text} ({claim.place})", rule, numbers))
    return markdown(("claim", "rule", "numbers"), rows)


def _files(name: str, content: dict[str, Any] | None, link: str) -> str:
    if content is None:
        return f"{HEADINGS[name]}: not run (`dubito reproduce {name}`)."
    return (
        f"{HEADINGS[name]}: " + ", ".join(f"[{name}.{end}]({link}/{name}.{end})" for end in ("md", "csv", "json")) + "."
    )


# ---- twins ---------------------------------------------------------------------------------------------------------


def _goals(contents: Contents) -> str:
    found = goals(contents)
    if not found:
        return "Not run."
    rows = [r for r in contents["table1"]["rows"] if r["inference"] == "vi"]
    open_ = all(r["measured"] is None or covers_draws(r["measured"]) for r in rows)
    text = (
        "Test accuracy, and the differences from the twin (accuracy in points, NLL, ECE) with 95 % intervals over the "
        "same test images. ✓ and ✗: the whole interval is on one side. "
        f"{'' if open_ else 'Differences whose interval covers the images alone are not judged. '}"
        f"{coverage(rows)} No interval covers another training."
    )
    return f"{text}\n\n{markdown(('network', *GOALS), [_goal_row(goal) for goal in found])}"


def _goal_row(goal: Goal) -> tuple[str, ...]:
    paper = f"{goal.accuracy:.2f}"
    if goal.published is not None:
        paper = f"{MARKS[goal.reaches_paper]}{paper} to {goal.published:g}"
    beside = ["not run"] * 3
    if goal.differences is not None:
        found = zip(goal.beside_twin, goal.differences, goal.intervals, (2, 4, 4), strict=True)
        beside = [MARKS[holds] + difference(value, ends, digits) for holds, value, ends, digits in found]
    return (goal.title, paper, *beside)


def difference(value: float, ends: tuple[float, float] | None, digits: int) -> str:
    """A difference with its interval.

    >>> difference(0.5, (-0.25, 1.0), 2)
    '+0.50 [-0.25, +1.00]'
    """
    interval = "" if ends is None else f" [{ends[0]:+.{digits}f}, {ends[1]:+.{digits}f}]"
    return f"{value:+.{digits}f}{interval}"


def _rule(contents: Contents) -> str:
    """Both networks of each pair at the epoch of lowest validation NLL and at their last epoch."""
    curves = contents.get("table1", {}).get("curves", {})
    rows = []
    for goal in goals(contents):
        model, data = goal.cell.split("-")[:2]
        cell = Cell(model, data)
        pair = [curves.get(name) for name in (cell.name, cell.twin.name)]
        if None not in pair:
            best = [min(epochs, key=lambda row: row["val_nll"]) for epochs in pair]
            last = [epochs[-1] for epochs in pair]
            rows.append((goal.title, *_epoch(best), *_epoch(last)))
    if not rows:
        return "Not run."
    text = (
        "A Bayesian network and its twin are compared at the same rule: each with the weights of its epoch of lowest "
        "validation NLL. These are tested, once. The table has both at their last epoch too, on the validation images: "
        "a twin that overfits is much worse there. Each cell: Bayesian / twin."
    )
    columns = ("epoch", "accuracy, %", "NLL", "ECE")
    header = ("network", *(f"lowest NLL: {name}" for name in columns), *(f"last: {name}" for name in columns))
    return f"{text}\n\n{markdown(header, rows)}"


def _epoch(pair: Sequence[dict[str, float]]) -> tuple[str, ...]:
    numbers = (("epoch", 1, 0), ("val_accuracy", 100, 2), ("val_nll", 1, 3), ("val_ece", 1, 3))
    return tuple(" / ".join(f"{unit * row[name]:.{digits}f}" for row in pair) for name, unit, digits in numbers)


# ---- how it was made -----------------------------------------------------------------------------------------------


def _made(contents: Contents, budget: str, link: str) -> str:
    known = BUDGETS.get(budget)
    cells = {name: facts for content in contents.values() for name, facts in content["cells"].items()}
    done = [facts for facts in cells.values() if facts is not None]
    count = len(grid(known)) if known else len(cells)
    text = (
        f"`dubito reproduce` made this page of the files in [{_named(link)}]({link}); every number here is one of "
        "theirs. What is not finished, or not part of the budget, is shown as not run."
    )
    if known and budget != "smoke":
        whole = duration(sum(estimated_seconds(cell, known) for cell in grid(known)))
        text += f" The {count} trainings of the budget take one core about {whole} in all."
    if not done:
        return text
    spent = duration(sum(facts["training_seconds"] for facts in done))
    commits = ", ".join(sorted({_commit(facts) for facts in done}))
    hardware = ", ".join(sorted({content["made"]["hardware"] for content in contents.values()}))
    return (
        f"{text} {len(done)} of {count} are finished; they spent {spent} in training steps, on {hardware}.\n\n"
        f"{fold('Commits', f'{commits}.')}"
    )


def _named(link: str) -> str:
    """A folder as it is called in the repository, wherever the page stands."""
    return link.replace("../", "")


def _commit(facts: dict[str, Any]) -> str:
    commit, _, changed = str(facts.get("commit") or "unknown").partition("+")
    return commit[:12] + (" with changes" if changed else "")


def _settings(contents: Contents) -> list[str]:
    """The settings of the Bayesian networks that differ from the paper's appendix."""
    trained = [facts["settings"] for content in contents.values() for facts in content["cells"].values() if facts]
    here = [with_defaults(given) for given in trained if given["inference"] == "vi"]
    rows = []
    for name, value in configure("paper").in_force().items():
        values = sorted({_value(given[name]) for given in here}, key=_by_size)
        if here and name not in NOT_COMPARED and values != [_value(value)]:
            rows.append((f"`{name}`", _value(value), ", ".join(values)))
    if not rows:
        return []
    text = "Where the Bayesian networks were not trained as the appendix has it, as the preset `paper` reads it:"
    return [fold("Settings that are not the paper's", text, markdown(("setting", "appendix", "here"), rows))]


NOT_COMPARED = ("model", "data", "head", "seed", "init", "warmup_epochs")
"""Settings that differ from cell to cell, and those that the appendix's schedule of KL does not use."""


def _value(given: object) -> str:
    return f"{given:.4g}" if isinstance(given, float) else str(given)


def _by_size(value: str) -> tuple[float, str]:
    try:
        return float(value), ""
    except ValueError:
        return float("inf"), value


def _trials(folder: Path, link: str) -> list[str]:
    if not folder.is_dir():
        return []
    return [fold("What was tried", f"{TEXT} Learning curves are in [{_named(link)}]({link}).", trials(folder))]
