"""The options of every command that an engine can carry: which one, with how many workers, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dubito.engines import Engine

__all__ = ["Address", "EngineName", "GpusPerWorker", "Workers", "choose_engine"]

EngineName = Annotated[
    str,
    typer.Option("--engine", metavar="NAME", help="What carries the work: local (this process) or ray (a cluster)."),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", min=1, help="Processes of the engine ray.", show_default="one a core"),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="A running Ray cluster, or auto for the one that this machine belongs to. "
        "[dim]\\[default: one on this machine that ends with the command][/dim]",
        show_default=False,
    ),
]
GpusPerWorker = Annotated[
    float | None,
    typer.Option("--gpus-per-worker", metavar="G", min=0, help="GPUs of each process, or a share of one."),
]


def choose_engine(name: str, workers: int | None, address: str | None, gpus: float | None) -> Engine:
    """The engine that the options ask for."""
    from dubito.engines import get_engine

    return get_engine(name, workers=workers, address=address, gpus=gpus)
