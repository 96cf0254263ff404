"""Training a network by its settings into a run folder, and continuing one that was stopped."""

from __future__ import annotations

import logging
import os
import reprlib
import shutil
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_utilities.core.rank_zero import rank_zero_only
from rich.console import Console
from torch import Tensor

from dubito.data import DATASETS, Fit
from dubito.errors import NonFiniteError, OptionError, RunError, missing, unknown
from dubito.evaluation.novelty import fit_novelty, run_novelty
from dubito.evaluation.validation import validate
from dubito.files import refuse_existing
from dubito.foreign import reading
from dubito.heads import balanced_class_weights
from dubito.models.building import set_relative_std
from dubito.models.initialization import initialize
from dubito.models.registry import prefers_channels_last
from dubito.models.trust import remember, trusting
from dubito.runs.claim import BEGINNING, claimed
from dubito.runs.config import TrainingConfig
from dubito.runs.run import Run
from dubito.threads import same_threads, suiting_threads
from dubito.training.callbacks import Display, InterruptedTraining, RunKeeper
from dubito.training.classifier import Classifier
from dubito.training.images import ImageData
from dubito.training.members import begin_member, begun_members, member_config, starts_from_members
from dubito.training.optimizers import optimizer_maker
from dubito.variational.elbo import KLSchedule
from dubito.zoo import find


def train(
    config: TrainingConfig,
    out: str | os.PathLike[str],
    *,
    console: Console | None = None,
    report_every: int = 1,
    callbacks: list[pl.Callback] | None = None,
) -> Run:
    """Train with the settings `config` into the new run folder `out`, and print every `report_every`-th epoch."""
    first = _is_first_process()
    if first:
        refuse_existing(Path(out), besides=BEGINNING)
    with trusting():  # whoever trains has named the network
        return _train(config, Path(out), first, console, report_every, callbacks or [])


def _train(
    config: TrainingConfig,
    out: Path,
    first: bool,
    console: Console | None,
    report_every: int,
    callbacks: list[pl.Callback],
) -> Run:
    _require_device(config.device)
    optimizer_maker(config.optimizer)  # refuses an unknown one
    if config.data not in DATASETS:  # a path, which must be found from every working directory
        config = replace(config, data=str(Path(config.data).expanduser().resolve()))
    config = replace(config, init=_resolved(config.init), model=_resolved(config.model, "hf:"))
    images = _images(config)
    run = Run(out, config, images.describe())
    # Settings that do not fit each other are refused before anything is written.
    for number in range(config.members if starts_from_members(config) else 1):
        begun = Run(run.path, member_config(config, number), run.data)
        _class_weights(begun, images)
        _require_same_outputs(begun)
        if config.init != "none":
            begun.build(start=True)
        else:
            begun.skeleton(start=True)
    with claimed(run.path, new=True) if first else nullcontext() as run.claim:
        if first:
            remember(config.model)
            run.create()
        try:
            return _fit_all(run, images, console, report_every, callbacks)
        except InterruptedTraining:
            raise
        except Exception:
            if run.claim and run.claim.is_in_place() and not any(run.path.rglob("*.safetensors")):
                shutil.rmtree(run.path)  # it holds nothing but the settings, which did not work
            raise


def resume(
    path: str | os.PathLike[str],
    *,
    console: Console | None = None,
    report_every: int = 1,
    callbacks: list[pl.Callback] | None = None,
    accept_changes: bool = False,
) -> Run:
    """Continue a run that was stopped or killed; it ends with the same weights as without the stop.

    It uses as many threads as before, because their number changes how sums are rounded. A warning says if
    something else that changes rounding is different now. Settings that were edited meanwhile are refused, unless
    `accept_changes`.
    """
    run = Run.open(path)
    for member in begun_members(run):
        if not accept_changes:
            _require_unchanged(member)
        # A run without metrics stopped while it wrote its first checkpoints, and starts again.
        if member.has_checkpoint("best") and not member.has_checkpoint("last") and member.metrics():
            raise RunError(f"{member.path} cannot be continued: it has weights, but no state of the training.")
    run.open_data()  # an error names the run if the data is not there
    images = _images(run.config, run.data.size, run.data.fit)
    found = images.describe()
    if (found.class_names, found.num_data, found.size) != (run.data.class_names, run.data.num_data, run.data.size):
        raise RunError(
            f"{run.config.data} has {found.num_data} training images of {len(found.class_names)} classes, but "
            f"{run.path} was trained on {run.data.num_data} of {len(run.data.class_names)}: put them back, or train a "
            "new run."
        )
    with (
        claimed(run.path) if _is_first_process() else nullcontext() as run.claim,
        same_threads(run.environment()),
    ):
        return _fit_all(run, images, console, report_every, callbacks or [])


def _require_unchanged(run: Run) -> None:
    """Refuse a configuration that is not the one that the last checkpoint was trained with."""
    if not run.has_checkpoint("last"):
        return
    with reading(run.path / "last.safetensors", "restore it or train again"):
        trained = run.read_checkpoint("last")[1].get("settings", {})
        changes = [
            f"{name} is {reprlib.repr(now[name])}, but was {reprlib.repr(before[name])}"
            for now, before in ((part, trained.get(title, {})) for title, part in run.settings().items())
            for name in now
            if name in before and before[name] != now[name]
        ]
    if changes:
        raise RunError(
            f"{run.path / 'config.yaml'} was edited after the last checkpoint ({'; '.join(changes)}): "
            "undo that, or continue with the new settings by --accept-changes."
        )


def _fit_all(
    run: Run, images: ImageData, console: Console | None, report_every: int, callbacks: list[pl.Callback]
) -> Run:
    """Train the network, or every member of an ensemble, as far as it is not trained yet, and validate it."""
    several = run.config.members
    try:
        for number in range(several):
            member = begin_member(run, number) if run.is_ensemble else run
            title = f"member {number + 1} of {several}" if run.is_ensemble else ""
            own = run.is_ensemble and run.claim is not None
            with claimed(member.path) if own else nullcontext(member.claim) as member.claim:
                _fit(member, images.reordered(member.config.seed), console, report_every, callbacks, title)
    except InterruptedTraining as stop:
        raise InterruptedTraining(f"{stop} Continue with: dubito train --resume {quote(str(run.path))}") from None
    _validated(run, images, console)
    if run.claim is not None:
        run.claim.check()
    return run


def _resolved(text: str, prefix: str = "") -> str:
    """A path after a prefix as it is found from every working directory; what is no path stays as it is."""
    path = Path(text.removeprefix(prefix)).expanduser()
    return prefix + str(path.resolve()) if text.startswith(prefix) and text != "none" and path.exists() else text


def _require_device(name: str) -> None:
    """Refuse a device that is not there before anything is read or written."""
    known = ("auto", "cpu", "gpu", "cuda", "mps")
    if name not in known:
        raise OptionError(unknown("device", name, known))
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    there["gpu"] = any(there.values())
    if not there.get(name, True):
        raise OptionError(f"device is {name!r}, but torch finds none on this machine: use 'auto' or 'cpu'.")


def _is_first_process() -> bool:
    """Whether no other process of a distributed training may write; asked before there is a Trainer."""
    rank = int(getattr(rank_zero_only, "rank", 0))
    return rank == 0 and int(os.environ.get("NODE_RANK", os.environ.get("GROUP_RANK", "0"))) == 0


def _images(config: TrainingConfig, size: int | None = None, fit: Fit | None = None) -> ImageData:
    """The data of a new training, or of a run that has decided on size and fit."""
    return ImageData(
        config.data,
        config.batch_size,
        augment=config.augment,
        crop=config.crop,
        validation_fraction=config.validation_fraction,
        seed=config.seed,
        split_seed=config.seed_of_split,
        size=size or config.size or None,
        fit=fit or (None if config.fit == "auto" else config.fit),
        flip=None if config.flip == "auto" else config.flip == "yes",
        strict=config.strict,
        workers=config.workers,
    )


def _fit(
    run: Run, images: ImageData, console: Console | None, report_every: int, callbacks: list[pl.Callback], title: str
) -> None:
    """Train one network; `title` says which of several it is."""
    config = run.config
    # Softplus outputs underflow to denormals, which cost a CPU several times an ordinary number.
    torch.set_flush_denormal(True)
    module = _module(run, images)
    keeper = RunKeeper(run, config.checkpoint_minutes)
    if run.has_checkpoint("last"):
        images.start = keeper.resume(module)
    remaining = config.epochs - module.start.epoch
    if remaining <= 0:
        return
    trainer = _trainer(config, run, remaining, [keeper, Display(keeper, console, report_every, title), *callbacks])
    try:
        with keeper.listening(), _threads(module, images):
            trainer.fit(module, datamodule=images)
    except NonFiniteError as error:
        kept = "The last good checkpoint is kept in" if run.has_checkpoint("last") else "No epoch was finished in"
        raise NonFiniteError(f"{error} {kept} {run.path}.") from None


def _validated(run: Run, images: ImageData, console: Console | None) -> None:
    """Give the run its novelty and its validation record, so that later commands need no images."""
    if _is_first_process() and run.find_validation() is None:
        if run.config.novelty and run_novelty(run) is None:
            fit_novelty(run, images.train_part, images.validation_part)
        validate(run, images.validation_part, progress=console is None or not console.quiet)


def _threads(module: Classifier, images: ImageData) -> AbstractContextManager[object]:
    """As many threads as suit the work of a batch."""
    network = module.network
    image = next(iter(images.batches(images.train_part, train=False)))[0][0]
    return suiting_threads(network, image.to(next(network.parameters()).device), images.batch_size)


def _module(run: Run, images: ImageData) -> Classifier:
    """The network, initialised on its own data, in the Lightning module that trains it."""
    config = run.config
    torch.manual_seed(config.seed)
    fresh = not run.has_checkpoint("last")
    network = run.build(start=fresh)
    batches = images.batches(images.train_part, train=True)
    batches_per_epoch = -(-len(images.train_part.labels) // config.batch_size)
    if fresh and config.init == "none":
        batches.augment = None
        initialize(network, next(iter(batches))[0])
        set_relative_std(network, config.relative_std)
    return Classifier(
        network,
        num_data=run.data.num_data,
        epochs=config.epochs,
        num_classes=len(run.data.class_names),
        batches_per_epoch=batches_per_epoch,
        optimizer=config.optimizer,
        learning_rate=config.learning_rate,
        lr_schedule=config.lr_schedule,
        l2=config.l2 if config.inference != "vi" else 0.0,
        hessian_rate=config.hessian_rate,
        centralize=config.centralize,
        schedule=KLSchedule(config.kl_schedule, config.temperature, config.warmup_epochs),
        samples=1 if config.inference == "frequentist" else config.samples,  # all draws would be equal
        validation_samples=config.validation_samples,
        seed=config.seed,
        channels_last=prefers_channels_last(config.model),
        class_weights=_class_weights(run, images),
        label_smoothing=config.label_smoothing,
    )


def _class_weights(run: Run, images: ImageData) -> Tensor | None:
    """How much an image of each class counts, from the settings and the labels of the images that are trained on."""
    classes, given = len(run.data.class_names), run.config.given_class_weights
    if run.config.class_weights == "balanced":
        return balanced_class_weights(images.train_part.labels, classes)
    if given is None:
        return None
    if len(given) != classes:
        raise OptionError(f"class_weights has {len(given)} numbers, but the data has {classes} classes.")
    return torch.tensor(given)


def _require_same_outputs(run: Run) -> None:
    """Refuse to start from a run whose weights mean something else although they may fit."""
    if not (find(run.config.init).expanduser() / "config.yaml").is_file():
        return
    begun = Run.open(run.config.init)
    for name in ("model", "activation", "norm", "head"):
        found, wanted = getattr(begun.config, name), getattr(run.config, name)
        if found != wanted:
            raise RunError(
                f"init is {begun.path}, whose {name} is {found}, but this training's is {wanted}: leave --{name} out, "
                "or start from another run."
            )


def _trainer(config: TrainingConfig, run: Run, epochs: int, callbacks: list[pl.Callback]) -> pl.Trainer:
    for name in ("pytorch_lightning", "lightning_fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # Ours are batches in memory; advice about workers of a DataLoader does not apply.
    warnings.filterwarnings("ignore", module="pytorch_lightning.*")
    processes = config.devices * config.num_nodes
    options: dict[str, Any] = {"strategy": "ddp"} if processes > 1 else {}
    no_choice = config.device == "auto" and not torch.cuda.is_available()
    options["accelerator"] = "cpu" if no_choice else config.device
    return pl.Trainer(
        max_epochs=epochs,
        devices=config.devices,
        num_nodes=config.num_nodes,
        callbacks=callbacks,
        logger=_tensorboard(run) if config.tensorboard else False,
        gradient_clip_val=config.clip or None,
        precision="bf16-mixed" if config.precision == "bf16" else "32-true",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        **options,
    )


def _tensorboard(run: Run) -> Any:
    from pytorch_lightning.loggers import TensorBoardLogger

    try:
        import torch.utils.tensorboard  # noqa: F401  (Lightning would look for it only later)

        return TensorBoardLogger(run.path, name="tensorboard", version="")
    except ImportError:
        raise missing("--tensorboard", "tensorboard", "tensorboard") from None
