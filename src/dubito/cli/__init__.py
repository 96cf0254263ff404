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


app.command("train", cls=Command, epilog=train.EXAMPLES)(train.train)
app.command("predict", cls=Command, epilog=predict.EXAMPLES)(predict.predict)
app.command("evaluate", cls=Command, epilog=evaluate.EXAMPLES)(evaluate.evaluate)
app.command("decide", cls=Command, epilog=decide.EXAMPLES)(decide.decide)
app.command("report", cls=Command, epilog=report.EXAMPLES)(report.report)
app.command("compare", cls=Command, epilog=compare.EXAMPLES)(compare.compare)
app.command("reproduce", cls=Command, epilog=reproduce.EXAMPLES)(reproduce.reproduce)
app.command("ensemble", cls=Command, epilog=ensemble.EXAMPLES)(ensemble.ensemble)
app.command("prune", cls=Command, epilog=prune.EXAMPLES)(prune.prune)
app.command("export", cls=Command, epilog=export.EXAMPLES)(export.export)
app.command("serve", cls=Command, epilog=serve.EXAMPLES)(serve.serve)
app.command("bench", cls=Command, epilog=bench.EXAMPLES)(bench.bench)
app.add_typer(data.app, name="data", cls=Group, epilog=data.EXAMPLES)
app.command("models", cls=Command, epilog=models.EXAMPLES)(models.models)
app.command("zoo", cls=Command, epilog=zoo.EXAMPLES)(zoo.zoo)


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
