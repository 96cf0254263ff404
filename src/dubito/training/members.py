"""The members of an ensemble: a run for each, in the folder of the ensemble.

All members hold out the same validation images and differ in their seeds: initialisation, order, augmentation and
noise. A member that starts from trained weights starts from the same ones as all others, or, if these are an ensemble
of as many members, from the member of its own number.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from dubito.errors import DubitoError, DubitoWarning, OptionError, RunError
from dubito.evaluation.images import held_out_images
from dubito.evaluation.novelty import fit_novelty
from dubito.evaluation.validation import validate
from dubito.files import new_folder, refuse_existing, write_atomically
from dubito.runs.config import TrainingConfig
from dubito.runs.run import MEMBERS, Run

KEPT = ("environment.json", "network.json", "metrics.csv", "posterior.csv", "best.safetensors", "config.yaml")
"""What an ensemble takes over of a trained run."""


def starts_from_members(config: TrainingConfig) -> bool:
    """Whether the training starts from the weights of an ensemble, each member from that of its own number."""
    folder = Path(config.init).expanduser()
    if not (folder / MEMBERS).is_dir() or not (folder / "config.yaml").is_file():
        return False
    there = Run.open(folder).config.members
    if there != config.members:
        raise OptionError(
            f"init is {folder}, an ensemble of {there}, but members is {config.members}: give --members {there}, or "
            f"start from one of its members, such as {folder / MEMBERS / '0'}."
        )
    return True


def member_config(config: TrainingConfig, number: int) -> TrainingConfig:
    """The settings of one member; those of a single network are its own."""
    if config.members == 1:
        starts_from_members(config)  # which is refused
        return config
    own = config.member(number)
    if starts_from_members(config):
        own = replace(own, init=str(Path(config.init).expanduser() / MEMBERS / str(number)))
    return own


def begin_member(run: Run, number: int) -> Run:
    """The run of an ensemble's member, made if it is not there."""
    path = run.member_path(number)
    if run.claim is not None:
        run.claim.check()  # no member is made in a folder that was removed
    if (path / "config.yaml").exists():
        return Run.open(path)
    if path.exists():
        shutil.rmtree(path)  # a kill came before its configuration was written
    member = Run(path, member_config(run.config, number), run.data)
    member.create()
    return member


def begun_members(run: Run) -> list[Run]:
    """The members that have a folder; a single run is its own."""
    if not run.is_ensemble:
        return [run]
    paths = [run.member_path(number) for number in range(run.config.members)]
    return [Run.open(path) for path in paths if (path / "config.yaml").exists()]


def assemble(
    runs: Sequence[Run | str | os.PathLike[str]], out: str | os.PathLike[str], *, progress: bool = False
) -> Run:
    """Join trained runs into an ensemble in a new run folder, with copies of their best weights.

    If a run is an ensemble, its members become members of the new one, so all count the same. Its validation record and
    novelty are made from the images that every member held out; a warning says if there are none, or if the data is
    missing.
    """
    opened = [run if isinstance(run, Run) else Run.open(run) for run in runs]
    members = [member for run in opened for member in run.members]
    if len(members) < 2:
        raise OptionError(f"An ensemble needs at least 2 members, but got {len(members)}.")
    _require_alike(members)
    refuse_existing(Path(out))
    first = members[0]
    config = replace(first.config, members=len(members))
    for member in members:
        member.fingerprint()  # refuses one without weights
    with new_folder(Path(out)) as folder:
        whole = Run(folder, config, first.data)
        for number, member in enumerate(members):
            for name in KEPT:
                if (member.path / name).exists():
                    write_atomically(whole.member_path(number) / name, (member.path / name).read_bytes())
        whole.write_settings()
    whole = Run(out, config, first.data)
    try:
        held_out = held_out_images([whole])
        if not len(held_out):
            raise RunError("they have no validation image in common; train them with the same --split-seed")
        if whole.config.novelty:
            fit_novelty(whole, first.parts()[0], held_out)
        validate(whole, held_out, progress=progress)
    except DubitoError as error:
        reason = str(error).rstrip(".")
        warnings.warn(f"{whole.path} has no validation record: {reason}.", DubitoWarning, stacklevel=2)
    return whole


def _require_alike(members: Sequence[Run]) -> None:
    """Refuse members that do not take the same images, or have other classes."""
    first = members[0]
    for member in members:
        if member.config.splits_logits:
            raise OptionError(
                f"{member.path} has the {member.config.head} head, whose uncertainties are those of logits: it cannot "
                "be a member of an ensemble."
            )
        if member.config.data != first.config.data:
            raise RunError(
                f"{member.path} was trained on {member.config.data} and {first.path} on {first.config.data}, but "
                "members of an ensemble need the same data set."
            )
        own, others = asdict(member.data), asdict(first.data)
        for name in own:
            if name != "num_data" and own[name] != others[name]:
                raise RunError(
                    f"{member.path} and {first.path} do not take the same images: {name} is {own[name]} for one "
                    f"and {others[name]} for the other, but must be the same."
                )
