"""`dubito ensemble`: runs that are trained already as one run folder, which predicts with their mixture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from dubito.cli.failure import Debug, Trust
from dubito.cli.options import option, runs_argument
from dubito.cli.terminal import examples, quoted
from dubito.harmless import say

EXAMPLES = examples(
    "dubito ensemble runs/a runs/b runs/c --out runs/three",
    "dubito evaluate runs/three",
    note="The new folder holds copies of the best weights and is used like any other run. Train the "
    "members with the same --split-seed: only images that no member was trained on can validate "
    "the ensemble. dubito train --members trains an ensemble in one step.",
)


def ensemble(
    runs: Annotated[list[Path], runs_argument("Two or more run folders trained on the same data.")],
    out: Annotated[Path, option("FOLDER", "The new run folder.")],
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Join trained runs into one run folder: an ensemble that predicts as one network."""
    import torch

    from dubito.training import assemble

    torch.set_flush_denormal(True)  # softplus outputs underflow to denormals, which cost a CPU several times more
    made = assemble(runs, out, progress=True)
    say(f"The ensemble of {made.config.members} is in {out}.")
    say(f"Next: dubito report {quoted(out)}")
