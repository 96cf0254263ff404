"""The report: one HTML file that shows how good a network is and how far its uncertainties can be trusted.

Everything is inside the file: styles, script, figures as SVG, images as data URIs. Its content security policy forbids
the browser to ask the network for anything. Text reaches the page through a template that escapes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from dubito.errors import DataError, DubitoError, OptionError, RunError, missing
from dubito.evaluation.evaluation import Evaluation, evaluate, kept_settings
from dubito.evaluation.images import place_of
from dubito.evaluation.storage import is_kept
from dubito.files import write_atomically
from dubito.foreign import reason_of
from dubito.prediction import Predictor
from dubito.runs.run import Run
from dubito.zoo import find


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
    try:
        from dubito.evaluation.page import compose, draw
    except ModuleNotFoundError as error:
        raise missing("A report", error.name, "train") from None
    with torch.no_grad():
        shown, files = draw(evaluation, network, files=figures is not None)
        page = compose(evaluation, network, shown)
    for name, content in files.items():
        write_atomically(Path(figures or "") / name, content)
    write_atomically(Path(out), page)
    return Path(out)
