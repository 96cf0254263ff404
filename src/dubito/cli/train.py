"""`dubito train`: a flag for every field of `TrainingConfig`, and what is said before and after a training."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from dubito.cli.failure import INTERRUPTED, Debug, Trust, UsageError, is_main_process
from dubito.cli.options import Address, GpusPerWorker, choose_engine, flag, option, setting
from dubito.cli.terminal import examples, quoted
from dubito.errors import OptionError
from dubito.harmless import say
from dubito.runs.config import NARROW_NETWORKS, NATURAL, PRESETS, WIDER_NETWORKS, TrainingConfig, configure

if TYPE_CHECKING:
    from dubito.data import Dataset
    from dubito.engines import RayEngine
    from dubito.training import ImageData, Run

EXAMPLES = examples(
    "dubito train --data digits --epochs 5 --out runs/first",
    "dubito train --data cifar10 --model alexnet --preset paper --seed 1",
    "dubito train --data photos/ --model resnet18 --preset finetune --init resnet18.safetensors",
    "dubito train --data digits --members 3 --out runs/three",
    "dubito train --config settings.yaml --temperature 1",
    "dubito train --resume runs/first",
    "dubito train --data photos/ --model resnet18 --engine ray --workers 4",
    note="Flags override the YAML file, which overrides the preset. Ctrl-C stops cleanly, and "
    "--resume continues with the same result as an uninterrupted training.",
)

OUT_VARIABLE = "DUBITO_OUT"
"""Tells the other processes of a distributed training which folder the first one chose."""

UNEVEN = 3
"""Classes are uneven if the largest has this many times the images of the smallest."""

PANELS = {
    "model": "What is trained",
    "epochs": "Optimisation",
    "activation": "Network and posterior",
    "kl_schedule": "Free energy",
    "validation_fraction": "Validation",
    "seed": "Seed and machine",
    "checkpoint_minutes": "Run folder",
}
"""The settings from which on a new panel of the help begins."""


FLAGS: dict[str, Any] = {
    "engine": Annotated[
        str,
        setting(
            "NAME",
            "Where to train: local (this machine, see --devices) or ray (a cluster, with --workers "
            "processes that share each batch).",
            "--engine",
        ),
    ],
    "address": Address,
    "gpus_per_worker": GpusPerWorker,
    "accept_changes": Annotated[
        bool,
        flag("--accept-changes", "With --resume: continue even if config.yaml was edited."),
    ],
    "trust": Trust,
    "debug": Debug,
}
"""What is no setting."""


def train(**given: Any) -> None:
    """Train a network into a run folder, or continue a stopped training."""
    preset, file, resume, out = (given.pop(name) for name in ("preset", "config", "resume", "out"))
    accept_changes, engine = given.pop("accept_changes"), _engine(given)
    for name in ("trust", "debug"):
        del given[name]
    if accept_changes and resume is None:
        raise UsageError("--accept-changes can only be used with --resume")
    if resume is not None:
        others = {"preset": preset, "config": file, "out": out, **given}
        if flags := " and ".join(_flag(name) for name, value in others.items() if value is not None):
            raise UsageError(f"--resume uses the settings of the run, so {flags} cannot be given with it")
        _resume(Path(resume), accept_changes, engine)
    else:
        config = configure(preset or "default", file, **given)
        if config.inference != "vi" and given["bayesian"] not in (None, "all"):
            raise OptionError(
                f"--bayesian is {given['bayesian']!r}, but --inference is {config.inference}, which has no Bayesian "
                "layers: leave one of them out."
            )
        _train(config, preset or "default", out, engine)


def _engine(given: dict[str, Any]) -> RayEngine | None:
    """The engine that trains, taken out of what was given; None for this process, whose --workers read images."""
    name, address, gpus = (given.pop(name) for name in ("engine", "address", "gpus_per_worker"))
    workers = given.pop("workers") if name == "ray" else None
    engine = choose_engine(name, workers, address, gpus)
    if name == "local":
        return None
    from dubito.engines import RayEngine

    if not isinstance(engine, RayEngine):
        raise OptionError(f"engine is {name!r}, but a training runs on local or ray.")
    for other in ("devices", "num_nodes"):
        if given[other] is not None:
            raise UsageError(f"{_flag(other)} is for the engine local; the engine ray has --workers")
    return engine


def _signature() -> inspect.Signature:
    """A flag for each setting; None leaves it to preset and YAML file."""
    own = {
        "preset": (str, option("NAME", f"Set of defaults: {', '.join(PRESETS)}.", default="default")),
        "config": (Path, option("FILE", "YAML file with settings, `name: value` lines.")),
        "out": (Path, option("FOLDER", "Folder for the new run.", default="runs/DATA-MODEL-INFERENCE-SEED")),
        "resume": (Path, option("RUN", "Continue this run. No settings can be given with it.")),
    }
    parameters = [_parameter(name, kind | None, shown) for name, (kind, shown) in own.items()]
    defaults = {"engine": "local", "address": None, "gpus_per_worker": None}
    parameters += [_parameter(name, kind, default=defaults.get(name, False)) for name, kind in FLAGS.items()]
    kinds = get_type_hints(TrainingConfig)
    panel = ""
    for field in fields(TrainingConfig):
        panel = PANELS.get(field.name, panel)
        kind = kinds[field.name]
        plain = kind if kind in (int, float, bool) else str  # choices are checked by `configure`, as in a YAML file
        metavar = {int: "N", float: "NUMBER", bool: None}.get(kind, "NAME")
        default = _defaults(field.name, field.default)
        shown = option(metavar, field.metadata["help"], default=default, rich_help_panel=panel)
        parameters.append(_parameter(field.name, plain | None, shown))
    return inspect.Signature(parameters)


def _parameter(name: str, kind: Any, shown: Any = None, default: Any = None) -> inspect.Parameter:
    annotation = kind if shown is None else Annotated[kind, shown]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _defaults(name: str, default: Any) -> str:
    """The value of the preset `default`, and of other networks and presets where they differ."""
    sources = {**NARROW_NETWORKS, **WIDER_NETWORKS, **PRESETS, "natural": NATURAL}
    others = {source: values[name] for source, values in sources.items() if values.get(name, default) != default}
    return "; ".join([_shown(default), *(f"{preset}: {_shown(value)}" for preset, value in others.items())])


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


train.__signature__ = _signature()  # type: ignore[attr-defined]


def _flag(setting: str) -> str:
    return "--" + setting.replace("_", "-")


def _train(config: TrainingConfig, preset: str, out: Path | None, engine: RayEngine | None) -> None:
    from dubito import training
    from dubito.data import open_dataset
    from dubito.files import refuse_existing
    from dubito.runs.claim import BEGINNING

    folder = _folder(config, out)
    if is_main_process():
        refuse_existing(folder, besides=BEGINNING)
    source = open_dataset(config.data)  # reads nothing yet, but refuses what is none
    kind = {"vi": "Bayesian", "frequentist": "frequentist", "dropout": "MC dropout"}[config.inference]
    article = "an" if kind == "MC dropout" else "a"
    what = (
        f"{article} {kind} {config.model}"
        if config.members == 1
        else f"an ensemble of {config.members} {kind} {config.model}"
    )
    _say(f"Training {what} on {config.data} (preset {preset}, seed {config.seed}).")
    if splits := source.describe_splits():
        _say(splits)
    if config.num_nodes > 1:
        place = ":".join(os.environ.get(name, name) for name in ("MASTER_ADDR", "MASTER_PORT"))
        _say(
            f"Waiting at {place} for all {config.num_nodes} machines. Run this command on each of them, "
            "with the same MASTER_ADDR and MASTER_PORT and a different NODE_RANK."
        )

    def work() -> Run:
        if engine is not None:
            return training.train_on_ray(engine, config, folder)
        # Not before the data is read are its images counted, hence the callback.
        return training.train(config, folder, callbacks=[_announcement(config)])

    run = _ending_cleanly(folder, work)
    _summarize(run)


def _resume(folder: Path, accept_changes: bool, engine: RayEngine | None) -> None:
    from dubito import training

    run = training.Run.open(folder)
    epochs = run.config.epochs * run.config.members
    done = _epochs_done(run)
    if done >= epochs and run.find_validation() is not None:
        _say(f"{folder} is finished: all of its {epochs} epochs are done, so there is nothing to resume.")
    else:
        what = (
            f"{done} of {epochs} epochs done" if done < epochs else "all epochs done, the validation record is missing"
        )
        _say(f"Resuming {folder}: {run.config.model} on {run.config.data}, {what}.")
        callbacks = [_announcement(run.config)]

        def work() -> Run:
            if engine is not None:
                return training.resume_on_ray(engine, folder, accept_changes=accept_changes)
            return training.resume(folder, callbacks=callbacks, accept_changes=accept_changes)

        run = _ending_cleanly(folder, work)
    _summarize(run)


def _epochs_done(run: Run) -> int:
    """Finished epochs, of all members of an ensemble together."""
    from dubito.training.members import begun_members

    trained = [member for member in begun_members(run) if member.has_checkpoint("last")]
    return sum(int(member.read_checkpoint("last")[1]["progress"]["epoch"]) for member in trained)


def _ending_cleanly(folder: Path, work: Callable[[], Run]) -> Run:
    """The trained run; Ctrl-C ends the program with a sentence that says how to go on."""
    from dubito import training

    try:
        return work()
    except training.InterruptedTraining as stop:
        message = str(stop)
    except SystemExit:  # Lightning's answer to a second Ctrl-C
        message = f"Stopped. Continue from the last checkpoint with: dubito train --resume {quoted(folder)}"
    if is_main_process():
        say(message, err=True)
    # Not `typer.Exit`, after which "Interrupted." would be printed too.
    sys.exit(INTERRUPTED)


def _folder(config: TrainingConfig, out: Path | None) -> Path:
    """The run folder; one without a given name is chosen once, by the first process."""
    if out is None and not is_main_process() and OUT_VARIABLE in os.environ:
        return Path(os.environ[OUT_VARIABLE])
    if out is None and config.num_nodes > 1:
        raise OptionError("--num-nodes is above 1, so give --out: all machines must use the same folder.")
    folder = out or next(folder for folder in _names(config) if not folder.exists())
    if config.devices > 1:
        os.environ[OUT_VARIABLE] = str(folder)
    return folder


def _names(config: TrainingConfig) -> Iterator[Path]:
    """Names for a run folder: runs/DATA-MODEL-INFERENCE-SEED, then the same with -2, -3 and so on."""
    data, model = Path(config.data).expanduser().resolve().stem, _short(config.model)
    name = f"{data}-{model}-{config.inference}-{config.seed}"
    return (Path("runs") / f"{name}{suffix}" for suffix in chain([""], (f"-{number}" for number in count(2))))


def _short(model: str) -> str:
    """A network's name as part of a folder's: the last part of a path or of a function's name."""
    return re.split(r"[/:.\\]", model.rstrip("/"))[-1]


def _announcement(config: TrainingConfig) -> Any:
    """A callback that says what is trained on as soon as the data is read: once, for all members of an ensemble."""
    from pytorch_lightning.callbacks import LambdaCallback

    said: list[bool] = []

    def announce(trainer: Any, module: Any) -> None:
        if said:
            return
        said.append(True)
        images = trainer.datamodule
        kept, held_out = len(images.train_part), len(images.validation_part)
        parameters = sum(parameter.numel() for parameter in module.network.parameters())
        classes = images.train_part.num_classes
        _say(
            f"{kept:,} training and {held_out:,} validation images of {classes} classes, {_look(images)}; "
            f"{parameters:,} parameters."
        )
        if uneven := _uneven(images.train_part, config.class_weights):
            _say(uneven)
        if getattr(module.network, "left_fresh", []):
            fresh = ", ".join(module.network.left_fresh)
            _say(f"Not taken from the given weights, because the number of classes is {classes}: {fresh}.")
        frozen = sum(p.numel() for p in module.network.parameters() if not p.requires_grad)
        if frozen:
            _say(f"{frozen:,} of them are frozen.")
        if config.inference == "vi":
            exact = "the exact free energy" if config.temperature == 1 else "1 would be the exact free energy"
            _say(f"Temperature {config.temperature:g} ({exact}){_warmup(config)}, prior {config.prior}.")

    return LambdaCallback(on_fit_start=announce)


def _look(images: ImageData) -> str:
    """Size and colours of the images, and how they were made square."""
    from dubito.data import DATASETS

    data = images.describe()
    kind = "gray" if data.channels == 1 else "colour"
    fitted = {"crop": "cropped", "pad": "padded", "stretch": "stretched"}[data.fit]
    own = "" if data.name in DATASETS else f", {fitted} to a square"
    return f"{data.size} x {data.size} pixels in {kind}{own}"


def _uneven(part: Dataset, weights: str) -> str:
    """A sentence about classes of very different numbers of images; empty if there are none."""
    import torch

    counts = torch.bincount(part.labels, minlength=part.num_classes)
    most, least = int(counts.argmax()), int(counts.argmin())
    if counts[most] < UNEVEN * counts[least]:
        return ""
    remedy = {"none": "; --class-weights balanced gives each class the same weight"}.get(weights, "")
    return (
        f"The classes are uneven: {counts[most]:,} images of {part.class_names[most]}, {counts[least]:,} of "
        f"{part.class_names[least]}{remedy}."
    )


def _warmup(config: TrainingConfig) -> str:
    """How KL comes to its full weight, if it does not have it from the first."""
    if config.kl_schedule != "warmup" or config.warmup_epochs == 0:
        return ""
    beyond = f", but the training has only {config.epochs}" if config.warmup_epochs > config.epochs else ""
    return f", reached over {config.warmup_epochs:g} epochs{beyond}"


def _summarize(run: Run) -> None:
    from dubito.evaluation.novelty import run_novelty

    for number, member in enumerate(run.members):
        _summarize_epochs(member.metrics(), f"Member {number + 1}: " if run.is_ensemble else "")
    if run.is_ensemble:
        _say(_of_mixture(run))
    if (novelty := run_novelty(run)) is not None:
        _say(novelty.describe())
    _say(f"The run is in {run.path}.")
    _say(f"Next: dubito report {quoted(run.path)}, or dubito predict {quoted(run.path)} IMAGES...")


def _summarize_epochs(rows: list[dict[str, float]], who: str) -> None:
    """The best epoch of a network, and whether its loss has exploded."""
    if rows:
        best = min(rows, key=lambda row: row["val_nll"])
        _say(
            f"{who}Best epoch {best['epoch']:.0f} of {len(rows)}: validation accuracy {best['val_accuracy']:.2%}, "
            f"NLL {best['val_nll']:.4f}, ECE {best['val_ece']:.4f}."
        )
        if best["kl"]:
            _say(f"Free energy, training NLL + KL / N: {best['free_energy']:.4f} nats an image.")
        first, last = (row["train_nll"] for row in (rows[0], rows[-1]))
        if last > 2 * first:
            _say(
                f"The training diverged: its NLL was {first:.4g} in the first epoch and {last:.4g} in the "
                "last. Try --clip 3 or a smaller --learning-rate."
            )


def _of_mixture(run: Run) -> str:
    """What the members of an ensemble reach together, by its validation record."""
    from dubito.evaluation.metrics import calibration_error, nll

    found = run.validation()
    probs, labels = found.prediction.probs, found.labels
    return (
        f"The ensemble with {found.prediction.samples} draws: validation accuracy "
        f"{found.calibration.accuracy:.2%}, NLL {nll(probs, labels):.4f}, ECE "
        f"{calibration_error(probs, labels):.4f}."
    )


def _say(text: str) -> None:
    if is_main_process():
        say(text)
