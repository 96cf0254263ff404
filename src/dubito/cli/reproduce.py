"""`dubito reproduce`: the paper's tables and figures again, as a grid of trainings that can be stopped and resumed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dubito.cli.failure import FAILED, INTERRUPTED, Debug
from dubito.cli.options import Address, EngineName, GpusPerWorker, available_cores, choose_engine, option, setting
from dubito.cli.output import require_writable
from dubito.cli.terminal import examples
from dubito.errors import OptionError, unknown
from dubito.harmless import say
from dubito.paper.cells import BUDGETS, Cell, Experiment, chosen, estimated_seconds

if TYPE_CHECKING:
    from dubito.engines import Engine

EXAMPLES = examples(
    "dubito reproduce all --budget smoke",
    "dubito reproduce table1 --budget cpu --only model=lenet5,data=mnist",
    "dubito reproduce all --budget cpu --jobs 2 --hours 8",
    "dubito reproduce all --budget cpu --engine ray --address auto",
    "dubito reproduce document",
    note="Every cell of the grid is a run folder. Finished cells are skipped; one that was stopped "
    "continues from its last checkpoint when the command is run again. Ctrl-C stops cleanly.",
)

WHATS = (*(experiment.value for experiment in Experiment), "all", "document")
DOCUMENT = Path("docs/results/reproduction.md")


def reproduce(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=f"{', '.join(WHATS[:-1])} or {WHATS[-1]}.")],
    budget: Annotated[
        str,
        setting(
            "NAME",
            "How much to compute: smoke (toy data), cpu (hours on two cores) or paper (the settings of the paper).",
        ),
    ] = "cpu",
    only: Annotated[
        str,
        option(
            "LIST",
            "Cells to run, such as model=lenet5,data=mnist. The names are model, data, inference and head; a name "
            "can be given twice to allow both values.",
        ),
    ] = "",
    jobs: Annotated[
        int | None,
        setting(
            "N",
            "Cells to train at the same time, in one process each.",
            min=1,
            show_default="1; with --engine ray as many as there are cores",
        ),
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    gpus_per_worker: GpusPerWorker = None,
    threads: Annotated[int | None, setting("N", "Threads of each process.", min=1, show_default="cores / jobs")] = None,
    hours: Annotated[float | None, option("H", "Start no new epoch or cell after this many hours.")] = None,
    runs: Annotated[
        Path | None,
        option("FOLDER", "Folder of the runs.", "--runs", "--out", default="runs/reproduction/BUDGET"),
    ] = None,
    results: Annotated[
        Path | None,
        option("FOLDER", "Folder of the tables and figures.", default="results/reproduction/BUDGET"),
    ] = None,
    document: Annotated[
        Path | None,
        setting(
            "FILE",
            "Markdown file written from the results.",
            show_default=f"{DOCUMENT} for cpu, otherwise reproduction.md in the results folder",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Reproduce the paper: its tables, its figures, and which of its claims hold."""
    if what not in WHATS:
        raise OptionError(unknown("WHAT", what, WHATS))
    if budget not in BUDGETS:
        raise OptionError(unknown("--budget", budget, BUDGETS))
    if hours is not None and not hours >= 0:
        raise OptionError(f"--hours is {hours}, but must be 0 or more.")
    runs = runs or Path("runs/reproduction") / budget
    results = results or Path("results/reproduction") / budget
    document = document or (DOCUMENT if budget == "cpu" else results / "reproduction.md")
    experiments = list(Experiment) if what in ("all", "document") else [Experiment(what)]
    cells = chosen(experiments, BUDGETS[budget], only)
    for place in (results / "tables", document):
        require_writable(place)
    code = 0
    if what != "document":
        given = os.environ.get("OMP_NUM_THREADS", "")
        carrier: Engine | None = None
        if engine == "local":
            choose_engine(engine, None, address, gpus_per_worker)  # an error if one of these is for ray
            jobs = jobs or 1
            threads = threads or (int(given) if given.isdigit() else max(1, available_cores() // jobs))
        else:  # a worker for each cell, with as many cores as a cell has threads
            from dubito.engines import get_engine

            threads = threads or 1
            carrier = get_engine(engine, workers=jobs, address=address, cpus=threads, gpus=gpus_per_worker)
        code = _run(cells, budget, runs, jobs, threads, hours, carrier)
    _write(experiments if what != "document" else [], budget, runs, results, document)
    if code:
        sys.exit(code)  # not `typer.Exit`, after which "Interrupted." would be printed too


def _run(
    cells: list[Cell],
    budget: str,
    runs: Path,
    jobs: int | None,
    threads: int,
    hours: float | None,
    engine: Engine | None,
) -> int:
    """Run the cells; gives the exit code."""
    from dubito.paper.display import Display, duration
    from dubito.paper.grid import Grid

    guess = sum(estimated_seconds(cell, BUDGETS[budget]) for cell in cells)
    say(f"Budget {budget}: {BUDGETS[budget].says}")
    at_once = f"{jobs} at a time" if jobs else "as many at a time as the cluster has cores"
    say(f"{len(cells)} cells in {runs}, {at_once}; about {duration(guess)} on one core in total.")
    deadline = None if hours is None else time.time() + 3600 * hours
    with Display() as display:
        grid = Grid(cells, BUDGETS[budget], runs, jobs or 1, threads, deadline, display, engine)
        grid.run()
    done = grid.count("finished")
    why = "Interrupted" if grid.interrupted else "Time is up" if done < len(cells) and grid.out_of_time else ""
    failed = f", {grid.count('failed')} failed" if grid.count("failed") else ""
    again = " Run the same command again to continue." if why else ""
    say(f"{why}{': ' if why else ''}{done} of {len(cells)} cells are finished{failed}.{again}")
    return INTERRUPTED if grid.interrupted else FAILED if grid.count("failed") else 0


def _write(experiments: list[Experiment], budget: str, runs: Path, results: Path, document: Path) -> None:
    """Tables and figures of the experiments, or of all results that there are, and the document of them."""
    from dubito.paper.document import write_document
    from dubito.paper.results import collect, read, show

    for experiment in experiments:
        collect(experiment, BUDGETS[budget], runs, results)
    for content in read(results).values() if not experiments else ():
        show(content, results)
    if experiments:
        say(f"Wrote tables and figures of {', '.join(e.value for e in experiments)} to {results}.")
    write_document(results, document)
    say(f"Wrote {document}.")
