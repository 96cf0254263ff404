"""`dubito data list` and `dubito data get`: list the data sets, and download them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dubito.cli.failure import Debug
from dubito.cli.help import Command, Group
from dubito.cli.terminal import Column, examples, numbers, print_table, size
from dubito.harmless import say

if TYPE_CHECKING:
    from dubito.data import Status

EXAMPLES = examples("dubito data list", "dubito data get mnist cifar10")
_PLACES = (
    "Data sets are searched in DUBITO_MIRROR (a folder or URL), then in the cache (DUBITO_CACHE, "
    "or the user's cache folder). What is missing is downloaded from its official source into "
    "the cache."
)

app = typer.Typer(cls=Group, invoke_without_command=True, rich_markup_mode="rich")


@app.callback()
def data(context: typer.Context, debug: Debug = False) -> None:
    """List the data sets, or download one."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list", cls=Command, epilog=examples("dubito data list", note=_PLACES))
def list_(debug: Debug = False) -> None:
    """List the data sets with their sizes, and where they are on this machine."""
    from dubito.data import DATASETS, status

    counts = numbers("train", "test", "download")
    columns = (Column("name"), *numbers("classes"), Column("image"), *counts, Column("on disk"))
    found = {name: status(name) for name in DATASETS}
    rows = [
        (
            name,
            f"{info.num_classes}",
            f"{info.channels}x{info.size}x{info.size}",
            f"{info.train_count:,}",
            f"{info.test_count:,}",
            size(info.download_size),
            found[name].place,
        )
        for name, info in DATASETS.items()
    ]
    print_table(columns, rows)
    say()
    for name, info in DATASETS.items():
        # Titles and folders are too long for a column.
        folder = f" ({found[name].path})" if found[name].path else ""
        say(f"{name}: {info.title}{folder}")
    say("Your own: --data FOLDER with one sub-folder per class, a .csv with the columns path and label, or an .npz.")


@app.command("get", cls=Command, epilog=examples("dubito data get mnist", "dubito data get all", note=_PLACES))
def get(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Names of data sets (see dubito data list), or all.")
    ],
    debug: Debug = False,
) -> None:
    """Download data sets and check their checksums."""
    from dubito.data import DATASETS, dataset_info, fetch, status

    chosen = list(DATASETS) if "all" in names else names
    infos = [dataset_info(name) for name in chosen]  # a wrong name is told before anything is downloaded
    for info in infos:
        if info.files:
            fetch(info.name)
        say(_where(status(info.name)))


def _where(found: Status) -> str:
    if found.path is None:
        return f"{found.name}: comes with scikit-learn, nothing to download"
    return f"{found.name}: {found.path} ({found.place}, {size(found.bytes)})"
