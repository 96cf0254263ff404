"""The options of every command that an engine can carry: which one, with how many workers, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dubito.engines import Engine

EngineName = Annotated[
    str,
    typer.Option("--engine", metavar="NAME", help="Where the work runs: local (this process) or ray (a cluster)."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", metavar="N", min=1, help="Number of processes, with --engine ray.", show_default="one per core"
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="Ray cluster to connect to, or auto for the one this machine belongs to. [dim]\\[default: a "
        "new one on this machine][/dim]",
        show_default=False,
    ),
]
GpusPerWorker = Annotated[
    float | None,
    typer.Option("--gpus-per-worker", metavar="G", min=0, help="GPUs of each process; may be a fraction."),
]


def choose_engine(name: str, workers: int | None, address: str | None, gpus: float | None) -> Engine:
    """The engine that the options ask for."""
    from dubito.engines import get_engine

    return get_engine(name, workers=workers, address=address, gpus=gpus)
