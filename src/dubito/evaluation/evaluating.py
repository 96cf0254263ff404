"""Evaluating trained networks: what they predict for images that no training has seen, and how good that is.

Post-hoc calibration uses the validation images that the run itself held out. Several runs are one ensemble: the draws
of all members are draws of one predictive distribution, in which every member counts as much as any other.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from dubito.data import DATASETS, Dataset, Images, images_at_once, open_dataset
from dubito.engines import Engine, LocalEngine
from dubito.errors import DubitoError, DubitoWarning, OptionError, RunError, ShapeError
from dubito.evaluation.calibration import fit_temperature
from dubito.evaluation.drawn import Drawn, Piece, draw, draw_piece, joined, put_together
from dubito.evaluation.evaluated import Evaluated
from dubito.evaluation.evaluation import Evaluation
from dubito.evaluation.images import held_out_images, own_test_images, place_of, shown, test_images
from dubito.evaluation.noise import noise_level, noisy_batches
from dubito.evaluation.summary import plain, summarize
from dubito.evaluation.validating import NO_IMAGES, SAMPLES, SEED, recorded, validation_of
from dubito.models.trust import trusting, trusts
from dubito.prediction import Predictor
from dubito.prediction.weights import seeds_of
from dubito.progress import progress_bar
from dubito.runs.attached import data_of, require_data
from dubito.runs.run import Run

PIECE = 1024
"""Images of a piece of the work: enough to be worth sending, few enough to share out."""
Runs = Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]]


def evaluate(
    networks: Runs | nn.Module | Predictor,
    batches: Iterable[tuple[Tensor, Tensor]] | None = None,
    *,
    validation: Iterable[tuple[Tensor, Tensor]] | None = None,
    data: str | None = None,
    samples: int = 10,
    ood: Sequence[str] = (),
    noise: Sequence[float] = (0.0, 0.1, 0.2, 0.3),
    noise_images: int | None = 2000,
    coverage: float | None = None,
    calibrated: bool = False,
    bootstrap: int = 1000,
    seed: int = 0,
    checkpoint: str = "best",
    batch_size: int = 256,
    device: str | torch.device = "cpu",
    progress: bool = False,
    engine: Engine | None = None,
) -> Evaluation:
    """Evaluate a run, several runs as one ensemble, or any network with batches of labelled images.

    Members of an ensemble must have been trained on the same data set; a member without anything to draw gives one
    draw. Post-hoc calibration uses the images that every member held out. A network that is given with `batches` is
    calibrated on `validation`, if that is given too, and `data`, `ood`, `noise` and `checkpoint` are not used.

    All intervals are 95 % intervals over test images and draws: for the expected value of the metric over test sets of
    this size and over seeds, with this number of draws. For a network without draws they cover images alone.
    See :mod:`dubito.evaluation.intervals`.

    Args:
        networks: a run or its folder, or several; or a module, such as one that :func:`dubito.ensemble` made,
            or a predictor, whose own draws and seed count.
        batches: for a module: pairs of inputs, as it takes them, and labels.
        validation: for a module: the same of images that its training has not seen, other than those of `batches`.
        data: another data set with the same classes, whose test images to use; None for the run's own.
        samples: draws of the network; in an ensemble, divided among its members, see :class:`dubito.Predictor`.
        ood: data sets of other things, for which the network should be uncertain.
        noise: standard deviations of noise added to the pixels, which lie in [0, 1]; the sum is not clipped.
        noise_images: how many test images, chosen at random, get noise; None for all.
        coverage: how often a conformal set should hold the true class; None chooses it from the validation accuracy.
        calibrated: measure calibrated probabilities, with the temperature that fits the validation images best.
        bootstrap: resamples of the images for the intervals.
        seed: of draws, noise and resamples.
        checkpoint: ``best`` or ``last``.
        batch_size: images at once, or fewer if they are large; the results do not depend on it.
        device: where the networks compute.
        progress: show a progress bar with the time left, on stderr.
        engine: where the predictions of runs are computed, such as ``dubito.engines.get_engine("ray")``; None is this
            process. The results are the same.

    >>> import dubito
    >>> network = dubito.attach_head(dubito.BayesLinear(4, 3), "softplus")
    >>> batches = [(torch.randn(20, 4), torch.randint(3, (20,))) for _ in range(3)]
    >>> evaluation = evaluate(network, batches)
    >>> len(evaluation.test), sorted(evaluation.metrics)[:3]
    (60, ['accuracy', 'aleatoric', 'brier'])
    """
    began = perf_counter()
    _check_options(samples, noise, noise_images, coverage, bootstrap)
    options = _Options(
        samples, coverage, calibrated, bootstrap, seed, batch_size, device, progress, engine or LocalEngine()
    )
    if isinstance(networks, (nn.Module, Predictor)):
        return _evaluate_module(networks, batches, validation, options, began)
    if batches is not None or validation is not None:
        raise OptionError(
            "batches can only be given with a network: a run is evaluated on the test images of its data "
            "set, or of `data`."
        )
    opened = _open(networks)
    facts = _facts(opened, checkpoint)  # first, so that a run without weights is named before anything is read
    for name in ood:
        open_dataset(name, labelled=False)
    test = own_test_images(opened[0], data)
    held_out = _held_out(opened, data, options, checkpoint)
    strange = {name: test_images(name, opened[0], labelled=False) for name in dict.fromkeys(ood)}
    if place_of(test.name) in map(place_of, strange):
        raise OptionError(f"{test.name} is the data set that is evaluated, so it cannot be given as --ood too.")
    chosen = _some(len(test), noise_images, seed)
    jobs = {"test": _Job(test, f"{test.name}/test")}
    if isinstance(held_out, Dataset):
        jobs["validation"] = _Job(held_out, f"{held_out.name}/validation")
    jobs |= {f"ood/{name}": _Job(part, f"{name}/test", labelled=False) for name, part in strange.items()}
    jobs |= {f"noise/{gamma!r}": _Job(test.part(chosen), test.name, gamma) for gamma in noise if gamma > 0}

    found, forward = _predict_jobs(opened, jobs, checkpoint, options)
    found["validation"] = (
        held_out if isinstance(held_out, Evaluated) else replace(found["validation"], images=NO_IMAGES)
    )
    if not len(held_out):
        _warn_uncalibrated()
    found = _calibrated(found, options)
    levels = tuple(
        noise_level(gamma, found[f"noise/{gamma!r}"] if gamma > 0 else found["test"][chosen], bootstrap, seed)
        for gamma in noise
    )
    others = {name: found[f"ood/{name}"] for name in strange}
    names = opened[0].data.class_names
    metrics = summarize(
        found["test"], found["validation"], others, names, coverage=coverage, bootstrap=bootstrap, seed=seed
    )
    metrics["noise"] = [asdict(level) for level in levels]
    metrics["settings"] = {
        "data": test.name,
        **options.described(),
        "checkpoint": checkpoint,
        "intervals_cover": found["test"].intervals_cover,
        "noise_images": len(chosen),
        "places": {name: place_of(name) for name in (test.name, *strange) if name not in DATASETS},
        "images": {key: len(part) for key, part in found.items() if not key.startswith("noise/")},
        **facts,
    }
    seconds = {"total": perf_counter() - began, "forward": forward}
    return Evaluation(opened, names, found["test"], found["validation"], others, levels, plain(metrics), seconds)


def _evaluate_module(
    network: nn.Module | Predictor,
    batches: Iterable[tuple[Tensor, Tensor]] | None,
    validation: Iterable[tuple[Tensor, Tensor]] | None,
    options: _Options,
    began: float,
) -> Evaluation:
    if batches is None:
        raise OptionError("A network needs batches to be evaluated: pairs of inputs and labels.")
    inputs, labels = inputs_and_labels(batches)
    watch = perf_counter()
    if isinstance(network, Predictor):
        options = replace(options, samples=network.samples, seed=network.seed)
        predictor, described = network, network.data
    else:
        predictor, described = _predictor(network.to(options.device), options, options.seed), data_of(network)
    drawn = draw(predictor, inputs)
    test = joined("test", shown(inputs, described), labels, drawn)
    held_out = replace(test, images=NO_IMAGES)[:0]
    if validation is not None:
        inputs, labels = inputs_and_labels(validation)
        drawn = draw(predictor, inputs)
        held_out = joined("validation", NO_IMAGES, labels, drawn)
    test, held_out = _calibrated({"test": test, "validation": held_out}, options).values()
    forward = perf_counter() - watch
    names = tuple(map(str, range(test.prediction.probs.shape[1])))
    if described is not None and len(described.class_names) == len(names):
        names = described.class_names
    metrics = summarize(
        test, held_out, {}, names, coverage=options.coverage, bootstrap=options.bootstrap, seed=options.seed
    )
    metrics["settings"] = {
        **options.described(),
        "intervals_cover": test.intervals_cover,
        "images": {"test": len(test), "validation": len(held_out)},
    }
    seconds = {"total": perf_counter() - began, "forward": forward}
    return Evaluation((), names, test, held_out, {}, (), plain(metrics), seconds)


def inputs_and_labels(batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], Tensor]:
    """The inputs of all batches, and all labels."""
    inputs, labels = [], []
    for batch in batches:
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise ShapeError("batches must contain pairs of inputs and labels.")
        inputs.append(batch[0])
        labels.append(batch[1])
    if not inputs:
        raise ShapeError("There are no images to evaluate: batches is empty.")
    return inputs, torch.cat(labels).cpu()


# ---- predictions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Options:
    """The options that runs and modules have in common."""

    samples: int
    coverage: float | None
    calibrated: bool
    bootstrap: int
    seed: int
    batch_size: int
    device: str | torch.device
    progress: bool
    engine: Engine

    def described(self) -> dict[str, Any]:
        """What decides the results."""
        return {name: getattr(self, name) for name in ("samples", "seed", "coverage", "bootstrap", "batch_size")}


@dataclass(frozen=True, eq=False)
class _Job:
    """Images to predict, with noise on their pixels."""

    part: Dataset
    name: str
    gamma: float = 0.0
    labelled: bool = True


def _predictor(network: nn.Module, options: _Options, seed: int, members: int = 1) -> Predictor:
    """The predictor of a network that is one of so many members."""
    return Predictor(network, math.ceil(options.samples / members), seed=seed, batch_size=options.batch_size)


def _member_seeds(seed: int, members: int) -> list[int]:
    """The seed of each member, as a Predictor of the ensemble has it."""
    return [seed] if members == 1 else seeds_of(seed, members)


@dataclass(frozen=True, eq=False)
class _Images:
    """Some of the images of a job, for one member: what a worker is given."""

    member: int
    key: str
    first: int
    images: Images
    gamma: float


class _Drawing:
    """What a worker does: draw for images by the member that they are for; it holds one predictor at a time."""

    def __init__(self, runs: Sequence[Path], checkpoint: str, options: _Options, trust: bool) -> None:
        self.runs, self.checkpoint, self.options, self.trust = runs, checkpoint, options, trust
        self.held: tuple[int, Predictor] | None = None
        # Softplus outputs underflow to denormals, which cost a CPU several times an ordinary number.
        torch.set_flush_denormal(True)

    def predictor(self, member: int) -> Predictor:
        """The predictor of a member, which takes the place of the last one."""
        if self.held is None or self.held[0] != member:
            self.held = None  # before another one takes memory
            count = len(self.runs)
            with trusting(self.trust):
                run = Run.open(self.runs[member])
                network = run.load(self.checkpoint).to(self.options.device)
            predictor = _predictor(network, self.options, _member_seeds(self.options.seed, count)[member], count)
            predictor.use_novelty(run, self.checkpoint)
            if count > 1 and predictor.head.unit != "probability":
                raise OptionError(
                    f"{run.path} has the {predictor.head.name} head, whose uncertainties are those of logits: it "
                    "cannot be a member of an ensemble."
                )
            self.held = member, predictor
        return self.held[1]

    def __call__(self, images: _Images) -> tuple[Piece, float]:
        """The draws for the images, and the seconds that they took."""
        predictor = self.predictor(images.member)
        data = require_data(predictor.data, "An evaluation")
        size = images_at_once(data.size, self.options.batch_size)
        began = perf_counter()
        batches = noisy_batches(images.images, data, images.gamma, size, self.options.seed, first=images.first)
        return draw_piece(predictor, batches), perf_counter() - began


def _predict_jobs(
    runs: Sequence[Run], jobs: Mapping[str, _Job], checkpoint: str, options: _Options
) -> tuple[dict[str, Evaluated], float]:
    """What the runs together predict for the images of every job, and the seconds that the predictions took."""
    pieces: dict[tuple[str, int], dict[int, Piece]] = {}
    seconds = 0.0
    total = len(runs) * sum(len(job.part) for job in jobs.values())
    # Folders and plain values, which can be sent to other processes.
    plain_options = replace(options, engine=LocalEngine())
    make = partial(_Drawing, [run.path.resolve() for run in runs], checkpoint, plain_options, trusts())
    with progress_bar("Evaluating", total, shown=options.progress) as advance:
        for images, (piece, took) in options.engine.map(make, _pieces(len(runs), jobs)):
            pieces.setdefault((images.key, images.member), {})[images.first] = piece
            seconds += took
            advance(len(images.images))
    found = {}
    for key, job in jobs.items():
        labels = job.part.labels if job.labelled else None
        if len(job.part):
            drawn = _drawn(pieces, key, len(runs))
            found[key] = joined(job.name, job.part.images, labels, drawn, job.part.files)
        else:  # a part without images: the test images, none of them
            drawn = _drawn(pieces, "test", len(runs))
            found[key] = joined(job.name, jobs["test"].part.images, jobs["test"].part.labels, drawn)[:0]
    return found, seconds


def _pieces(members: int, jobs: Mapping[str, _Job]) -> Iterator[_Images]:
    """The images of all jobs for every member, in pieces, member after member."""
    for member in range(members):
        for key, job in jobs.items():
            for first in range(0, len(job.part), PIECE):
                yield _Images(member, key, first, job.part.images[first : first + PIECE], job.gamma)


def _drawn(pieces: Mapping[tuple[str, int], Mapping[int, Piece]], key: str, members: int) -> list[Drawn]:
    """The draws of all members for a job's images."""
    ordered = ([piece for _, piece in sorted(pieces[key, member].items())] for member in range(members))
    return [drawn for own in ordered for drawn in put_together(own)]


# ---- options and runs ----------------------------------------------------------------------------------------------


def _check_options(
    samples: int, noise: Sequence[float], noise_images: int | None, coverage: float | None, bootstrap: int
) -> None:
    for name, value in (("samples", samples), ("bootstrap", bootstrap), ("noise_images", noise_images)):
        if value is not None and value < 1:
            raise OptionError(f"{name} is {value}, but must be at least 1.")
    for gamma in noise:
        if not 0 <= gamma < float("inf"):
            raise OptionError(f"noise has the level {gamma}, but levels are standard deviations: 0 or more.")
    if coverage is not None and not 0 < coverage < 1:
        raise OptionError(f"coverage is {coverage}, but must lie between 0 and 1.")


def _open(runs: Runs) -> tuple[Run, ...]:
    given = [runs] if isinstance(runs, (Run, str, os.PathLike)) else list(runs)
    if not given:
        raise OptionError("There is no run to evaluate: give at least one.")
    opened = tuple(run if isinstance(run, Run) else Run.open(run) for run in given)
    if len(opened) > 1:  # members of an ensemble among them count as much as any other
        opened = tuple(member for run in opened for member in run.members)
    first = opened[0]
    for run in opened[1:]:
        same = run.config.data == first.config.data and run.data.class_names == first.data.class_names
        if not same or run.data.channels != first.data.channels:
            raise RunError(
                f"{run.path} was trained on {run.config.data} and {first.path} on {first.config.data}, but members of "
                "an ensemble need the same data set with the same classes."
            )
    return opened


def _held_out(runs: Sequence[Run], data: str | None, options: _Options, checkpoint: str) -> Evaluated | Dataset:
    """What the calibration is fitted to: the validation record of a run, or images to predict.

    The record is of one predictor. Any other, an ensemble's or one with other draws, has to predict the images itself.
    """
    is_recorded = (options.samples, options.seed, checkpoint) == (SAMPLES, SEED, "best")
    if len(runs) == 1 and is_recorded:
        return recorded(runs[0], validation_of(runs[0], moved=data, progress=options.progress))
    try:
        return held_out_images(runs, data)
    except DubitoError:
        validation = runs[0].find_validation() if len(runs) == 1 else None
        if validation is None:
            raise
        warnings.warn(
            f"The validation images of {runs[0].path} are missing, so its stored validation record is "
            f"used: the best weights, {SAMPLES} draws, seed {SEED}.",
            DubitoWarning,
            stacklevel=3,
        )
        return recorded(runs[0], validation)


def _calibrated(found: dict[str, Evaluated], options: _Options) -> dict[str, Evaluated]:
    """All parts with the probabilities that the validation images calibrate, if that is asked for."""
    validation = found["validation"]
    if not options.calibrated:
        return found
    if not len(validation) or validation.labels is None:
        raise OptionError("calibrated needs validation images, and there are none: give some, or leave it out.")
    temperature = fit_temperature(validation.prediction.probs, validation.labels)
    return {key: part.calibrated(temperature) for key, part in found.items()}


def _warn_uncalibrated() -> None:
    warnings.warn(
        "The members of the ensemble have no validation image in common, so it is not calibrated: "
        "train them with the same --split-seed, or a larger --validation-fraction.",
        DubitoWarning,
        stacklevel=3,
    )


def _some(count: int, wanted: int | None, seed: int) -> Tensor:
    """Sorted numbers of at most `wanted` of `count` images, chosen at random."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[:wanted].sort().values


def _facts(runs: Sequence[Run], checkpoint: str) -> dict[str, Any]:
    """The settings of the runs that decide their results."""
    training = ("epochs", "batch_size", "optimizer", "learning_rate", "seed")
    names = ("model", "data", "inference", "head", "activation", *training)
    bayesian = ("temperature", "prior", "estimator", "posterior", "kl_schedule")
    members = []
    for run in runs:
        own = (*names, *bayesian) if run.config.inference == "vi" else names
        facts: dict[str, Any] = {"run": run.path.resolve().name, **{name: getattr(run.config, name) for name in own}}
        if run.config.inference == "vi":
            facts.update(_free_energy(run, checkpoint))
        facts |= run.origin(checkpoint)
        members.append(facts)
    temperatures = {facts.get("temperature") for facts in members}
    return {"temperature": temperatures.pop() if len(temperatures) == 1 else None, "runs": members}


def _free_energy(run: Run, checkpoint: str) -> dict[str, float]:
    """What training had reached with these weights: NLL + KL / N in nats an image, whatever its temperature."""
    rows = [row for row in run.metrics() if {"train_nll", "kl"} <= row.keys()]
    if not rows:
        return {}
    row = rows[-1] if checkpoint == "last" else min(rows, key=lambda row: row["val_nll"])
    kl = row["kl"] / run.data.num_data
    return {"train_nll": row["train_nll"], "kl_per_image": kl, "free_energy": row["train_nll"] + kl}
