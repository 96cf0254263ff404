"""Tables and figures of each experiment, as files that say how they were made.

    EXPERIMENT.json   all: rows with measured and published numbers apart, and of every cell its settings, commit,
                      seed, hardware and command
    EXPERIMENT.csv    the rows
    EXPERIMENT.md     a table for people
    EXPERIMENT*.png   figures
    verdicts.csv      when the verdict on which claim has changed (see `record`)

A cell that is not finished has a row without measured numbers. One whose run folder is not here, but whose numbers are
in the files already, keeps them, unless its settings have changed since: run folders hold weights and travel less.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dubito.errors import RunError
from dubito.files import write_atomically
from dubito.harmless import to_csv
from dubito.paper import published
from dubito.paper.cells import BUDGETS, Budget, Cell, Experiment, cells_of, settings
from dubito.paper.grid import different_settings
from dubito.paper.measurements import (
    Finished,
    accuracy_row,
    beside_twin,
    filter_content,
    finished,
    noise_rows,
    posterior_rows,
    uncertainty_row,
)
from dubito.runs.config import TrainingConfig
from dubito.runs.environment import commit

POSTERIOR_EPOCHS = (1, 5, 20, 50, 100)
Content = dict[str, Any]


def collect(experiment: Experiment, budget: Budget, runs: Path, results: Path) -> list[Path]:
    """Write the files of an experiment from the cells that are finished; gives their paths."""
    cells = _cells(experiment, budget)
    found = {cell: done for cell in cells if (done := finished(cell, budget, runs)) is not None}
    rows = _COLLECTORS[experiment](cells, found, budget)
    content: Content = {
        "experiment": experiment.value,
        "budget": budget.name,
        "says": budget.says,
        "made": _made(),
        "cells": {cell.name: found[cell].facts() if cell in found else None for cell in cells},
        **rows,
    }
    _keep_earlier(content, read(results).get(experiment.value), {c.name: settings(c, budget, runs) for c in cells})
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_atomically(results / f"{experiment.value}.json", text)
    return [results / f"{experiment.value}.json", *show(content, results)]


def show(content: Content, results: Path) -> list[Path]:
    """Write what is made of an experiment's content: rows, table and figures; gives their paths."""
    from dubito.paper import drawings

    name = content["experiment"]
    files: dict[str, str | bytes] = {f"{name}.csv": _csv(content["rows"]), f"{name}.md": _page(content)}
    files |= drawings.figures(content)
    stale = set(results.glob(f"{name}*.png")) - {results / file for file in files}
    for path in stale:  # of cells that were finished and are not any more
        path.unlink()
    for file, made in files.items():
        write_atomically(results / file, made)
    return [results / file for file in files]


def _keep_earlier(content: Content, earlier: Content | None, wanted: dict[str, TrainingConfig]) -> None:
    """Keep the numbers in the files of cells whose run folder is not here."""
    if earlier is None or earlier["budget"] != content["budget"]:
        return
    cells = content["cells"]
    kept = {
        name: facts
        for name, facts in earlier["cells"].items()
        if facts is not None and name in cells and cells[name] is None
        if not different_settings(facts["settings"], wanted[name])
    }
    if not kept:
        return
    rows = {name: earlier["rows"] if name in kept else content["rows"] for name in cells}
    content["rows"] = [row for name in cells for row in rows[name] if row["cell"] == name]
    cells |= kept
    for part, value in earlier.items():
        if isinstance(value, dict) and value.keys() <= cells.keys():
            content.setdefault(part, {}).update({name: about for name, about in value.items() if name in kept})
        elif not content.get(part):  # what there is one of: an image, a filter, a weight's trace
            content[part] = value


def read(results: Path) -> dict[str, Content]:
    """The contents of all experiments that there are, by name."""
    contents = {}
    for experiment in Experiment:
        path = results / f"{experiment.value}.json"
        if path.exists():
            try:
                contents[experiment.value] = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise RunError(f"{path} is damaged ({error}); run dubito reproduce {experiment.value} again.") from None
    return contents


def _cells(experiment: Experiment, budget: Budget) -> list[Cell]:
    """The cells of a table in the paper's order; of the second one also those that this budget cannot pay for."""
    everything = cells_of(experiment, BUDGETS["paper"] if experiment is Experiment.TABLE2 else budget)
    models, data = ("vgg16", "alexnet", "lenet5"), ("mnist", "cifar10", "cifar100")
    inferences, heads = ("vi", "frequentist", "dropout"), ("softplus", "softmax", "kendall_gal")

    def place(cell: Cell) -> tuple[int, ...]:
        where = (models.index(cell.model), inferences.index(cell.inference), data.index(cell.data))
        return (heads.index(cell.head), *where)

    return sorted(everything, key=place)


def _made() -> Content:
    """How these files were made."""
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": commit(),
        "hardware": f"{_processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


# ---- rows ----------------------------------------------------------------------------------------------------------


def _row(cell: Cell, measured: Content | None, publishes: Content) -> Content:
    """A row with what was measured and what the paper prints, apart."""
    names = {"model": cell.model, "data": cell.data, "inference": cell.inference, "head": cell.head}
    status = "finished" if measured is not None else "not run"
    return {"cell": cell.name, **names, "status": status, "measured": measured, "published": publishes}


Collector = Callable[[list[Cell], dict[Cell, Finished], Budget], Content]


def _table1(cells: list[Cell], found: dict[Cell, Finished], budget: Budget) -> Content:
    rows = []
    for cell in cells:
        measured = accuracy_row(found[cell]) if cell in found else None
        if measured is not None and cell.inference == "vi" and cell.twin in found:
            measured |= beside_twin(found[cell], found[cell.twin], budget.bootstrap)
        accuracy = published.ACCURACY.get((cell.model, cell.inference, cell.data))
        rows.append(_row(cell, measured, {"accuracy": accuracy}))
    return {"rows": rows, "curves": {cell.name: done.epochs for cell, done in found.items()}}


def _table2(cells: list[Cell], found: dict[Cell, Finished], budget: Budget) -> Content:
    rows = []
    for cell in cells:
        measured = uncertainty_row(found[cell]) if cell in found else None
        values = published.UNCERTAINTY.get((cell.model, cell.data)) if cell.head == "softplus" else None
        names = ("aleatoric", "epistemic", "accuracy")
        rows.append(_row(cell, measured, dict(zip(names, values or (None, None, None), strict=True))))
    return {"rows": rows}


def _noise(cells: list[Cell], found: dict[Cell, Finished], budget: Budget) -> Content:
    rows, about = [], {}
    for cell in cells:
        levels: list[Content | None] = [None] * len(published.NOISE)
        if cell in found:
            response = noise_rows(found[cell], budget)
            levels = response.pop("levels")
            about[cell.name] = response
        for (gamma, value), level in zip(published.NOISE.items(), levels, strict=True):
            prints = {"image": value if cell.model == "vgg16" else None}
            measured = level and {name: value for name, value in level.items() if name != "gamma"}
            rows.append({"gamma": gamma, **_row(cell, measured, prints)})
    first = next(iter(found.values()), None)
    image = first and first.run.open_data().test().images[0, 0].tolist()
    return {"rows": rows, "about": about, "image": image}


def _regularisation(cells: list[Cell], found: dict[Cell, Finished], budget: Budget) -> Content:
    rows = []
    names = ("train_accuracy", "train_nll", "val_accuracy", "val_nll")
    for cell in cells:
        for epoch in found[cell].epochs if cell in found else [None]:
            measured = None if epoch is None else {"epoch": int(epoch["epoch"]), **{n: epoch[n] for n in names}}
            rows.append(_row(cell, measured, {}))
    return {"rows": rows}


def _posterior(cells: list[Cell], found: dict[Cell, Finished], budget: Budget) -> Content:
    rows, trace = [], []
    for cell in cells:
        if cell in found:
            rows += [_row(cell, row, {}) for row in posterior_rows(found[cell], POSTERIOR_EPOCHS)]
            trace += found[cell].run.posterior_trace()
        else:
            rows.append(_row(cell, None, {}))
    return {"rows": rows, "trace": trace}


def _filters(cells: list[Cell], found: dict[Cell, Finished], budget: Budget) -> Content:
    (cell,) = cells
    content = filter_content(found[cell]) if cell in found else None
    measured = None
    if content is not None:
        measured = {name: content[name] for name in ("filter", "row", "column", "output_mean", "output_std")}
    return {"rows": [_row(cell, measured, {})], "filter": content}


_COLLECTORS: dict[Experiment, Collector] = {
    Experiment.TABLE1: _table1,
    Experiment.TABLE2: _table2,
    Experiment.NOISE: _noise,
    Experiment.REGULARISATION: _regularisation,
    Experiment.POSTERIOR: _posterior,
    Experiment.FILTERS: _filters,
}


# ---- files ---------------------------------------------------------------------------------------------------------


def _csv(rows: list[Content]) -> str:
    """Rows with columns ``measured_...`` and ``published_...``; what is not known is blank."""
    flat = []
    for row in rows:
        line = {name: value for name, value in row.items() if name not in ("measured", "published")}
        for part in ("measured", "published"):
            line |= {f"{part}_{name}": value for name, value in (row[part] or {}).items()}
        flat.append(line)
    names = list(dict.fromkeys(name for line in flat for name in line))
    order = [n for n in names if not n.startswith(("measured_", "published_"))]
    order += [n for n in names if n.startswith("measured_")] + [n for n in names if n.startswith("published_")]
    return to_csv(order, [[line.get(name, "") for name in order] for line in flat])


def _page(content: Content) -> str:
    """The table as Markdown, with how it was made."""
    from dubito.paper.tables import HEADINGS, note, table

    name = content["experiment"]
    made = content["made"]
    lines = [
        f"# {HEADINGS[name]}",
        "",
        table(content),
        "",
        note(content),
        "",
        f"Made by `{made['command']}` at commit {made['commit']} on {made['hardware']}, Python {made['python']}. "
        f"Budget `{content['budget']}`: {content['says']}",
        "",
        f"Settings, seed, commit, hardware and command of every training are in [{name}.json]({name}.json).",
        "",
    ]
    return "\n".join(lines)
