"""`dubito predict`: labels with their uncertainty for images, as a table on the terminal and in a file."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dubito.cli.failure import Debug, Trust
from dubito.cli.options import (
    STDOUT,
    Address,
    BatchSize,
    Checkpoint,
    Device,
    EngineName,
    GpusPerWorker,
    Samples,
    Seed,
    Workers,
    choose_device,
    choose_engine,
    flag,
    option,
    require_choice,
    run_argument,
    setting,
)
from dubito.cli.output import Table, writer
from dubito.cli.terminal import Column, examples, print_table, terminal_width
from dubito.errors import DataError, OptionError
from dubito.harmless import say
from dubito.progress import progress_bar
from dubito.scores import SCORES

if TYPE_CHECKING:
    from dubito.engines import Engine
    from dubito.runs.description import DataDescription
    from dubito.runs.run import Run
    from dubito.runs.validation import Calibration
    from dubito.tables import ChunkPredictor, Columns, Listing

EXAMPLES = examples(
    "dubito predict runs/first photos/ --out predictions.csv",
    "dubito predict runs/first 'photos/**/*.png' --sort epistemic --top 20",
    "dubito predict runs/first photos/ --calibrated --conformal",
    "dubito predict runs/first digits --samples 100",
    "dubito predict first.onnx photos/",
    "dubito predict zoo:lenet5-mnist photos/",
    "dubito predict runs/first s3://bucket/images --engine ray --workers 8 --out predictions/",
    note="An image that cannot be read becomes a row with its error. The columns of a file are path, "
    "label, confidence, aleatoric, epistemic, novelty, entropy, mutual_information, error, truth "
    "(if known: for data sets, and for files in sub-folders named like the classes), conformal "
    "(with --conformal), and p_CLASS, the probability of each class; after dubito decide also "
    "decision and reason. If --out is a folder, it gets a Parquet file for each chunk of images, "
    "and --resume continues it.",
)

METHODS = ("weights", "local", "moments", "mean")
MEASURES = ("confidence", "aleatoric", "epistemic", "novelty", "entropy", "mutual_information")
SORTABLE = (*SCORES, "path", "given")
DECIDED = ("decision", "reason")
"""Columns of runs that have a rule."""
WIDE = 100
"""Narrower terminals show neither novelty nor entropies."""
BATCHES = 8
"""Batches after which the progress bar moves on."""
REASONS = 5
"""How many errors are printed on stderr; the rows have them all."""


def predict(
    context: typer.Context,
    run: Annotated[
        Path,
        run_argument(
            "Run folder, folder written by dubito.save, .onnx file written by dubito export, or zoo:NAME (dubito zoo"
            " lists them).",
        ),
    ],
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES",
            help="Image files, folders (with sub-folders), quoted globs, lists of paths (.txt), tables of paths "
            "and labels (.csv), or of paths or image bytes (.parquet); each may be an address such as s3://... "
            "Or a data set: its name or .npz, whose test images are used.",
            show_default=False,
        ),
    ],
    samples: Samples = 10,
    method: Annotated[
        str,
        setting(
            "NAME",
            "How to predict: weights (draws of the weights), local (draws of activations), moments "
            "(means and variances, no draws) or mean (mean weights only).",
        ),
    ] = "weights",
    out: Annotated[
        Path | None,
        option(
            "FILE",
            "Write all rows to a .csv, .json, .jsonl (or .ndjson) or .parquet file; - prints them as .csv, and a "
            "folder gets them in parts. In a .csv, text that begins with = + - @ gets an apostrophe before it, and "
            "control characters are written out.",
        ),
    ] = None,
    resume: Annotated[bool, flag("--resume", "Continue a folder of parts.")] = False,
    chunk: Annotated[int, setting("N", "Images in each part, if --out is a folder.", min=1)] = 8192,
    sort: Annotated[
        str | None,
        option(
            "NAME",
            f"Order of the rows: {', '.join(SORTABLE[:-2])} (most uncertain first), path, or given (as in IMAGES).",
            default="whichever found mistakes best on the validation images",
        ),
    ] = None,
    calibrated: Annotated[
        bool,
        flag(
            "--calibrated",
            "Calibrate the probabilities, confidence and entropy by the temperature fitted to validation "
            "images. The other uncertainties do not change.",
        ),
    ] = False,
    conformal: Annotated[
        bool,
        flag(
            "--conformal",
            "Also give a set of classes that contains the true one with the coverage in calibration.json "
            "of the run. The set can be empty.",
        ),
    ] = False,
    top: Annotated[int, setting("N", "Rows to print, 0 for all. A file always gets all.", min=0)] = 20,
    batch_size: BatchSize = 256,
    seed: Seed = 0,
    checkpoint: Checkpoint = "best",
    engine: EngineName = "local",
    workers: Workers = None,
    address: Address = None,
    gpus_per_worker: GpusPerWorker = None,
    device: Device = "auto",
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Predict the class of images, with aleatoric and epistemic uncertainty."""
    require_choice("--sort", sort, (None, *SORTABLE))
    doubt = sort if sort in SCORES and sort not in MEASURES and not _in_parts(out) else None
    require_choice("--method", method, METHODS)
    carrier = choose_engine(engine, workers, address, gpus_per_worker)
    parts = _in_parts(out)
    if not parts and (engine != "local" or resume):
        what = "--resume" if resume else f"--engine {engine}"
        raise OptionError(f"{what} needs --out FOLDER, a folder for the parts, but --out is {out or 'not given'}.")
    write = writer(out) if out and not parts else None
    calibration: Calibration | None = None
    about_order = ""
    settings: dict[str, Any] = {}
    place = str(run if engine == "local" else run.resolve())  # which other processes find too
    make: Callable[[], ChunkPredictor]
    if run.suffix.lower() == ".onnx" and not run.is_dir():
        options = ("samples", "method", "seed", "checkpoint", "device", "calibrated", "conformal")
        _refuse(context, options, f"{run}, an exported network, which always runs in the same way on the CPU")
        from dubito.exporting import OnnxModel

        data, weights = OnnxModel(run).description.data, hashlib.sha256(run.read_bytes()).hexdigest()
        make = partial(_of_exported, place, batch_size, doubt)
    else:
        from dubito.saving import is_saved
        from dubito.tables import ChunkPredictor

        settings = {"samples": samples, "method": method, "seed": seed, "checkpoint": checkpoint}
        settings |= {"calibrated": calibrated, "conformal": conformal}
        if is_saved(run):
            data, weights = _saved(run, calibrated, conformal, checkpoint)
        else:
            data, weights, calibration = _of_run(run, calibrated, conformal, checkpoint)
        sort, about_order = _order(sort, calibration, run)
        at = str(choose_device(device)) if engine == "local" else device
        more = {"batch_size": batch_size, "device": at, "trust": trust, "doubt": doubt}
        make = partial(ChunkPredictor.of_run, place, **settings, **more)
    from dubito.tables import Listing

    if parts:
        assert out is not None
        describes = {"run": str(run.resolve()), "weights": weights, "settings": settings}
        _predict_parts(carrier, make, Listing(images, data, chunk), out, describes, resume)
        return
    from dubito.data import images_at_once

    listing = Listing(images, data, BATCHES * images_at_once(data.size, batch_size))
    whole = _table(_predict(carrier, make, listing))
    table = _sorted(whole, sort)
    if write:
        write(table)  # before anything is printed: whoever reads that may stop early
    if out != STDOUT and any(label is not None for label in table["label"]):
        if about_order:
            say(about_order, err=True)
        _show(table, top, written=write is not None)
    if write and out != STDOUT:
        say(f"Wrote {listing.images:,} rows to {out}.")
    _tell_errors([error for error in whole["error"] if error is not None], listing.images)


def _in_parts(out: Path | None) -> bool:
    """Whether the rows go into a folder, a part for every chunk, in the order of the images."""
    return out is not None and out != STDOUT and not out.suffix


def _predict_parts(
    engine: Engine, make: Callable[[], ChunkPredictor], listing: Listing, out: Path, run: dict[str, Any], resume: bool
) -> None:
    """Write a part for every chunk, and say how it went."""
    from dubito.tables import Parts, predict_parts

    inputs = {"arguments": listing.arguments, "images": listing.images, "digest": listing.digest}
    parts = Parts(out, {**run, "chunk": listing.size, "inputs": inputs}, resume=resume)
    began = time.perf_counter()
    total = predict_parts(engine, make, listing, parts)
    seconds = time.perf_counter() - began
    rate = f" ({total.fresh / seconds:,.0f} a second)" if total.fresh else ""
    before = f", {total.rows - total.fresh:,} of them in an earlier run" if total.fresh < total.rows else ""
    say(f"Predicted {total.rows:,} images{before}{rate}; {total.parts:,} parts are in {out}.")
    if total.errors:
        say(f"{total.errors:,} of {total.rows:,} images could not be read; their rows say why.", err=True)


def _of_exported(model: str, batch_size: int, doubt: str | None) -> ChunkPredictor:
    from dubito.exporting import OnnxModel
    from dubito.tables import ChunkPredictor, PredictFunction

    exported = OnnxModel(model)
    about = exported.description
    decides = about.rule is not None
    options: dict[str, Any] = {"decides": decides, "batch_size": batch_size, "doubt": doubt}
    return ChunkPredictor(PredictFunction(exported.predict, about.data, **options))


def _of_run(
    folder: Path, calibrated: bool, conformal: bool, checkpoint: str
) -> tuple[DataDescription, str, Calibration | None]:
    """What a run's images are like, the fingerprint of its weights, and what was fitted to its validation images."""
    from dubito.runs.run import Run

    run = Run.open(folder)
    if calibrated or conformal:
        calibration: Calibration | None = calibration_of(
            run, "--calibrated" if calibrated else "--conformal", checkpoint
        )
    else:
        calibration = run.find_calibration() if checkpoint == "best" else None
    return run.data, run.fingerprint(checkpoint), calibration


def _saved(folder: Path, calibrated: bool, conformal: bool, checkpoint: str) -> tuple[DataDescription, str]:
    """The same of a saved network, which has no validation images; an error if it lacks what is asked for."""
    from dubito.runs.attached import data_of, require_data
    from dubito.saving import open_folder, saved_fingerprint

    network, _ = open_folder(folder, checkpoint)
    saved_temperature_of(folder, calibrated, conformal)
    return require_data(data_of(network), "dubito predict"), saved_fingerprint(folder)


def calibration_of(run: Run, option: str, checkpoint: str) -> Calibration:
    """What was fitted to the run's validation images; made from them if it is missing."""
    from dubito.evaluation import validation_of

    if checkpoint != "best":
        raise OptionError(f"{option} needs the best weights, but --checkpoint is {checkpoint}; leave one of them out.")
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
        missing = f"{run} has no validation record of these weights to choose an order by"
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


def _refuse(context: typer.Context, options: Sequence[str], what: str) -> None:
    """Raise an error if one of these options was given, as it makes no sense for `what`."""
    for name in options:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise OptionError(f"--{name} cannot be used with {what}; leave it out.")


def _predict(engine: Engine, make: Callable[[], ChunkPredictor], listing: Listing) -> Columns:
    """The columns of all images, in the order of the arguments."""
    import numpy as np

    found = {}
    with progress_bar("Predicting", listing.images) as advance:
        for chunk, columns in engine.map(make, listing.chunks()):
            found[chunk.number] = columns
            advance(chunk.count)
    chunks = [found[number] for number in sorted(found)]
    return {name: np.concatenate([columns[name] for columns in chunks]) for name in chunks[0]}


def _table(columns: Columns) -> Table:
    """The columns as lists, None being a missing value; truth and decisions only where there are any."""
    table: Table = {
        name: values.tolist() if values.dtype == object else _numbers(values) for name, values in columns.items()
    }
    return {name: values for name, values in table.items() if name not in ("truth", *DECIDED) or any(values)}


def _numbers(values: Any) -> list[float | None]:
    """Numbers with as many digits as single precision has: 0.1, not 0.10000000149011612; NaN is None."""
    return [None if text == "nan" else float(text) for text in values.astype(str)]


def _sorted(table: Table, by: str | None) -> Table:
    """The rows in order, the most uncertain first, those with an error last; without the column of doubt."""
    doubt = table.pop("doubt", None)
    values = table.get(str(by), doubt)
    if values is None:
        return table
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
        say(f"{count - len(shown):,} more rows; --top 0 shows all{hint}.", err=width is None)


def _cell(table: Table, name: str, number: int) -> str:
    value = table[name][number]
    if value is None:
        return "(unreadable)" if name == "label" else ""
    if name == "error":
        return str(value).removeprefix(table["path"][number]).strip()
    if name in MEASURES:
        return f"{value:.5f}" if name in ("aleatoric", "epistemic") else f"{value:.4f}"
    return str(value)


def _tell_errors(reasons: Sequence[str], total: int) -> None:
    """Print why images could not be read; an error if none could."""
    failed = len(reasons)
    if not failed:
        return
    if failed == total:
        raise DataError(f"None of the {total} images could be read: {reasons[0]}" if total > 1 else reasons[0])
    for reason in reasons[:REASONS]:
        say(reason, err=True)
    more = f"; these are the first {REASONS} errors" if failed > REASONS else ""
    say(f"{failed:,} of {total:,} images could not be read{more}.", err=True)
