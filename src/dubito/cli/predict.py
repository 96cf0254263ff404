"""`dubito predict`: labels with their uncertainty for images, as a table on the terminal and in a file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dubito.cli.failure import Debug, Trust
from dubito.cli.inputs import Reader, find_images
from dubito.cli.rows import Table, writer
from dubito.cli.terminal import Column, examples, print_table, terminal_width
from dubito.errors import DataError, OptionError, unknown
from dubito.progress import progress_bar
from dubito.runs.config import LARGEST_SEED

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dubito.engines import Engine
    from dubito.exporting import OnnxModel
    from dubito.prediction import Prediction, Predictor
    from dubito.progress import Advance
    from dubito.runs.run import Run
    from dubito.runs.validation import Calibration

__all__ = ["EXAMPLES", "METHODS", "SORTABLE", "Seed", "calibration_of", "predict", "saved_temperature_of"]

EXAMPLES = examples(
    "dubito predict runs/first photos/ --out predictions.csv",
    "dubito predict runs/first 'photos/**/*.png' --sort epistemic --top 20",
    "dubito predict runs/first photos/ --calibrated --conformal",
    "dubito predict runs/first digits --samples 100",
    "dubito predict first.onnx photos/",
    note="An image that cannot be read becomes a row with its error. The columns of a file are path, label, "
    "confidence, aleatoric, epistemic, novelty, entropy, mutual_information, error, truth (of data sets, and of files "
    "in sub-folders that are called as the classes), conformal (with --conformal), and p_CLASS, the probability of "
    "each class; after dubito decide also decision and reason.",
)

METHODS = ("weights", "local", "moments", "mean")
MEASURES = ("confidence", "aleatoric", "epistemic", "novelty", "entropy", "mutual_information")
SORTABLE = ("epistemic", "aleatoric", "novelty", "entropy", "mutual_information", "confidence", "path", "given")
DECIDED = ("decision", "reason")
"""Columns of runs that have a rule."""
WIDE = 100
"""Narrower terminals show neither novelty nor entropies."""
REASONS = 5
"""How many errors are printed on stderr; the rows have them all."""


def _checked_seed(value: int) -> int:
    if value > LARGEST_SEED:
        raise OptionError(f"--seed is {value}, but must be at most {LARGEST_SEED}.")
    return value


Seed = Annotated[
    int,
    typer.Option(metavar="N", min=0, callback=_checked_seed, help="Random seed; the same seed repeats the result."),
]


def predict(
    context: typer.Context,
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="Run folder that dubito train made, folder of dubito.save, or .onnx file that dubito export made.",
            show_default=False,
        ),
    ],
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES",
            help="Image files, folders (and those in them), quoted globs, or a data set's name or .npz, of which "
            "the test images are taken.",
            show_default=False,
        ),
    ],
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="Draws of the network.")] = 10,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="weights (draws of the weights), local (draws of activations), moments (means and variances, without "
            "draws) or mean (the mean weights alone).",
        ),
    ] = "weights",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write every row to a .csv, .jsonl (or .ndjson) or .parquet file.", show_default=False
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Order of rows, in the table and the file: {', '.join(SORTABLE[:-2])} (the most uncertain first), "
            "path or given. [dim]\\[default: what found mistakes best on the run's validation images][/dim]",
            show_default=False,
        ),
    ] = None,
    calibrated: Annotated[
        bool,
        typer.Option(
            "--calibrated",
            help="Calibrate the probabilities, and with them confidence and entropy, by the temperature that suits "
            "validation images; the other uncertainties describe the draws and stay.",
        ),
    ] = False,
    conformal: Annotated[
        bool,
        typer.Option(
            "--conformal",
            help="Also give the set of classes that holds the true one as often as calibration.json of the run says; "
            "the set may be empty.",
        ),
    ] = False,
    top: Annotated[int, typer.Option(metavar="N", min=0, help="Rows of the table, 0 for all; the file has all.")] = 20,
    batch_size: Annotated[
        int, typer.Option(metavar="N", min=1, help="Images at once, or fewer if they are large.")
    ] = 256,
    seed: Seed = 0,
    checkpoint: Annotated[
        str, typer.Option(metavar="NAME", help="Weights: best (lowest validation NLL) or last.")
    ] = "best",
    engine: Annotated[str, typer.Option(metavar="NAME", help="What carries the work: local, this process.")] = "local",
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Predict the class of images, with aleatoric and epistemic uncertainty."""
    require_choice("--sort", sort, (None, *SORTABLE))
    require_choice("--method", method, METHODS)
    require_choice("--checkpoint", checkpoint, ("best", "last"))
    write = writer(out) if out else None
    calibration: Calibration | None = None
    temperature: float | None = None
    about_order = ""
    if run.suffix.lower() == ".onnx" and not run.is_dir():
        options = ("samples", "method", "seed", "checkpoint", "device", "calibrated", "conformal")
        _refuse(context, options, f"{run}, an exported network that runs as it is on the CPU")
        from dubito.exporting import OnnxModel

        exported = OnnxModel(run)
        data, predict_all = exported.description.data, partial(_predict_exported, exported)
    else:
        import torch

        from dubito.engines import get_engine
        from dubito.prediction import Predictor
        from dubito.runs.attached import data_of, require_data
        from dubito.runs.run import Run
        from dubito.saving import open_folder

        # Softplus outputs underflow to denormals, which cost a CPU several times an ordinary number.
        torch.set_flush_denormal(True)
        network, source = open_folder(run, checkpoint)
        predictor = Predictor(network.to(choose_device(device)), samples, method, seed, batch_size=batch_size)
        predictor.use_fitted(source, checkpoint)
        if not isinstance(source, Run):
            temperature = saved_temperature_of(source, calibrated, conformal)
        elif calibrated or conformal:
            calibration = calibration_of(source, "--calibrated" if calibrated else "--conformal", checkpoint)
            temperature = calibration.temperature if calibrated else None
        else:
            calibration = source.find_calibration() if checkpoint == "best" else None
        sort, about_order = _order(sort, calibration, run)
        data = require_data(data_of(network), "dubito predict")
        predict_all = partial(_predict, get_engine(engine), predictor)
    from dubito.data import images_at_once

    reader = Reader(find_images(images, data), data)
    with progress_bar("Predicting", len(reader.images)) as advance:
        prediction = predict_all(reader, images_at_once(data.size, batch_size), advance)
    sets = None
    if prediction is not None and calibration is not None and conformal:
        sets = _sets(prediction, calibration, data.class_names)
    if prediction is not None and temperature is not None:
        from dubito.prediction.calibrated import calibrate

        prediction = calibrate(prediction, temperature)
    table = _sorted(_table(reader, prediction, data.class_names, sets), sort)
    if write:
        write(table)  # before anything is printed: whoever reads that may stop early
    if prediction is not None:
        if about_order:
            typer.echo(about_order, err=True)
        _show(table, top, written=write is not None)
    if write:
        typer.echo(f"Wrote {len(reader.images):,} rows to {out}.")
    _tell_errors(reader)


def calibration_of(run: Run, option: str, checkpoint: str) -> Calibration:
    """What was fitted to the run's validation images; made from them if it is missing."""
    from dubito.evaluation import validation_of

    if checkpoint != "best":
        raise OptionError(f"{option} is fitted to the best weights, but --checkpoint is {checkpoint}; leave one out.")
    return run.find_calibration() or validation_of(run, progress=True).calibration


def saved_temperature_of(folder: Path, calibrated: bool, conformal: bool = False) -> float | None:
    """What calibrates a saved network, if that is asked for; None for nothing."""
    from dubito.saving import saved_temperature

    found = saved_temperature(folder) if calibrated else None
    if conformal or (calibrated and found is None):
        option, lack = ("--conformal", "validation record") if conformal else ("--calibrated", "calibrated predictor")
        raise OptionError(f"{option} is given, but {folder} is a saved network without a {lack}; leave it out.")
    return found


def _order(sort: str | None, calibration: Calibration | None, run: Path) -> tuple[str, str]:
    """By what the rows are sorted, and a sentence about it: what was chosen, or that a choice finds no mistakes."""
    if calibration is None:
        missing = f"there is no validation record of these weights of {run} to choose an uncertainty by"
        return (sort, "") if sort else ("given", f"Rows are in the order given: {missing}.")
    images, best = f"{calibration.images:,} validation images", calibration.best_score
    if sort is None and best is None:
        return "given", f"Rows are in the order given: no uncertainty found mistakes on {images} better than chance."
    chosen = sort or str(best)
    score = calibration.scores.get(chosen)
    if score is None or score.auroc is None:
        return chosen, ""
    if sort is None:
        return chosen, f"Sorted by {chosen}, which found mistakes best on {images} (AUROC {score.auroc:.3f})."
    if score.beats_chance:
        return chosen, ""
    low, high = score.interval
    return chosen, (
        f"Warning: {chosen} found mistakes no better than chance on {images} (AUROC {score.auroc:.3f}, 95 % interval "
        f"{low:.3f} to {high:.3f})."
    )


def _sets(prediction: Prediction, calibration: Calibration, class_names: Sequence[str]) -> list[str]:
    """The conformal set of each image, the most probable class first."""
    from dubito.evaluation.calibration import NO_CLASS, Conformal

    return [", ".join(row) or NO_CLASS for row in Conformal.of(calibration).named(prediction.probs, class_names)]


def require_choice(name: str, value: str | None, valid: Sequence[str | None]) -> None:
    if value not in valid:
        raise OptionError(unknown(name, value, [choice for choice in valid if choice is not None]))


def choose_device(name: str) -> torch.device:
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
        return device
    except (RuntimeError, AssertionError):  # the latter if torch was built without
        raise OptionError(f"--device is {name!r}, which this machine does not have; try auto or cpu.") from None


def _refuse(context: typer.Context, options: Sequence[str], what: str) -> None:
    """Raise an error if one of these options was given, as it makes no sense for `what`."""
    for name in options:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise OptionError(f"--{name} makes no sense for {what}; leave it out.")


def _predict_exported(model: OnnxModel, reader: Reader, batch_size: int, advance: Advance) -> Prediction | None:
    from dubito.prediction import Prediction

    parts = [model.predict(images) for images in reader.byte_batches(batch_size, advance)]
    return Prediction.cat(parts) if parts else None


def _predict(
    engine: Engine, predictor: Predictor, reader: Reader, batch_size: int, advance: Advance
) -> Prediction | None:
    """The prediction of every image that can be read; None if there is none."""
    return engine.predict(predictor, reader.batches(batch_size, advance))


def _table(
    reader: Reader, prediction: Prediction | None, class_names: Sequence[str], sets: Sequence[str] | None = None
) -> Table:
    """A row for each image, in the order of the arguments."""
    count = len(reader.images)
    readable = [number for number in range(count) if number not in reader.errors]

    def column(values: Sequence[Any]) -> list[Any]:
        whole: list[Any] = [None] * count
        for number, value in zip(readable, values, strict=True):
            whole[number] = value
        return whole

    def of(tensor: Tensor | None) -> list[Any]:
        return [None] * count if tensor is None else column(_numbers(tensor))

    labels = [] if prediction is None else [class_names[index] for index in prediction.label.tolist()]
    table: Table = {"path": [image.name for image in reader.images], "label": column(labels)}
    for name in MEASURES:
        table[name] = of(getattr(prediction, name, None))
    for name in DECIDED:
        words = getattr(prediction, name, None)
        if words is not None:
            table[name] = column(words.tolist())
    table["error"] = [reader.errors.get(number) for number in range(count)]
    if any(image.truth is not None for image in reader.images):
        table["truth"] = [image.truth for image in reader.images]
    if sets is not None:
        table["conformal"] = column(sets)
    for index, name in enumerate(class_names):
        table[f"p_{name}"] = of(prediction.probs[:, index] if prediction is not None else None)
    return table


def _numbers(tensor: Tensor) -> list[float]:
    """The numbers of a tensor with as many digits as single precision has: 0.1, not 0.10000000149011612."""
    return [float(text) for text in tensor.float().cpu().numpy().astype(str)]


def _sorted(table: Table, by: str | None) -> Table:
    """The rows in order, the most uncertain first, those with an error last."""
    if by in (None, "given") or by not in table:
        return table
    values = table[by]
    sign = 1 if by == "confidence" else -1

    def key(number: int) -> Any:
        if by == "path":
            return values[number]
        return (True, 0.0) if values[number] is None else (False, sign * values[number])

    order = sorted(range(len(values)), key=key)
    return {name: [column[number] for number in order] for name, column in table.items()}


def _show(table: Table, top: int, written: bool) -> None:
    """The first rows on the terminal."""
    count = len(table["path"])
    shown = range(count if top == 0 else min(top, count))
    width = terminal_width()
    columns = {"path": Column("path", fold=True), "label": Column("label")}
    columns |= {name: Column(name) for name in DECIDED if name in table and (name == "decision" or width is None)}
    if "truth" in table:
        columns["truth"] = Column("truth")
    if "conformal" in table:
        columns["conformal"] = Column("conformal set", fold=True)
    measures = MEASURES if width is None or width >= WIDE else MEASURES[:3]
    known = [name for name in measures if any(value is not None for value in table[name])]  # runs may have no novelty
    columns |= {name: Column(name.replace("_", " "), number=True) for name in known}
    if width is None and any(table["error"][number] for number in shown):
        columns["error"] = Column("error")  # a terminal has no room, but gets the reasons below the table
    print_table(list(columns.values()), [[_cell(table, name, number) for name in columns] for number in shown])
    if count > len(shown):
        hint = "" if written else ", --out FILE writes them"
        # A program that reads the table gets nothing but the table.
        typer.echo(f"{count - len(shown):,} more rows; --top 0 shows all{hint}.", err=width is None)


def _cell(table: Table, name: str, number: int) -> str:
    value = table[name][number]
    if value is None:
        return "(unreadable)" if name == "label" else ""
    if name == "error":
        return str(value).removeprefix(table["path"][number]).strip()
    if name in MEASURES:
        return f"{value:.5f}" if name in ("aleatoric", "epistemic") else f"{value:.4f}"
    return str(value)


def _tell_errors(reader: Reader) -> None:
    """Print which images could not be read; an error if none could."""
    total, failed = len(reader.images), len(reader.errors)
    if not failed:
        return
    reasons = [reader.errors[number] for number in sorted(reader.errors)]
    if failed == total:
        raise DataError(f"None of the {total} images could be read: {reasons[0]}" if total > 1 else reasons[0])
    for reason in reasons[:REASONS]:
        typer.echo(reason, err=True)
    more = f"; these were the first {REASONS}" if failed > REASONS else ""
    typer.echo(f"{failed:,} of {total:,} images could not be read{more}.", err=True)
