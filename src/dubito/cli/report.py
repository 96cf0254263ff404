"""`dubito report`: one HTML file to look at, and every figure for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dubito.cli.failure import Debug, Trust
from dubito.cli.rows import require_matplotlib, require_writable
from dubito.cli.terminal import examples
from dubito.harmless import say
from dubito.zoo import find, place_for

__all__ = ["EXAMPLES", "report"]

EXAMPLES = examples(
    "dubito report runs/first",
    "dubito report runs/mnist --ood fashion-mnist --out mnist.html",
    note="The run is evaluated first, unless it holds an evaluation of these weights that fits. The file needs no "
    "other: it can be sent, opened without a network, and printed.",
)


def report(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            callback=find,
            help="Run folder that dubito train made, or an evaluation's.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The HTML file. [dim]\\[default: RUN/report.html][/dim]", show_default=False),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Draws of the network. [dim]\\[default: as evaluated, else 10][/dim]",
            show_default=False,
        ),
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Out-of-distribution data set: its images should be uncertain. May be given several times. "
            "[dim]\\[default: as evaluated][/dim]",
            show_default=False,
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where every figure goes as PNG and SVG. [dim]\\[default: RUN/figures][/dim]",
            show_default=False,
        ),
    ] = None,
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Write an HTML report: how good a network is, and how far its uncertainties can be trusted."""
    home = place_for(run)
    folder, page = figures or home / "figures", out or home / "report.html"
    if any(
        (run / name).exists() for name in ("config.yaml", "evaluation.safetensors")
    ):  # else there is more wrong with it
        for place in (page, folder / "figure"):
            require_writable(place)
    require_matplotlib()
    import torch

    from dubito.evaluation.report import report as write_report

    # Softplus outputs underflow to denormals, which cost a CPU several times an ordinary number.
    torch.set_flush_denormal(True)
    file = write_report(run, out=page, figures=folder, samples=samples, ood=ood or None, progress=True)
    say(f"The report is {file} ({file.stat().st_size / 1e6:.1f} MB); its figures are in {folder}.")
