"""The report: one HTML file that shows how good a network is and how far its uncertainties can be trusted.

Everything is inside the file: styles, script, figures as SVG, images as data URIs. Its content security policy forbids
the browser to ask the network for anything. Text reaches the page through a template that escapes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dubito import __version__
from dubito.errors import DataError, DubitoError, OptionError, RunError, missing
from dubito.evaluation.evaluating import evaluate
from dubito.evaluation.evaluation import Evaluation, kept_settings
from dubito.evaluation.headline import cards, title_and_lead
from dubito.evaluation.images import place_of
from dubito.evaluation.sections import made, sections
from dubito.evaluation.storage import is_kept
from dubito.files import write_atomically
from dubito.foreign import reason_of
from dubito.prediction import Predictor
from dubito.runs.run import Run
from dubito.zoo import find

if TYPE_CHECKING:
    from dubito.evaluation.illustrations import Illustration


@dataclass
class _Drawn:
    """The figures of each section, drawn and ready for the page."""

    files: dict[str, bytes] = field(default_factory=dict)
    sections: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def report(
    model: nn.Module | Predictor | str | os.PathLike[str],
    batches: Iterable[tuple[Tensor, Tensor]] | None = None,
    out: str | os.PathLike[str] = "report.html",
    *,
    validation: Iterable[tuple[Tensor, Tensor]] | None = None,
    figures: str | os.PathLike[str] | None = None,
    samples: int | None = None,
    ood: Sequence[str] | None = None,
    progress: bool = False,
) -> Path:
    """Write one HTML file that shows how good a network is, and how far its uncertainties can be trusted.

    Args:
        model: any network, with or without Bayesian layers, or a predictor, whose own draws count; or a run folder.
        batches: for a network: pairs of inputs and labels of test images.
        out: the file.
        validation: for a network: pairs for images that were used neither for its training nor in `batches`. They
            calibrate the network, and its uncertainties are compared with theirs.
        figures: a folder for every figure as PNG and SVG.
        samples: draws of the network; None for 10, or as in the stored evaluation of a run.
        ood: for a run folder: data sets of other things; None for those of its stored evaluation.
        progress: show a progress bar, on stderr.

    The report has the names of the classes if :func:`dubito.attach_data` gave them to the network.
    """
    if isinstance(model, (str, os.PathLike)):
        if batches is not None or validation is not None:
            raise OptionError("batches and validation can only be given with a network: a run has its own images.")
        evaluation = evaluation_of(model, samples=samples, ood=ood, progress=progress)
        try:
            return write_report(evaluation, out, figures)
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            if isinstance(error, DubitoError):
                raise
            raise RunError(f"The evaluation in {model} is damaged ({reason_of(error)}): evaluate it again.") from error
    if ood is not None:
        raise OptionError("ood can only be given with a run folder.")
    evaluation = evaluate(model, batches, validation=validation, samples=samples or 10, progress=progress)
    return write_report(evaluation, out, figures, model if isinstance(model, nn.Module) else None)


def evaluation_of(
    folder: str | os.PathLike[str],
    *,
    samples: int | None = None,
    ood: Sequence[str] | None = None,
    progress: bool = False,
) -> Evaluation:
    """The evaluation in a run folder. If there is none, or one of other weights, a new one is made and stored there.

    `samples` and `ood` None take whatever was evaluated, else 10 draws and no other data. If they differ from what is
    stored, all other settings stay as they were. The folder of an ensemble's evaluation is no run: it can be read only.
    """
    folder = find(folder)
    stored = _stored(folder, keep=ood is None)
    if stored is None:
        evaluation = evaluate(Run.open(folder), samples=samples or 10, ood=ood or (), progress=progress)
    else:
        same_draws = samples in (None, stored.metrics["settings"]["samples"])
        same_others = ood is None or set(map(place_of, ood)) == set(map(place_of, stored.ood))
        if same_draws and same_others and stored.is_current:
            return stored
        kept = kept_settings(stored)
        given = {"samples": samples, "ood": ood}
        kept |= {name: value for name, value in given.items() if value is not None}
        evaluation = evaluate(stored.runs, progress=progress, **kept)
    evaluation.keep(folder)
    return evaluation


def _stored(folder: Path, keep: bool) -> Evaluation | None:
    """The evaluation in a folder; None if it is a run without one, or with one that cannot be read.

    If its images are not found any more, that is an error only if it is to be kept.
    """
    try:
        return Evaluation.load(folder)
    except DataError:
        if keep or not (folder / "config.yaml").exists():
            raise
    except RunError:
        if not (folder / "config.yaml").exists() and is_kept(folder):
            raise
        Run.open(folder)  # an error that says what is wrong with it, if anything is
    return None


def write_report(
    evaluation: Evaluation,
    out: str | os.PathLike[str],
    figures: str | os.PathLike[str] | None = None,
    network: nn.Module | None = None,
) -> Path:
    """Write the report of an evaluation to `out`, and every figure as PNG and SVG into the folder `figures`.

    `network` is the one whose posterior is shown; that of a run is known.
    """
    if evaluation.runs:
        network = evaluation.members[0].load(evaluation.metrics["settings"]["checkpoint"])
    with torch.no_grad():
        drawn = _draw(evaluation, network, files=figures is not None)
        page = _page(evaluation, network, drawn)
    for name, content in drawn.files.items():
        write_atomically(Path(figures or "") / name, content)
    write_atomically(Path(out), page)
    return Path(out)


def _draw(evaluation: Evaluation, network: nn.Module | None, files: bool) -> _Drawn:
    """Every figure once: its files, if wanted, and what goes into the page."""
    try:
        from dubito.evaluation import style
        from dubito.evaluation.illustrations import has_images, illustrations
    except ModuleNotFoundError as error:
        raise missing("A report", error.name, "train") from None
    drawn = _Drawn()
    for section, found in illustrations(evaluation, network).items():
        shown = drawn.sections.setdefault(section, [])
        for illustration in found:
            # On the page a script draws the scatter plot with its images, and galleries adapt to the screen.
            is_inline = section != "images" and (illustration.name != "scatter" or not has_images(evaluation))
            if not (files or is_inline):
                continue
            figure = style.draw(illustration.paint, illustration.size)
            svg = style.to_svg(figure, illustration.name)
            if files:
                drawn.files[f"{illustration.name}.png"] = style.to_png(figure)
                drawn.files[f"{illustration.name}.svg"] = svg.encode()
            if is_inline:
                shown.append(_inline(illustration, svg))
    return drawn


def _inline(illustration: Illustration, svg: str) -> dict[str, Any]:
    from markupsafe import Markup

    from dubito.evaluation.style import inline_svg

    return {
        "name": illustration.name,
        "title": illustration.title,
        "caption": illustration.caption,
        "svg": Markup(inline_svg(svg, illustration.name, illustration.title)),
    }


def _page(evaluation: Evaluation, network: nn.Module | None, drawn: _Drawn) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    loader = PackageLoader("dubito.evaluation", "templates")
    templates = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    title, lead = title_and_lead(evaluation, network)
    bootstrap = evaluation.metrics["settings"]["bootstrap"]
    covers = evaluation.test.intervals_cover
    page: str = templates.get_template("report.html").render(
        version=__version__,
        title=title,
        lead=lead,
        cards=cards(evaluation),
        interval_note=f"Intervals are of 95 % and cover the test {covers} ({bootstrap:,} resamples).",
        sections=sections(evaluation, network, drawn.sections),
        made=made(evaluation),
        palette=Markup(_palette()),
        css=Markup(_source("report.css")),
        js=Markup(_source("report.js")),
    )
    return page


def _source(name: str) -> str:
    from importlib.resources import files

    return (files("dubito.evaluation") / "templates" / name).read_text(encoding="utf-8")


def _palette() -> str:
    """The figures' colours as CSS variables, for both themes."""
    from dubito.evaluation.style import COLORS, DARK

    def block(colors: dict[str, str], page: str, card: str, scheme: str) -> str:
        named = {**{name.replace("_", "-"): color for name, color in colors.items()}, "page": page, "card": card}
        return "".join(f"--{name}: {color}; " for name, color in named.items()) + f"color-scheme: {scheme}"

    light = block(COLORS, "#ffffff", "#fbfcfd", "light")
    dark = block(DARK, "#0d1117", "#151b23", "dark")
    return (
        f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        f':root[data-theme="light"] {{ {light} }}\n:root[data-theme="dark"] {{ {dark} }}'
    )
