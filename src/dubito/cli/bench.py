"""`dubito bench`: what Bayesian networks cost on this machine, as multiples of their frequentist twins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dubito.cli.failure import Debug
from dubito.cli.options import STDOUT, available_cores, option, setting
from dubito.cli.output import json_writer
from dubito.cli.terminal import Column, examples, numbers, print_table
from dubito.errors import OptionError
from dubito.harmless import say
from dubito.progress import progress_bar

if TYPE_CHECKING:
    from dubito.benchmark import Comparison, Ratio

EXAMPLES = examples(
    "dubito bench",
    "dubito bench --model lenet5,alexnet --repeats 15 --out bench.json",
    note="Each way of training or predicting runs in its own process, and they take turns. Costs are "
    "multiples of the frequentist twin's time in the same round, with quartiles: a training "
    "step; a prediction by draws against as many passes of the twin; one image by 100 draws "
    "against a pass of 100 images. Memory is the peak of training steps, or of predictions. Do "
    "not use the machine for anything else meanwhile.",
)
SECONDS = 20.0
"""How long each measure may take, about."""


def bench(
    model: Annotated[str, setting("NAMES", "Networks: lenet5, alexnet or vgg16, separated by commas.")] = "lenet5",
    batch_size: Annotated[int, setting("N", "Images in a batch.", min=1)] = 128,
    samples: Annotated[int, setting("N", "Draws of the weights for a prediction.", min=1)] = 10,
    threads: Annotated[int | None, option("N", "Threads of each process.", default="all cores", min=1)] = None,
    repeats: Annotated[int, setting("N", "Most rounds of measurement.", min=1)] = 9,
    single: Annotated[
        bool,
        typer.Option(
            show_default=False,
            help="Also measure one image with 100 draws; slow with vgg16. [dim]\\[default: yes][/dim]",
        ),
    ] = True,
    out: Annotated[
        Path | None,
        option("FILE", "Also write everything to a .json file; - prints it, and nothing else."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Measure what being Bayesian costs: training steps, predictions and memory, beside the frequentist twin."""
    from dubito.benchmark import OURS, Frequentist, compare, measures_of, open_workers
    from dubito.models.architecture import architecture

    write = json_writer(out) if out else None
    names = [name.strip() for name in model.split(",") if name.strip()]
    for name in names:
        architecture(name)
    if not names:
        raise OptionError("--model is empty, but must name at least one network, such as lenet5.")
    number = threads or available_cores()
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
        if out != STDOUT:
            _print(name, found, batch_size, samples)
        results["networks"][name] = found.to_json()
    if write:
        write(results)
    if out == STDOUT:
        return
    say(f"{number} threads. Costs are multiples of the frequentist twin's time, with quartiles.")
    if write:
        say(f"Everything is in {out}.")


def _print(name: str, found: Comparison, batch_size: int, samples: int) -> None:
    titles = {"step": f"step of {batch_size}", "predict": f"{samples} draws of {batch_size}", "single": "1 image"}
    titles = {measure: title for measure, title in titles.items() if any(measure in by for by in found.ratios.values())}
    columns = [Column(name), *numbers(*titles.values(), "memory")]
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
