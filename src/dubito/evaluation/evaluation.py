"""Evaluating trained networks: what they predict for images that no training has seen, and how good that is.

The test split of a data set is read here and nowhere else. Post-hoc calibration uses the validation part that the
run itself held out. Several runs are one ensemble: the draws of all members are draws of one predictive distribution.

    evaluation.json          metrics, settings, and what the tensors belong to
    evaluation.safetensors   predictions and labels; images are read again from their data sets
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from dubito.data import DATASETS, IMAGE_SIZE, Dataset, normalize, open_dataset, split_validation, with_channels
from dubito.errors import DataError, DubitoWarning, OptionError, RunError
from dubito.files import write_atomically
from dubito.prediction import Prediction, pool, predict
from dubito.runs.run import Run

__all__ = ["Evaluated", "Evaluation", "NoiseLevel", "evaluate", "pool"]

FILE = "evaluation"
"""The name of both files, without suffix."""
_STORED = ("probs", "aleatoric_per_class", "epistemic_per_class", "entropy", "mutual_information")


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A set of images with what was predicted for them.

    Attributes:
        name: data set and part, such as ``cifar10/test``.
        images: (N, C, 32, 32), uint8, with as many channels as the network takes.
        labels: (N,) true classes; None for images of other classes (out of distribution).
        prediction: of all draws.
    """

    name: str
    images: Tensor
    labels: Tensor | None
    prediction: Prediction

    def __len__(self) -> int:
        return len(self.prediction)


@dataclass(frozen=True)
class NoiseLevel:
    """Means over test images to whose pixels, in [0, 1], `gamma` times standard normal noise was added.

    The intervals are bootstrap intervals of the means, 95 %.
    """

    gamma: float
    accuracy: float
    aleatoric: float
    epistemic: float
    entropy: float
    mutual_information: float
    aleatoric_interval: tuple[float, float]
    epistemic_interval: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Predictions and metrics of a run, or of several as an ensemble.

    Attributes:
        runs: one, or the members of an ensemble.
        class_names: of the network.
        test: the test images.
        validation: the images that every run held out from its training, for post-hoc calibration; an ensemble whose
            members have no such images in common has none.
        ood: test images of other data sets, by name.
        noise: uncertainty against noise on the test images.
        metrics: what metrics.json holds.
        seconds: how long all took (``total``), and the networks' forward passes alone (``forward``).
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
    def is_current(self) -> bool:
        """Whether the runs still have the weights that were evaluated."""
        settings = self.metrics["settings"]
        return all(
            fingerprint(run, settings["checkpoint"]) == facts["weights"]
            for run, facts in zip(self.runs, settings["runs"], strict=True)
        )

    def keep(self, folder: str | os.PathLike[str]) -> None:
        """Save it, if the folder can be written: somebody else's run is evaluated again the next time."""
        try:
            self.save(folder)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            warnings.warn(f"{folder} cannot be written, so its evaluation is not kept.", DubitoWarning, stacklevel=2)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write evaluation.json and evaluation.safetensors into `folder`, each atomically."""
        from safetensors.torch import save

        folder = Path(folder)
        content = {
            "runs": [os.path.relpath(run.path.resolve(), folder.resolve()) for run in self.runs],
            "class_names": self.class_names,
            "test": _describe(self.test),
            "validation": _describe(self.validation),
            "ood": {name: _describe(part) for name, part in self.ood.items()},
            "noise": [asdict(level) for level in self.noise],
            "metrics": self.metrics,
            "seconds": self.seconds,
        }
        text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        tensors = {**_tensors("test", self.test), **_tensors("validation", self.validation)}
        for name, part in self.ood.items():
            tensors.update(_tensors(f"ood/{name}", part))
        # The digest tells whether both files are of one evaluation: a process may end between the two.
        write_atomically(folder / f"{FILE}.safetensors", save(tensors, {"json": _digest(text)}))
        write_atomically(folder / f"{FILE}.json", text)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, images: bool = True) -> Evaluation:
        """The evaluation that `save` wrote into a folder.

        The images are read again from their data sets; with images=False there are none, and no data set is needed.
        """
        folder = Path(folder)
        content, tensors = _read(folder)
        try:
            runs = tuple(Run.open(os.path.normpath(folder / path)) for path in content["runs"])
            channels = runs[0].data.channels
            parts = {"test": content["test"], "validation": content["validation"]}
            parts |= {f"ood/{name}": part for name, part in content["ood"].items()}
            places = content["metrics"]["settings"].get("places", {})
            found = {
                key: _stored(part, tensors, key, _images(key, part["name"], runs, places) if images else None, channels)
                for key, part in parts.items()
            }
            ood = {name: found[f"ood/{name}"] for name in content["ood"]}
            noise = tuple(_noise_level(level) for level in content["noise"])
            names = tuple(content["class_names"])
            return cls(
                runs, names, found["test"], found["validation"], ood, noise, content["metrics"], content["seconds"]
            )
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise RunError(
                f"{folder / FILE}.json is not an evaluation ({error!r}); run dubito evaluate again."
            ) from None


def _noise_level(stored: dict[str, Any]) -> NoiseLevel:
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
    return NoiseLevel(**values)


def _describe(part: Evaluated) -> dict[str, Any]:
    return {"name": part.name, "images": len(part), "samples": part.prediction.samples}


def _tensors(prefix: str, part: Evaluated) -> dict[str, Tensor]:
    tensors = {name: getattr(part.prediction, name) for name in _STORED}
    if part.labels is not None:
        tensors["labels"] = part.labels
    return {f"{prefix}/{name}": tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The content of both files, if they are whole and belong together."""
    from safetensors import SafetensorError, safe_open

    file = folder / f"{FILE}.json"
    if not file.exists():
        raise RunError(f"{folder} holds no evaluation yet; make it with `dubito evaluate {folder}`.")
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text)
        with safe_open(folder / f"{FILE}.safetensors", framework="pt") as stored:
            if (stored.metadata() or {}).get("json") != _digest(text):
                raise RunError(f"The two files {folder / FILE}.* are not of one evaluation; run dubito evaluate again.")
            return content, {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise RunError(f"{folder / FILE}.* is damaged ({error}); run dubito evaluate again.") from None


def _stored(
    description: dict[str, Any], tensors: dict[str, Tensor], prefix: str, images: Tensor | None, channels: int
) -> Evaluated:
    values: dict[str, Any] = {name: tensors[f"{prefix}/{name}"] for name in _STORED}
    if images is None:
        images = torch.zeros(0, channels, IMAGE_SIZE, IMAGE_SIZE, dtype=torch.uint8)
    elif len(images) != len(values["probs"]):
        raise RunError(
            f"{description['name']} has {len(images)} images now, but {len(values['probs'])} were evaluated; run "
            "dubito evaluate again."
        )
    prediction = Prediction(**values, samples=description["samples"])
    return Evaluated(description["name"], images, tensors.get(f"{prefix}/labels"), prediction)


def _images(key: str, name: str, runs: Sequence[Run], places: Mapping[str, str]) -> Tensor:
    """The images of a stored part, read again; its name is that of the data set and /test or /validation.

    `places` are the paths of those that were given by one, which may not lead there from another folder.
    """
    data = found_at(name.rpartition("/")[0], places)
    if key == "validation":
        return _held_out(runs, None if data == runs[0].config.data else data).images
    return _test_images(data, runs[0].data.channels).images


def kept_settings(stored: Evaluation) -> dict[str, Any]:
    """What makes another evaluation like a stored one."""
    settings = stored.metrics["settings"]
    places = settings.get("places", {})
    names = ("samples", "seed", "checkpoint", "coverage", "bootstrap", "batch_size", "noise_images")
    kept: dict[str, Any] = {name: settings[name] for name in names}
    kept |= {"data": found_at(settings["data"], places), "ood": [found_at(name, places) for name in stored.ood]}
    return kept | {"noise": [level.gamma for level in stored.noise]}


def found_at(data: str, places: Mapping[str, str]) -> str:
    """Where data is that was given by this name: in its place, or, if that is gone, where the name leads from here."""
    return places[data] if data in places and Path(places[data]).exists() else data


def place_of(data: str) -> str:
    """A name that is the same from every folder: that of a known data set, else a whole path."""
    return data if data in DATASETS else str(Path(data).expanduser().resolve())


def evaluate(
    runs: Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]],
    *,
    data: str | None = None,
    samples: int = 10,
    ood: Sequence[str] = (),
    noise: Sequence[float] = (0.0, 0.1, 0.2, 0.3),
    noise_images: int | None = 2000,
    coverage: float = 0.9,
    bootstrap: int = 1000,
    seed: int = 0,
    checkpoint: str = "best",
    batch_size: int = 256,
    device: str | torch.device = "cpu",
    progress: bool = False,
) -> Evaluation:
    """Evaluate a run, or several as one ensemble, on test images.

    Members of an ensemble must have been trained on the same data set. Their draws are draws of one predictive
    distribution; a member without anything to draw gives one. Post-hoc calibration then uses the images that every
    member held out.

    Args:
        runs: a run or its folder, or several.
        data: another data set with the same classes, whose test images to use; None for the run's own.
        samples: draws of each network.
        ood: data sets whose test images the network should find strange.
        noise: standard deviations of noise added to the pixels, which lie in [0, 1]; the sum is not clipped.
        noise_images: how many test images, chosen at random, get noise; None for all.
        coverage: requested of conformal sets.
        bootstrap: resamples for the confidence intervals.
        seed: of draws, noise and resamples.
        checkpoint: ``best`` or ``last``.
        batch_size: images at once.
        device: where the networks compute.
        progress: show a bar with the time left, on stderr.
    """
    began = perf_counter()
    from dubito.evaluation.summary import noise_level, plain, summarize

    _check_options(samples, noise, noise_images, coverage, bootstrap)
    opened = _open(runs)
    facts = _facts(opened, checkpoint)  # now, so that a run without weights is told before anything is read
    for name in ood:
        open_dataset(name)
    channels, names = opened[0].data.channels, opened[0].data.class_names
    if data is None:
        _require_data(opened[0])
    test, held_out = _own_test_images(opened[0], data or opened[0].config.data), _held_out(opened, data)
    strange = {name: _test_images(name, channels) for name in dict.fromkeys(ood)}
    if place_of(test.name) in map(place_of, strange):
        raise OptionError(f"{test.name} is evaluated itself, so it cannot be out of distribution (--ood) too.")
    chosen = _some(len(test), noise_images, seed)
    jobs = {"test": _Job(test.images), "validation": _Job(held_out.images)}
    jobs |= {f"ood/{name}": _Job(part.images) for name, part in strange.items()}
    jobs |= {f"noise/{gamma!r}": _Job(test.images[chosen], gamma) for gamma in noise if gamma > 0}

    options: dict[str, Any] = {"samples": samples, "batch_size": batch_size}
    found, forward = _predict_all(opened, jobs, options, seed, checkpoint, device, progress)
    predictions: dict[str, Prediction] = {key: pool(parts) for key, parts in found.items()}
    predictions.setdefault("validation", predictions["test"][:0])
    levels = tuple(
        noise_level(
            gamma,
            predictions[f"noise/{gamma!r}"] if gamma > 0 else predictions["test"][chosen],
            test.labels[chosen],
            bootstrap,
            seed,
        )
        for gamma in noise
    )
    evaluated = Evaluated(f"{test.name}/test", test.images, test.labels, predictions["test"])
    validation = Evaluated(f"{held_out.name}/validation", held_out.images, held_out.labels, predictions["validation"])
    others = {
        name: Evaluated(f"{name}/test", part.images, None, predictions[f"ood/{name}"]) for name, part in strange.items()
    }
    metrics = summarize(evaluated, validation, others, names, coverage=coverage, bootstrap=bootstrap, seed=seed)
    metrics["noise"] = [asdict(level) for level in levels]
    metrics["settings"] = {
        "data": test.name,
        "samples": samples,
        "seed": seed,
        "checkpoint": checkpoint,
        "coverage": coverage,
        "bootstrap": bootstrap,
        "batch_size": batch_size,
        "noise_images": len(chosen),
        "places": {name: place_of(name) for name in (test.name, held_out.name, *strange) if name not in DATASETS},
        "images": {key: len(job.images) for key, job in jobs.items() if not key.startswith("noise/")},
        **facts,
    }
    seconds = {"total": perf_counter() - began, "forward": forward}
    return Evaluation(opened, names, evaluated, validation, others, levels, plain(metrics), seconds)


@dataclass(frozen=True, eq=False)
class _Job:
    """Images to predict, with noise on their pixels."""

    images: Tensor
    gamma: float = 0.0

    def batches(self, run: Run, size: int, seed: int, advance: Callable[[int], None]) -> Iterator[Tensor]:
        """Batches as the run's network takes them."""
        # One noise for all levels and members: differences between them are then those of the level alone.
        generator = torch.Generator().manual_seed(seed)
        std = torch.tensor(run.data.std).view(-1, 1, 1)
        for part in self.images.split(size):
            batch = normalize(part, run.data.mean, run.data.std)
            if self.gamma > 0:
                batch += torch.randn(batch.shape, generator=generator) * (self.gamma / std)
            yield batch
            advance(len(part))


def _predict_all(
    runs: Sequence[Run],
    jobs: Mapping[str, _Job],
    options: dict[str, Any],
    seed: int,
    checkpoint: str,
    device: str | torch.device,
    progress: bool,
) -> tuple[dict[str, list[Prediction]], float]:
    """Each member's predictions of every job that has images, and the seconds spent in forward passes."""
    found: dict[str, list[Prediction]] = {}
    watch = _Stopwatch()
    total = len(runs) * sum(len(job.images) for job in jobs.values())
    with _progress_bar(total, progress) as advance:
        for member, run in enumerate(runs):
            network = run.load(checkpoint).to(device)
            watch.attach(network)
            if len(runs) > 1 and run.config.splits_logits:
                raise OptionError(
                    f"{run.path} has the kendall_gal head, whose uncertainties are those of logits: it cannot be a "
                    "member of an ensemble."
                )
            for key, job in jobs.items():
                if len(job.images):
                    batches = job.batches(run, options["batch_size"], seed, advance)
                    generator = torch.Generator().manual_seed(seed + member)
                    prediction = predict(network, batches, generator=generator, route="weights", **options)
                    found.setdefault(key, []).append(prediction.to("cpu"))
    return found, watch.seconds


class _Stopwatch:
    """Counts the seconds that networks spend in their forward passes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def attach(self, network: nn.Module) -> None:
        network.register_forward_pre_hook(self._start)
        network.register_forward_hook(self._stop)

    def _start(self, module: nn.Module, inputs: Any) -> None:
        self._began = perf_counter()

    def _stop(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.seconds += perf_counter() - self._began


@contextmanager
def _progress_bar(total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    if not shown:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("Evaluating"), BarColumn(), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


def _check_options(
    samples: int, noise: Sequence[float], noise_images: int | None, coverage: float, bootstrap: int
) -> None:
    for name, value in (("samples", samples), ("bootstrap", bootstrap), ("noise_images", noise_images)):
        if value is not None and value < 1:
            raise OptionError(f"{name} is {value}, but must be at least 1.")
    for gamma in noise:
        if not 0 <= gamma < float("inf"):
            raise OptionError(f"noise has the level {gamma}, but levels are standard deviations: 0 or more.")
    if not 0 < coverage < 1:
        raise OptionError(f"coverage is {coverage}, but must lie between 0 and 1.")


def _open(runs: Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]]) -> tuple[Run, ...]:
    given = [runs] if isinstance(runs, (Run, str, os.PathLike)) else list(runs)
    if not given:
        raise OptionError("There is no run to evaluate: give at least one.")
    opened = tuple(run if isinstance(run, Run) else Run.open(run) for run in given)
    first = opened[0]
    for run in opened[1:]:
        same = run.config.data == first.config.data and run.data.class_names == first.data.class_names
        if not same or run.data.channels != first.data.channels:
            raise RunError(
                f"{run.path} was trained on {run.config.data} and {first.path} on {first.config.data}, but members of "
                "an ensemble need the same data set with the same classes."
            )
    return opened


def _require_data(run: Run) -> None:
    """An error that says whose data it is and what can be done, if it is not there."""
    try:
        run.open_data()
    except RunError as error:
        raise RunError(f"{str(error).rstrip('.')}; if it has moved, say where it is with --data.") from None


def _own_test_images(run: Run, data: str) -> Dataset:
    """The test images of a data set that has the network's classes."""
    classes, known = open_dataset(data).class_names, run.data.class_names
    if classes != known:
        what = (
            f"{len(classes)} classes, but the network of {run.path} tells {len(known)} apart"
            if len(classes) != len(known)
            else f"the classes {_listed(classes)}, but the network of {run.path} tells {_listed(known)} apart"
        )
        raise DataError(f"{data} has {what}; as other images it can be given as --ood {data}.")
    return _test_images(data, run.data.channels)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _test_images(data: str, channels: int) -> Dataset:
    """The test split of a data set, gray or colour as the network takes it."""
    part = open_dataset(data).test()
    if not len(part):
        raise DataError(f"{data} has no test images.")
    images = with_channels(part.images, channels)
    return Dataset(images, part.labels, part.class_names, data, part.mean, part.std)


def _held_out(runs: Sequence[Run], moved: str | None = None) -> Dataset:
    """The images that every run held out from its training, in the order of the data set.

    `moved` is where the data may be found if it is not in its place any more.
    """
    data = runs[0].config.data
    try:
        source = runs[0].open_data()
    except RunError:
        if moved is None:
            raise
        data, source = moved, open_dataset(moved)
    whole = source.train()
    shared = torch.ones(len(whole), dtype=torch.bool)
    for run in runs:
        kept, held_out = split_validation(whole.labels, run.config.validation_fraction, run.config.seed)
        if len(kept) != run.data.num_data or whole.class_names != run.data.class_names:
            raise RunError(f"{data} is not what {run.path} was trained on any more, so what it held out is not known.")
        mine = torch.zeros_like(shared)
        mine[held_out] = True
        shared &= mine
    images = whole.images[shared]
    return Dataset(images, whole.labels[shared], whole.class_names, data, whole.mean, whole.std)


def _some(count: int, wanted: int | None, seed: int) -> Tensor:
    """Sorted numbers of at most `wanted` of `count` images, chosen at random."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[:wanted].sort().values


def _facts(runs: Sequence[Run], checkpoint: str) -> dict[str, Any]:
    """What decides the results of the runs."""
    names = ("model", "data", "inference", "head", "activation", "epochs", "batch_size", "learning_rate", "seed")
    bayesian = ("temperature", "prior", "estimator", "parameterization", "kl_schedule")
    members = []
    for run in runs:
        own = (*names, *bayesian) if run.config.inference == "vi" else names
        facts: dict[str, Any] = {"run": run.path.resolve().name, **{name: getattr(run.config, name) for name in own}}
        facts["weights"] = fingerprint(run, checkpoint)
        members.append(facts)
    temperatures = {facts.get("temperature") for facts in members}
    return {"temperature": temperatures.pop() if len(temperatures) == 1 else None, "runs": members}


def fingerprint(run: Run, checkpoint: str) -> str:
    """Tells whether weights are the ones that were evaluated: the SHA-256 of their file."""
    file = run.path / f"{checkpoint}.safetensors"
    if not file.exists():
        raise RunError(f"The run {run.path} has no {file.name} yet; train it for an epoch first.")
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
