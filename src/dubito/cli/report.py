"""`dubito report`: one HTML file to look at, and every figure for a paper."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from dubito.cli.failure import Debug, Trust
from dubito.cli.options import STDOUT, option, run_argument
from dubito.cli.output import file_for_stdout, require_matplotlib, require_writable
from dubito.cli.terminal import examples
from dubito.harmless import say
from dubito.zoo import place_for

EXAMPLES = examples(
    "dubito report runs/first",
    "dubito report runs/mnist --ood fashion-mnist --out mnist.html",
    "dubito report runs/mnist --out - > mnist.html",
    note="The run is evaluated first, unless it already has a matching evaluation. The report is a "
    "single file: it can be sent by mail, opened offline and printed.",
)


def report(
    run: Annotated[Path, run_argument("Run folder, the folder of an evaluation, or zoo:NAME.")],
    out: Annotated[
        Path | None,
        option("FILE", "HTML file to write; - prints it, and nothing else.", default="RUN/report.html"),
    ] = None,
    samples: Annotated[
        int | None,
        option("N", "Draws of the weights.", default="as in the stored evaluation, or 10", min=1),
    ] = None,
    ood: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Data set of other things, for which the network should be uncertain. Can be given several times.",
            default="as in the stored evaluation",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        option("FOLDER", "Folder for the figures, as PNG and SVG.", default="RUN/figures; none with --out -"),
    ] = None,
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Write an HTML report: how good a network is, and how far its uncertainties can be trusted."""
    home = place_for(run)
    printed = out == STDOUT
    page, folder = out or home / "report.html", figures or (None if printed else home / "figures")
    if any(
        (run / name).exists() for name in ("config.yaml", "evaluation.safetensors")
    ):  # else there is more wrong with it
        for place in ([] if printed else [page]) + ([folder / "figure"] if folder else []):
            require_writable(place)
    require_matplotlib()
    import torch

    from dubito.evaluation.report import report as write_report

    # Softplus outputs underflow to denormals, which cost a CPU several times an ordinary number.
    torch.set_flush_denormal(True)
    write = partial(write_report, run, figures=folder, samples=samples, ood=ood or None, progress=True)
    if printed:
        with file_for_stdout("report.html") as file:
            write(out=file)
        return
    file = write(out=page)
    say(
        f"The report is {file} ({file.stat().st_size / 1e6:.1f} MB); its figures are in {folder}. Open it in a browser."
    )
