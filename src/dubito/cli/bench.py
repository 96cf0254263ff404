"""`dubito bench`: what Bayesian networks cost on this machine, as multiples of their frequentist twins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dubito.cli.evaluate import json_writer
from dubito.cli.failure import Debug
from dubito.cli.terminal import Column, examples, print_table
from dubito.errors import OptionError
from dubito.harmless import say
from dubito.progress import progress_bar

if TYPE_CHECKING:
    from dubito.benchmark import Comparison, Ratio

__all__ = ["EXAMPLES", "bench"]

EXAMPLES = examples(
    "dubito bench",
    "dubito bench --model lenet5,alexnet --repeats 15 --out bench.json",
    note="Each way of training or predicting runs in a process of its own, and all take turns. Costs are multiples of "
    "the frequentist twin's time in the same round, with quartiles: a training step; a prediction by draws against as "
    "many passes of the twin; one image by 100 draws against a pass of 100 images. Memory is the peak of training "
    "steps, or of predictions. Keep the machine quiet meanwhile.",
)
SECONDS = 20.0
"""How long each measure may take, about."""


def bench(
    model: Annotated[
        str, typer.Option(metavar="NAMES", help="lenet5, alexnet, vgg16, or several with commas between.")
    ] = "lenet5",
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Images at once.")] = 128,
    samples: Annotated[int, typer.Option(min=1, metavar="N", help="Draws of a prediction.")] = 10,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Threads of each process. [dim]\\[default: all cores][/dim]", show_default=False
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds at most, in which all take turns.")] = 9,
    single: Annotated[bool, typer.Option(help="Also predict one image by 100 draws; takes long with vgg16.")] = True,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write everything as JSON.", show_default=False)
    ] = None,
    debug: Debug = False,
) -> None:
    """Measure training steps, predictions and peak memory against the frequentist twin."""
    from dubito.benchmark import OURS, Frequentist, compare, measures_of, open_workers
    from dubito.models.architecture import architecture

    write = json_writer(out) if out else None
    names = [name.strip() for name in model.split(",") if name.strip()]
    for name in names:
        architecture(name)
    if not names:
        raise OptionError("--model is empty, but must name at least one network, such as lenet5.")
    number = threads or _cores()
    results: dict[str, Any] = {"batch_size": batch_size, "samples": samples, "threads": number, "networks": {}}
    for name in names:
        measures = measures_of(name, batch_size, repeats, SECONDS, samples=samples, single=single)
        with open_workers((Frequentist, *OURS), number) as workers, progress_bar(name, 100) as advance:
            done = 0

            def move(share: float) -> None:
                nonlocal done
                advance(round(100 * share) - done)
                done = round(100 * share)

            found = compare(workers, measures, memory=True, advance=move)
        _print(name, found, batch_size, samples)
        results["networks"][name] = found.to_json()
    say(f"{number} threads. Costs are multiples of the frequentist twin's time, with quartiles.")
    if write:
        write(results)
        say(f"Everything is in {out}.")


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _print(name: str, found: Comparison, batch_size: int, samples: int) -> None:
    titles = {"step": f"step of {batch_size}", "predict": f"{samples} draws of {batch_size}", "single": "1 image"}
    titles = {measure: title for measure, title in titles.items() if any(measure in by for by in found.ratios.values())}
    columns = [Column(name), *(Column(title, number=True) for title in titles.values()), Column("memory", number=True)]
    rows = []
    for system, by in found.ratios.items():
        memory = found.memory.get(system)
        if by.keys() & titles.keys():
            cells = [_cell(by.get(measure)) for measure in titles]
            rows.append((system, *cells, "" if memory is None else f"{memory:.0f} MB"))
    print_table(columns, rows)
    once = [by["once"] for system, by in found.ratios.items() if "moments" in system and "once" in by]
    for ratio in once:
        say(f"A prediction by moments costs {_cell(ratio)} passes of the twin.")
    for system, why in found.failures.items():
        say(f"{system} failed: {why}.")


def _cell(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f} .. {ratio.high:.2f})"
