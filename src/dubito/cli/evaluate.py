"""`dubito evaluate`: how good a run's probabilities and uncertainties are on test images, as tables and as JSON."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dubito.cli.failure import Debug, Trust
from dubito.cli.options import (
    STDOUT,
    Address,
    BatchSize,
    Bootstrap,
    Checkpoint,
    Data,
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
    runs_argument,
    setting,
)
from dubito.cli.output import json_writer, require_writable
from dubito.cli.terminal import Column, examples, numbers, print_table, quoted
from dubito.errors import OptionError, RunError
from dubito.harmless import say
from dubito.zoo import place_for

if TYPE_CHECKING:
    from dubito.evaluation import Evaluation

EXAMPLES = examples(
    "dubito evaluate runs/first --ood mnist --out metrics.json",
    "dubito evaluate runs/mnist --ood fashion-mnist --noise 0,0.1,0.2,0.3",
    "dubito evaluate runs/a runs/b runs/c --ensemble",
    note="Predictions and metrics are stored in the run folder (evaluation.json, "
    "evaluation.safetensors), where dubito report and dubito compare find them. Intervals are 95 "
    "% intervals over images and draws. Temperature scaling and conformal sets are fitted on the "
    "validation images.",
)

TITLES = {
    "accuracy": "accuracy",
    "top5_accuracy": "top-5 accuracy",
    "nll": "negative log-likelihood",
    "brier": "Brier score",
    "ece": "calibration error, 15 bins of equal width",
    "ece_equal_mass": "calibration error, 15 bins of equal mass",
    "aleatoric": "aleatoric uncertainty",
    "epistemic": "epistemic uncertainty",
    "entropy": "entropy",
    "mutual_information": "mutual information",
}
CONFUSIONS = 5
"""How many of the most frequent confusions are printed; the whole matrix is in the JSON."""

OWN_FILES = (
    *("config.yaml", "environment.json", "metrics.csv", "posterior.csv", "best.safetensors", "last.safetensors"),
    *("validation.safetensors", "calibration.json", "evaluation.json", "evaluation.safetensors", "report.html"),
    "decision.json",
)
"""The files of a run folder, which --out must not overwrite."""


def evaluate(
    runs: Annotated[list[Path], runs_argument("Run folders, or zoo:NAME (dubito zoo lists them).")],
    ensemble: Annotated[bool, flag("--ensemble", "Evaluate the runs together, as one ensemble.")] = False,
    data: Data = None,
    samples: Samples = 10,
    ood: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Data set of other things, for which the network should be uncertain. Can be given several times.",
        ),
    ] = None,
    noise: Annotated[
        str,
        setting("LIST", "Levels of pixel noise (standard deviations, for pixels from 0 to 1), or none."),
    ] = "0,0.1,0.2,0.3",
    noise_images: Annotated[int, setting("N", "Number of test images for the noise test; 0 for all.", min=0)] = 2000,
    coverage: Annotated[
        float | None,
        option(
            "SHARE",
            "How often a conformal set should contain the true class.",
            default="chosen from the validation accuracy, at least 0.9",
        ),
    ] = None,
    calibrated: Annotated[
        bool,
        flag("--calibrated", "Evaluate calibrated probabilities (temperature scaling on validation images)."),
    ] = False,
    bootstrap: Bootstrap = 1000,
    seed: Seed = 0,
    checkpoint: Checkpoint = "best",
    out: Annotated[
        Path | None,
        option("FILE", "Also write the metrics to a .json file; - prints them, and nothing else."),
    ] = None,
    folder: Annotated[
        Path | None,
        option(
            "FOLDER",
            "Where to store the evaluation.",
            default="the run folder, for zoo:NAME a folder NAME; for an ensemble, ensemble-NAMES beside the first run",
        ),
    ] = None,
    top: Annotated[int, setting("N", "Number of classes to show, worst first; 0 for all.", min=0)] = 10,
    batch_size: BatchSize = 256,
    engine: EngineName = "local",
    workers: Workers = None,
    address: Address = None,
    gpus_per_worker: GpusPerWorker = None,
    device: Device = "auto",
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Measure accuracy, calibration and both uncertainties of a run on test images."""
    levels = _levels(noise)
    carrier = choose_engine(engine, workers, address, gpus_per_worker)
    groups = [runs] if ensemble else [[run] for run in runs]
    if len(groups) > 1 and (out or folder):
        raise OptionError(f"--{'out' if out else 'folder'} needs a single evaluation: give one run, or add --ensemble.")
    homes = {place.resolve() for place in (*runs, *(folder or _home(group) for group in groups))}
    if out and out.resolve().parent in homes and out.name in OWN_FILES:
        raise OptionError(f"--out is {out}, which the run itself uses: choose another name.")
    write = json_writer(out) if out else None
    import torch

    from dubito import evaluation
    from dubito.training import Run

    for run in runs:
        Run.open(run)  # all of them, before hours go into the first
    for group in groups:
        home = folder or _home(group)
        require_writable(home / "evaluation.json")
        _warn_of_loss(home, data or Run.open(group[0]).config.data, ood or [], levels)

    # Softplus outputs underflow to denormals, which cost a CPU several times an ordinary number.
    torch.set_flush_denormal(True)
    for number, group in enumerate(groups):
        found = evaluation.evaluate(
            group,
            data=data,
            samples=samples,
            ood=ood or (),
            noise=levels,
            noise_images=noise_images or None,
            coverage=coverage,
            calibrated=calibrated,
            bootstrap=bootstrap,
            seed=seed,
            checkpoint=checkpoint,
            batch_size=batch_size,
            device=choose_device(device),
            progress=True,
            engine=carrier,
        )
        home = folder or _home(group)
        if write:
            write(found.metrics)
        found.save(home)  # before printing, which fails if the reader of a pipe has gone
        if out == STDOUT:
            return
        if number:
            say()
        show(found, top)
        say(f"\nThe evaluation is in {home}{f', its metrics in {out}' if out else ''}.")
        say(f"Next: dubito report {quoted(home)}")


def _levels(text: str) -> tuple[float, ...]:
    if text.strip().lower() in ("", "none"):
        return ()
    try:
        return tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise OptionError(f"--noise is {text!r}, but must be numbers separated by commas, such as 0,0.1,0.2.") from None


def _home(group: Sequence[Path]) -> Path:
    """The folder that an evaluation is written to."""
    if len(group) == 1:
        return place_for(group[0])
    from dubito.evaluation.storage import describe, is_kept

    names = "-".join(run.resolve().name for run in group)
    wanted = sorted(run.resolve() for run in group)
    first = place_for(group[0]).resolve().parent / f"ensemble-{names}"[:200]
    for number in itertools.count(1):
        home = first if number == 1 else first.with_name(f"{first.name}-{number}")
        try:
            if not is_kept(home) or sorted((home / run).resolve() for run in describe(home)["runs"]) == wanted:
                return home
        except (RunError, KeyError, TypeError):
            return home  # where no evaluation of others is
    raise AssertionError


def _warn_of_loss(home: Path, data: str, ood: Sequence[str], noise: Sequence[float]) -> None:
    """Warn, before the work begins, about parts of a stored evaluation that the new one will not have."""
    from dubito.evaluation.images import found_at, place_of
    from dubito.evaluation.storage import describe

    try:
        metrics = describe(home)["metrics"]
        other = metrics["settings"]["data"]
        places = metrics["settings"].get("places", {})
        lost = [] if found_at(other, places) in (data, place_of(data)) else [f"test images of {other}"]
        given = set(map(place_of, ood))
        lost += [f"--ood {name}" for name in metrics["ood"] if place_of(found_at(name, places)) not in given]
        levels = [level["gamma"] for level in metrics["noise"] if level["gamma"] not in noise]
        lost += [f"--noise {','.join(f'{gamma:g}' for gamma in levels)}"] if levels else []
    except (RunError, KeyError, TypeError):
        return  # there is none that could be lost
    if lost:
        say(
            f"The evaluation in {home} includes {', '.join(lost)}. The new one does not, and will replace "
            "it; give --folder to keep both.",
            err=True,
        )


def show(found: Evaluation, top: int) -> None:
    """Print an evaluation as tables."""
    metrics = found.metrics
    say(_wrapped(_headline(found)))
    _show_metrics(metrics)
    _show_errors(metrics)
    for name, scores in metrics["ood"].items():
        _show_other(name, scores)
    _show_noise(metrics)
    _show_calibration(metrics)
    _show_classes(metrics, top)
    _show_confusions(metrics, found.class_names)


def _headline(found: Evaluation) -> str:
    settings = found.metrics["settings"]
    what = ", ".join(dict.fromkeys(f"{run['inference']} {run['model']}" for run in settings["runs"]))
    who = f"Ensemble of {len(found.runs)} runs" if len(found.runs) > 1 else str(found.runs[0].path)
    if len(found.runs) == 1 and found.runs[0].is_ensemble:
        who += f", an ensemble of {len(found.members)}"
    temperature = settings["temperature"]
    trained = f", trained at temperature {temperature:g}" if temperature is not None else ""
    if len(settings["runs"]) == 1 and "free_energy" in (run := settings["runs"][0]):
        trained += f" to a free energy of {run['free_energy']:.3f} nats an image, {run['kl_per_image']:.3f} of them KL"
    draws = found.test.prediction.samples
    scaled = f", probabilities calibrated with T = {found.test.temperature:.3f}" if found.test.temperature != 1 else ""
    return f"{who} ({what}{trained}): {_images(found)}, {draws} draw{'s' * (draws != 1)}{scaled}."


def _images(found: Evaluation) -> str:
    """Which images are measured."""
    from dubito.evaluation.images import ALL

    count, settings = f"{len(found.test):,}", found.metrics["settings"]
    if found.test.name.endswith(ALL):
        return f"all {count} images of {settings['data']}"
    share = f" (the {settings['set_aside']:.0%} set aside for testing)" if settings.get("set_aside") else ""
    return f"{count} images of {found.test.name}{share.replace('%', ' %')}"


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _range(edges: Sequence[float | None], digits: int = 4) -> str:
    return f"{_number(edges[0], digits)} to {_number(edges[1], digits)}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)


def _title(text: str) -> None:
    say(f"\n{text}")


def _show_metrics(metrics: dict[str, Any]) -> None:
    say()
    columns = (Column("metric"), *numbers("value", "95 % interval"))
    rows = []
    for key, title in TITLES.items():
        if key in metrics:
            digits = 5 if key in ("aleatoric", "epistemic") else 4
            rows.append((title, _number(metrics[key], digits), _range(metrics["intervals"][key], digits)))
    print_table(columns, rows)


def _show_errors(metrics: dict[str, Any]) -> None:
    from dubito.evaluation.summary import about_chance

    wrong = sum(sum(row) for row in metrics["confusion"]) - sum(row[i] for i, row in enumerate(metrics["confusion"]))
    _title(f"How well each uncertainty finds the {wrong:,} mistakes (AURC: risk-coverage area)")
    columns = (Column("uncertainty"), *numbers("AUROC", "interval", "AURC", "interval", "excess"))
    rows = [
        (
            _words(name),
            _number(row["auroc"], 3),
            _range(row["auroc_interval"], 3),
            _number(row["aurc"], 5),
            _range(row["aurc_interval"], 5),
            _number(row["excess_aurc"], 5),
        )
        for name, row in metrics["errors"].items()
    ]
    print_table(columns, rows)
    if sentence := about_chance(metrics["errors"]):
        say(_wrapped(sentence))


def _words(name: str) -> str:
    return "1 - confidence" if name == "confidence" else name.replace("_", " ")


def _show_other(name: str, scores: dict[str, Any]) -> None:
    _title(f"How well each uncertainty separates {name} from the test images")
    columns = (Column("uncertainty"), *numbers("AUROC", "interval", "AUPR", "FPR at 95 % TPR"))
    rows = [
        (_words(key), _number(row["auroc"]), _range(row["auroc_interval"]), _number(row["aupr"]), _number(row["fpr95"]))
        for key, row in scores.items()
    ]
    print_table(columns, rows)


def _show_noise(metrics: dict[str, Any]) -> None:
    if not metrics["noise"]:
        return
    _title(f"Noise on the pixels of {metrics['settings']['noise_images']:,} test images")
    names = ("accuracy", "aleatoric", "epistemic", "entropy", "mutual_information")
    columns = numbers("noise", *map(_words, names))
    rows = [
        (
            f"{level['gamma']:g}",
            *(_number(level[name], 5 if name in ("aleatoric", "epistemic") else 4) for name in names),
        )
        for level in metrics["noise"]
    ]
    print_table(columns, rows)


def _show_calibration(metrics: dict[str, Any]) -> None:
    scaling, conformal = metrics["temperature_scaling"], metrics["conformal"]
    if scaling is None:
        return
    _title(
        f"Calibrated on {scaling['images']:,} validation images: probabilities^(1/T), T = {scaling['temperature']:.3f}"
    )
    names = ("nll", "brier", "ece", "ece_equal_mass")
    columns = (Column(""), *numbers("NLL", "Brier", "ECE", "ECE, equal mass"))
    print_table(columns, [(when, *(_number(scaling[when][name]) for name in names)) for when in ("before", "after")])
    _title(f"Conformal sets, calibrated on the same images for coverage {conformal['requested']:g}")
    columns = (Column("method"), *numbers("coverage", "worst class", "mean size", "empty"))
    rows = []
    for method in ("lac", "aps"):
        row = conformal[method]
        worst = min((value for value in row["class_coverage"] if value is not None), default=None)
        values = (row["coverage"], worst, row["mean_size"], row["empty"])
        rows.append((method.upper(), *(_number(value) for value in values)))
    print_table(columns, rows)


def _show_classes(metrics: dict[str, Any], top: int) -> None:
    table = sorted(metrics["per_class"], key=lambda row: (row["support"] == 0, row["recall"]))
    shown = table if top == 0 else table[:top]
    _title("Classes, the one with the lowest recall first")
    measures = numbers("images", "precision", "recall", "F1", "aleatoric", "epistemic")
    columns = (Column("class", fold=True), *measures)
    rows = [
        (
            row["class"],
            f"{row['support']:,}",
            *(_number(row[name], 3) for name in ("precision", "recall", "f1")),
            *(_number(row[name], 5) for name in ("aleatoric", "epistemic")),
        )
        for row in shown
    ]
    print_table(columns, rows)
    if len(shown) < len(table):
        say(f"{len(table) - len(shown)} more classes; --top 0 shows all.")


def _show_confusions(metrics: dict[str, Any], names: Sequence[str]) -> None:
    pairs = [
        (count, truth, label)
        for truth, row in enumerate(metrics["confusion"])
        for label, count in enumerate(row)
        if count and truth != label
    ]
    pairs.sort(key=lambda pair: (-pair[0], pair[1:]))
    if pairs:
        told = ", ".join(f"{names[truth]} as {names[label]} ({count})" for count, truth, label in pairs[:CONFUSIONS])
        _title(_wrapped(f"Most often confused: {told}."))
