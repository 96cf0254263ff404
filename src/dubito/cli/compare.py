"""`dubito compare`: runs side by side on the same test images, with paired differences and their intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dubito.cli.failure import Debug, Trust
from dubito.cli.options import (
    STDOUT,
    Bootstrap,
    Checkpoint,
    Data,
    Device,
    Seed,
    choose_device,
    option,
    runs_argument,
    setting,
)
from dubito.cli.output import json_writer, require_matplotlib, require_writable
from dubito.cli.terminal import Column, examples, numbers, print_table, terminal_width
from dubito.errors import DataError, OptionError, RunError
from dubito.harmless import say

if TYPE_CHECKING:
    import torch

    from dubito.evaluation import Evaluation
    from dubito.evaluation.comparison import Compared, Comparison

EXAMPLES = examples(
    "dubito compare runs/bayesian runs/frequentist runs/dropout",
    "dubito compare runs/a runs/b --out comparison.json --figure comparison.png",
    note="Runs that were already evaluated with the same draws, seed and data are not evaluated "
    "again. Folders that dubito evaluate --ensemble wrote can be given too. Differences are "
    "taken from the first run.",
)

FIGURES = (".png", ".svg", ".pdf")
TITLES = {
    "accuracy": "accuracy",
    "nll": "NLL",
    "brier": "Brier",
    "ece": "ECE",
    "errors/entropy/auroc": "AUROC",
    "errors/entropy/aurc": "AURC",
    "aleatoric": "aleatoric",
    "epistemic": "epistemic",
}
NARROW = ("accuracy", "nll", "ece", "errors/entropy/aurc", "epistemic")
"""The metrics shown on a terminal with fewer than 100 columns."""
SMALL = ("aleatoric", "epistemic", "errors/entropy/aurc")
"""Metrics that need a fifth digit."""


def compare(
    runs: Annotated[list[Path], runs_argument("Two or more run folders, or folders of evaluated ensembles.")],
    data: Data = None,
    samples: Annotated[int, setting("N", "Draws of the weights of each network.", min=1)] = 10,
    bootstrap: Bootstrap = 1000,
    seed: Seed = 0,
    checkpoint: Checkpoint = "best",
    out: Annotated[
        Path | None,
        option("FILE", "Also write the comparison to a .json file; - prints it, and nothing else."),
    ] = None,
    figure: Annotated[
        Path | None,
        option("FILE", f"Also draw the comparison as a figure ({', '.join(FIGURES)})."),
    ] = None,
    device: Device = "auto",
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Compare runs on the same test images: Bayesian, frequentist, dropout, ensembles."""
    if len(runs) < 2:
        raise OptionError("A comparison needs at least 2 runs.")
    write = json_writer(out) if out else None
    if figure:
        _check_figure(figure)
    import torch

    from dubito import evaluation

    torch.set_flush_denormal(True)
    where = choose_device(device)
    evaluations = [_evaluation(run, data, samples, seed, checkpoint, where) for run in runs]
    found = evaluation.compare(evaluations, bootstrap=bootstrap, seed=seed)
    if write:
        write(found.to_dict())
    if figure:
        _draw(found, figure)
    if out == STDOUT:
        return
    _show(found)
    for path in filter(None, (out, figure)):
        say(f"Wrote {path}.")


def _check_figure(path: Path) -> None:
    if path.suffix.lower() not in FIGURES:
        raise OptionError(f"--figure is {path}, but its suffix must be one of {', '.join(FIGURES)}.")
    require_writable(path)
    require_matplotlib()


def _evaluation(
    folder: Path, data: str | None, samples: int, seed: int, checkpoint: str, device: torch.device
) -> Evaluation:
    """The stored evaluation of a folder if it has the same settings, else a new one."""
    from dubito.evaluation import Evaluation, evaluate
    from dubito.evaluation.evaluation import kept_settings
    from dubito.evaluation.storage import is_kept

    is_run = (folder / "config.yaml").exists()
    stored: Evaluation | None = None
    if is_kept(folder):
        try:
            stored = Evaluation.load(folder, images=False)
        except RunError:
            if not is_run:
                raise
    current = stored is not None and stored.is_current
    if stored is not None and current:
        settings = stored.metrics["settings"]
        wanted = {
            "data": data or stored.runs[0].config.data,
            "samples": samples,
            "seed": seed,
            "checkpoint": checkpoint,
        }
        if stored.test.temperature == 1 and all(settings[name] == value for name, value in wanted.items()):
            return stored
    members = [folder] if is_run or stored is None else [run.path for run in stored.runs]
    more: dict[str, Any] = {"noise": ()}
    if not current:  # what is kept has all that an evaluation has, and what the one in its place had
        more = {} if stored is None else _with_data_there(kept_settings(stored))
    more |= {"data": data, "samples": samples, "seed": seed, "checkpoint": checkpoint, "calibrated": False}
    found = evaluate(members, device=device, progress=True, **more)
    if not current:  # one that is merely of other settings is somebody's, and stays
        found.keep(folder)
    return found


def _with_data_there(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without --ood data that cannot be read any more: a comparison does not need it."""
    from dubito.data import open_dataset

    there = []
    for name in settings["ood"]:
        try:
            open_dataset(name, labelled=False)
            there.append(name)
        except DataError:
            say(f"{name} can no longer be read, so the new evaluation leaves it out.", err=True)
    return {**settings, "ood": there}


def _draw(found: Comparison, path: Path) -> None:
    import io

    from dubito.evaluation.comparison import figure
    from dubito.files import write_atomically

    content = io.BytesIO()
    figure(found).savefig(content, format=path.suffix.lower()[1:], dpi=200)
    write_atomically(path, content.getvalue())


def _show(found: Comparison) -> None:
    say(f"{found.images:,} images of {found.data}; * marks the best value.\n")
    rows = [row for row in found.rows if row.metric in TITLES]
    width = terminal_width()
    shown = rows if width is None or width >= 100 else [row for row in rows if row.metric in NARROW]
    columns = [Column("run", fold=True), *numbers(*(TITLES[row.metric] for row in shown))]
    print_table(columns, [[name, *(_cell(row, index) for row in shown)] for index, name in enumerate(found.names)])
    say(f"\nDifferences from {found.names[0]}, with paired 95 % intervals")
    columns = [Column("run", fold=True), Column("metric"), *numbers("difference", "interval"), Column("")]
    print_table(columns, [_difference(name, row, i) for i, name in enumerate(found.names) if i for row in rows])


def _cell(row: Compared, index: int) -> str:
    value = row.values[index]
    digits = 5 if row.metric in SMALL else 4
    return "-" if value != value else f"{value:.{digits}f}{'*' if index == row.best else ' ' * (row.best is not None)}"


def _difference(name: str, row: Compared, index: int) -> list[str]:
    from dubito.evaluation.comparison import COMPARED

    low, high = row.difference_intervals[index]
    digits = 5 if row.metric in SMALL else 4
    judgement = ""
    if row.differs(index):
        more_is_better = COMPARED[row.metric][1]
        more = row.differences[index] > 0
        judgement = (
            ("more" if more else "less") if more_is_better is None else ("worse", "better")[more == more_is_better]
        )
    if row.differences[index] != row.differences[index]:
        return [name, TITLES[row.metric], "-", "-", ""]
    change = f"{row.differences[index]:+.{digits}f}"
    return [name, TITLES[row.metric], change, f"{low:+.{digits}f} to {high:+.{digits}f}", judgement]
