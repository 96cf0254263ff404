"""The arguments and options that several commands share, and what checks their values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dubito.errors import OptionError, unknown
from dubito.runs.config import LARGEST_SEED
from dubito.zoo import find

if TYPE_CHECKING:
    import torch

    from dubito.engines import Engine


def run_argument(help: str) -> Any:
    """The argument RUN: a run folder, or whatever else a command takes in its place; zoo:NAME is found too."""
    return typer.Argument(metavar="RUN", callback=find, help=help, show_default=False)


def runs_argument(help: str) -> Any:
    """The same for several run folders."""
    return typer.Argument(metavar="RUN", callback=_find_runs, help=help, show_default=False)


def _find_runs(paths: Any) -> list[Path]:
    # On Python 3.10 typer takes no `list[Path]` as a callback's parameter.
    return [find(path) for path in paths]


STDOUT = Path("-")
"""The output that is printed instead of written to a file."""


def _no_stdout(parameter: typer.CallbackParam, value: Path | None) -> Path | None:
    if value == STDOUT:
        raise OptionError(f"--{parameter.name} is -, but several files are written, not one to print: name a folder.")
    return value


def option(metavar: str | None, help: str, *names: str, default: str = "", **settings: Any) -> Any:
    """An option whose value may be left out; `default` is what is shown of its default, nothing unless given."""
    if metavar == "FOLDER":
        settings["callback"] = _no_stdout
    shown = f"{help} [dim]\\[default: {default}][/dim]" if default else help
    return typer.Option(*names, metavar=metavar, help=shown, show_default=False, **settings)


def setting(metavar: str, help: str, *names: str, **more: Any) -> Any:
    """An option whose default is shown."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def flag(name: str, help: str) -> Any:
    """An option without a value."""
    return typer.Option(name, help=help)


def require_choice(name: str, value: str | None, valid: Sequence[str | None]) -> None:
    """An error if an option has a value that is none of the valid ones."""
    if value not in valid:
        raise OptionError(unknown(name, value, [choice for choice in valid if choice is not None]))


def _checked_seed(value: int) -> int:
    if value > LARGEST_SEED:
        raise OptionError(f"--seed is {value}, but must be at most {LARGEST_SEED}.")
    return value


def _checked_checkpoint(value: str) -> str:
    require_choice("--checkpoint", value, ("best", "last"))
    return value


AnyNetwork = Annotated[
    Path, run_argument("Run folder, folder written by dubito.save, or zoo:NAME (dubito zoo lists them).")
]
Data = Annotated[
    str | None,
    option("NAME", "Another data set with the same classes: its test images, or all images if it is not split."),
]
Samples = Annotated[int, setting("N", "Draws of the weights.", min=1)]
Seed = Annotated[
    int,
    setting("N", "Random seed. The same seed gives the same result.", min=0, callback=_checked_seed),
]
Bootstrap = Annotated[int, setting("N", "Bootstrap resamples for the intervals.", min=1)]
BatchSize = Annotated[int, setting("N", "Images in a batch; large images get smaller batches.", min=1)]
Checkpoint = Annotated[
    str,
    setting("NAME", "Which weights: best (lowest validation NLL) or last.", callback=_checked_checkpoint),
]
Device = Annotated[str, setting("NAME", "Where to compute: auto (a GPU if there is one), cpu, cuda, cuda:1, ...")]


def choose_device(name: str) -> torch.device:
    """The device of that name; an error if this machine does not have it."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
        return device
    except (RuntimeError, AssertionError):  # the latter if torch was built without
        raise OptionError(f"--device is {name!r}, which this machine does not have; try auto or cpu.") from None


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- what carries the work: this process or a cluster ---------------------------------------------------------------

EngineName = Annotated[
    str,
    setting("NAME", "Where the work runs: local (this process) or ray (a cluster).", "--engine"),
]
Workers = Annotated[
    int | None,
    setting("N", "Number of processes, with --engine ray.", "--workers", min=1, show_default="one per core"),
]
Address = Annotated[
    str | None,
    option(
        "HOST:PORT",
        "Ray cluster to connect to, or auto for the one this machine belongs to.",
        default="a new one on this machine",
    ),
]
GpusPerWorker = Annotated[float | None, setting("G", "GPUs of each process; may be a fraction.", min=0)]


def choose_engine(name: str, workers: int | None, address: str | None, gpus: float | None) -> Engine:
    """The engine that the options ask for."""
    from dubito.engines import get_engine

    return get_engine(name, workers=workers, address=address, gpus=gpus)
