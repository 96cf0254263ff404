"""Evaluating trained networks: what they predict for images that no training has seen, and how good that is.

Post-hoc calibration uses the validation images that the run itself held out. Several runs are one ensemble: the draws
of all members are draws of one predictive distribution, in which every member counts as much as any other.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from dubito.data import DATASETS, Dataset, open_dataset
from dubito.data.listing import TEST_FRACTION
from dubito.engines import Engine, LocalEngine
from dubito.errors import DubitoError, DubitoWarning, OptionError, RunError
from dubito.evaluation.calibration import fit_temperature
from dubito.evaluation.images import (
    ALL,
    found_at,
    held_out_images,
    is_whole,
    own_test_images,
    place_of,
    shown,
    test_images,
)
from dubito.evaluation.jobs import Job, Settings, predict_jobs
from dubito.evaluation.noise import NoiseLevel, noise_level
from dubito.evaluation.predictions import Evaluated, inputs_and_labels, predicted
from dubito.evaluation.storage import if_writable, read, write
from dubito.evaluation.summary import plain, summarize
from dubito.evaluation.validation import NO_IMAGES, SAMPLES, SEED, recorded, validation_of
from dubito.prediction import Predictor
from dubito.runs.attached import data_of
from dubito.runs.run import Run
from dubito.zoo import is_here

Runs = Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Predictions and metrics of a run, of several as an ensemble, or of any network.

    All intervals are of 95 % and cover the test images and the draws, if the network has at least three draws;
    otherwise the images alone. See :mod:`dubito.evaluation.intervals`.

    Attributes:
        runs: one, or the members of an ensemble; none if a network was evaluated without a run.
        class_names: of the network.
        test: the test images.
        validation: what was predicted for the images that every run held out from its training, for post-hoc
            calibration; the images themselves are not kept, and an ensemble whose members have none in common has none.
        ood: test images of other data sets, by name.
        noise: uncertainty against noise on the test images.
        metrics: what metrics.json holds.
        seconds: how long everything took (``total``), and the predictions alone (``forward``).
    """

    runs: tuple[Run, ...]
    class_names: tuple[str, ...]
    test: Evaluated
    validation: Evaluated
    ood: dict[str, Evaluated]
    noise: tuple[NoiseLevel, ...]
    metrics: dict[str, Any]
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def members(self) -> tuple[Run, ...]:
        """The runs of single networks: all members of an ensemble, whether it is one run or several."""
        return tuple(member for run in self.runs for member in run.members)

    @property
    def is_current(self) -> bool:
        """Whether the runs still have the weights and the novelty that were evaluated."""
        settings = self.metrics["settings"]
        return not any(
            run.changed_since({"weights": None, **facts}, settings["checkpoint"])
            for run, facts in zip(self.runs, settings["runs"], strict=True)
        )

    def keep(self, folder: str | os.PathLike[str]) -> None:
        """Save it if the folder can be written, else warn: it will be evaluated again the next time."""
        if is_here(folder):
            return  # nobody expects a network that came with dubito to change
        with if_writable(folder, "evaluation"):
            self.save(folder)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write evaluation.json and evaluation.safetensors into `folder`, each atomically."""
        write(folder, {one.name: getattr(self, one.name) for one in fields(self)})

    @staticmethod
    def load(folder: str | os.PathLike[str], *, images: bool = True) -> Evaluation:
        """The evaluation that `save` wrote into a folder.

        The images are read again from their data sets. With images=False there are none, and no data set is needed.
        """
        return Evaluation(**read(folder, images=images))


def kept_settings(stored: Evaluation) -> dict[str, Any]:
    """The options of `evaluate` that make another evaluation like a stored one."""
    settings = stored.metrics["settings"]
    places = settings.get("places", {})
    names = ("samples", "seed", "checkpoint", "coverage", "bootstrap", "batch_size", "noise_images")
    kept: dict[str, Any] = {name: settings[name] for name in names}
    kept |= {"data": found_at(settings["data"], places), "ood": [found_at(name, places) for name in stored.ood]}
    return kept | {"noise": [level.gamma for level in stored.noise], "calibrated": stored.test.temperature != 1}


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
        data: another data set with the same classes; None for the run's own. Its test images are used, or all of its
            images if it has no splits of its own and the run was not trained on it.
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
    options = _Options(samples, seed, coverage, bootstrap, batch_size)
    if isinstance(networks, (nn.Module, Predictor)):
        network = networks.to(device) if isinstance(networks, nn.Module) else networks
        return _evaluate_module(network, batches, validation, options, calibrated, began)
    if batches is not None or validation is not None:
        raise OptionError(
            "batches can only be given with a network: a run is evaluated on the test images of its data "
            "set, or of `data`."
        )
    opened = _open(networks)
    facts = _facts(opened, checkpoint)  # first, so that a run without weights is named before anything is read
    for name in ood:
        open_dataset(name, labelled=False)
    whole = is_whole(data, opened[0])
    test = own_test_images(opened[0], data, whole=whole)
    settings = Settings(samples, seed, checkpoint, batch_size, device)
    held_out = _held_out(opened, data, settings, progress)
    strange = {name: test_images(name, opened[0], labelled=False) for name in dict.fromkeys(ood)}
    if place_of(test.name) in map(place_of, strange):
        raise OptionError(f"{test.name} is the data set that is evaluated, so it cannot be given as --ood too.")
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(seed))
    chosen = order[:noise_images].sort().values
    jobs = {"test": Job(test, f"{test.name}{ALL if whole else '/test'}")}
    if isinstance(held_out, Dataset):
        jobs["validation"] = Job(held_out, f"{held_out.name}/validation")
    jobs |= {f"ood/{name}": Job(part, f"{name}/test", labelled=False) for name, part in strange.items()}
    jobs |= {f"noise/{gamma!r}": Job(test.part(chosen), test.name, gamma) for gamma in noise if gamma > 0}

    found, forward = predict_jobs(opened, jobs, settings, engine or LocalEngine(), progress=progress)
    found["validation"] = (
        held_out if isinstance(held_out, Evaluated) else replace(found["validation"], images=NO_IMAGES)
    )
    if not len(held_out):
        warnings.warn(
            "The members of the ensemble have no validation image in common, so it is not calibrated: "
            "train them with the same --split-seed, or a larger --validation-fraction.",
            DubitoWarning,
            stacklevel=2,
        )
    found = _calibrated(found) if calibrated else found
    levels = tuple(
        noise_level(gamma, found[f"noise/{gamma!r}"] if gamma > 0 else found["test"][chosen], bootstrap, seed)
        for gamma in noise
    )
    others = {name: found[f"ood/{name}"] for name in strange}
    names = opened[0].data.class_names
    metrics = summarize(found["test"], found["validation"], others, names, **options.of_intervals())
    metrics["noise"] = [asdict(level) for level in levels]
    metrics["settings"] = {
        "data": test.name,
        "set_aside": None if whole or open_dataset(test.name).has_splits else TEST_FRACTION,
        **asdict(options),
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
    calibrated: bool,
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
        predictor = Predictor(network, options.samples, seed=options.seed, batch_size=options.batch_size)
        described = data_of(network)
    test = predicted("test", shown(inputs, described), labels, predictor, inputs)
    held_out = replace(test, images=NO_IMAGES)[:0]
    if validation is not None:
        inputs, labels = inputs_and_labels(validation)
        held_out = predicted("validation", NO_IMAGES, labels, predictor, inputs)
    if calibrated:
        test, held_out = _calibrated({"test": test, "validation": held_out}).values()
    forward = perf_counter() - watch
    names = tuple(map(str, range(test.prediction.probs.shape[1])))
    if described is not None and len(described.class_names) == len(names):
        names = described.class_names
    metrics = summarize(test, held_out, {}, names, **options.of_intervals())
    metrics["settings"] = {
        **asdict(options),
        "intervals_cover": test.intervals_cover,
        "images": {"test": len(test), "validation": len(held_out)},
    }
    seconds = {"total": perf_counter() - began, "forward": forward}
    return Evaluation((), names, test, held_out, {}, (), plain(metrics), seconds)


@dataclass(frozen=True)
class _Options:
    """What decides the results of runs and of modules."""

    samples: int
    seed: int
    coverage: float | None
    bootstrap: int
    batch_size: int

    def of_intervals(self) -> dict[str, Any]:
        """What of it metrics and their intervals depend on, once everything is predicted."""
        return {"coverage": self.coverage, "bootstrap": self.bootstrap, "seed": self.seed}


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


def _held_out(runs: Sequence[Run], data: str | None, settings: Settings, progress: bool) -> Evaluated | Dataset:
    """What the calibration is fitted to: the validation record of a run, or images to predict.

    The record is of one predictor. Any other, an ensemble's or one with other draws, has to predict the images itself.
    """
    is_recorded = (settings.samples, settings.seed, settings.checkpoint) == (SAMPLES, SEED, "best")
    if len(runs) == 1 and is_recorded:
        return recorded(runs[0], validation_of(runs[0], moved=data, progress=progress))
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


def _calibrated(found: dict[str, Evaluated]) -> dict[str, Evaluated]:
    """All parts with the probabilities that the validation images calibrate."""
    validation = found["validation"]
    if not len(validation) or validation.labels is None:
        raise OptionError("calibrated needs validation images, and there are none: give some, or leave it out.")
    temperature = fit_temperature(validation.prediction.probs, validation.labels)
    return {key: part.calibrated(temperature) for key, part in found.items()}


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
