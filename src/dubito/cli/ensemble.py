"""`dubito ensemble`: runs that are trained already as one run folder, which predicts with their mixture."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dubito.cli.failure import Debug, Trust
from dubito.cli.terminal import examples
from dubito.harmless import say
from dubito.zoo import find_all

__all__ = ["EXAMPLES", "ensemble"]

EXAMPLES = examples(
    "dubito ensemble runs/a runs/b runs/c --out runs/three",
    "dubito evaluate runs/three",
    note="The new folder holds copies of the best weights and is used as any other run. Its validation record is of "
    "the images that every member held out: train members with one --split-seed. dubito train --members trains an "
    "ensemble in one go.",
)


def ensemble(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", callback=find_all, help="Two or more run folders of the same data.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The new run folder.", show_default=False)],
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Join trained runs into one run folder: an ensemble that predicts as one network."""
    import torch

    from dubito.training import assemble

    torch.set_flush_denormal(True)  # softplus outputs underflow to denormals, which cost a CPU several times more
    made = assemble(runs, out, progress=True)
    say(f"The ensemble of {made.config.members} is in {out}.")
    say(f"Next: dubito evaluate {shlex.quote(str(out))}")
