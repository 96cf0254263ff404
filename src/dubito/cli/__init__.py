"""The command line: `dubito COMMAND`, a file for each command.

Nothing here imports torch before a command has begun its work, so that help appears at once.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from contextvars import copy_context
from typing import Annotated, NoReturn

import typer

from dubito import __version__
from dubito.cli import (
    bench,
    compare,
    data,
    decide,
    ensemble,
    evaluate,
    export,
    models,
    predict,
    prune,
    report,
    reproduce,
    serve,
    train,
    zoo,
)
from dubito.cli.failure import Debug, guarded
from dubito.cli.help import Command, Group
from dubito.cli.terminal import examples
from dubito.memory import keep_freed_memory

__all__ = ["app", "main", "run"]

EXAMPLES = examples(
    "dubito train --data digits --epochs 5 --out runs/first",
    "dubito predict runs/first digits --sort epistemic",
    note="`dubito COMMAND --help` explains a command.",
)

app = typer.Typer(
    name="dubito",
    cls=Group,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    epilog=EXAMPLES,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"dubito {__version__}")
        raise typer.Exit


@app.callback()
def dubito(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Bayesian convolutional networks that know what they do not know."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


COMMANDS = (
    *(train, predict, evaluate, decide, report, compare, reproduce),
    *(ensemble, prune, export, serve, bench, models, zoo),
)
"""The files of commands, in the order of the help; each has a function of its name."""
for file in COMMANDS:
    name = file.__name__.rpartition(".")[2]
    app.command(name, cls=Command, epilog=file.EXAMPLES)(getattr(file, name))
app.add_typer(data.app, name="data", cls=Group, epilog=data.EXAMPLES)


def run(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name, and give its exit code."""
    command = typer.main.get_command(app)
    # In a context of its own, with which --trust ends.
    context = copy_context()
    return context.run(guarded, lambda given: command.main(given, "dubito", standalone_mode=False), arguments)


def main() -> NoReturn:
    """The program `dubito`."""
    keep_freed_memory()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows only ASCII shows a question mark
    sys.exit(run(sys.argv[1:]))
