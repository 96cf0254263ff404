"""A run: one training as a folder with its configuration, environment, weights and metrics.

    config.yaml        the settings, and what the network must know about its data
    environment.json   commit, versions, hardware, seed and command
    metrics.csv        a row per epoch
    posterior.csv      mean and standard deviation of one weight per Bayesian layer, a row per epoch and layer
    network.json       configuration of a network of Hugging Face, so that its folder is not needed
    best.safetensors   the network at the epoch with the lowest validation NLL
    novelty.safetensors  what training images look like to the network: how novelty is measured
    last.safetensors   network, optimiser and progress: what `dubito train --resume` continues from
    validation.safetensors, calibration.json   the validation record; see :mod:`dubito.runs.validation`
    decision.json      the rule that `dubito decide` fitted: which predictions to accept
    members/0, 1, ...  of an ensemble: the run of each member, with its weights and metrics

Every file is written beside its place and then moved there, so that a run killed at any moment is whole. A training
claims its folder (:mod:`dubito.runs.claim`). What was fitted to the weights, or to predictions with novelty, keeps the
fingerprints of both files and does not count once these are others. Weights are safetensors: nothing is ever unpickled.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dubito.errors import DubitoError, RunError
from dubito.files import is_unfinished, refuse_existing, write_atomically
from dubito.foreign import (
    FAULTS,
    digest_of,
    parse_json,
    read_json,
    read_tensors,
    read_text,
    read_yaml,
    reading,
    reason_of,
)
from dubito.harmless import to_csv
from dubito.runs.claim import BEGINNING, Claim
from dubito.runs.config import TrainingConfig, restore
from dubito.runs.description import DataDescription
from dubito.runs.environment import environment
from dubito.zoo import find, refuse_to_change

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dubito.data.dataset import Dataset, DataSource
    from dubito.runs.validation import Calibration, Validation

Part = TypeVar("Part")

NETWORK = "network."
"""The prefix of the network's tensors in a checkpoint."""
VALIDATION, CALIBRATION = "validation", "calibration.json"
"""The two files of the validation record."""
NOVELTY = "novelty.safetensors"
"""How novelty is measured."""
MEMBERS = "members"
"""The folder of an ensemble's members."""
SHARED = ("class_names", "channels", "size")
"""What the data of an ensemble and its members have in common."""


class Run:
    """A run folder.

    `Run(...).create()` makes a new folder, `Run.open` reads an existing one and refuses an incomplete one.
    """

    def __init__(self, path: str | os.PathLike[str], config: TrainingConfig, data: DataDescription) -> None:
        self.path = Path(path)
        self.config = config
        self.data = data
        self.claim: Claim | None = None

    def create(self) -> None:
        """Make the folder, with configuration and environment; a folder that is not empty is refused."""
        refuse_existing(self.path, besides=BEGINNING)
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_settings()

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file of the run atomically; an error if its folder is not there any more."""
        refuse_to_change(self.path)
        if self.claim is not None:
            self.claim.check()
        try:
            write_atomically(self.path / name, content, make_folder=False)
        except FileNotFoundError:
            raise RunError(f"{name} cannot be written: the run folder {self.path} no longer exists.") from None

    def write_settings(self) -> None:
        """Write environment and configuration; the latter last, so that a folder that has it is a run."""
        import yaml

        self.write("environment.json", json.dumps(environment(self.config.seed), indent=2) + "\n")
        if self.config.model.startswith("hf:"):
            from dubito.models.hugging_face import configuration

            self.write("network.json", json.dumps(configuration(self.config.model), indent=2) + "\n")
        self.write("config.yaml", yaml.safe_dump(self.settings(), sort_keys=False, allow_unicode=True))

    def settings(self) -> dict[str, Any]:
        """What config.yaml holds, as plain values."""
        content = {"training": self.config.to_dict(), "data": asdict(self.data)}
        return dict(json.loads(json.dumps(content)))  # tuples as lists

    def environment(self) -> dict[str, Any]:
        """What environment.json says of the machine that the training began on; empty if there is none."""
        try:
            found = read_json(self.path / "environment.json")
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Run:
        """The run in that folder, or the one that ``zoo:NAME`` means."""
        folder = find(path)
        if not folder.is_dir():
            raise RunError(f"There is no run folder {folder}; give the folder that `dubito train --out` made.")
        file = folder / "config.yaml"
        try:
            content = read_yaml(file)
            if not isinstance(content, dict):
                raise ValueError(f"it is a {type(content).__name__}")
            return cls(folder, restore(content["training"]), DataDescription.of(content["data"]))
        except FileNotFoundError:
            names = [path.name for path in folder.iterdir()]
            if names and all(name in BEGINNING or is_unfinished(name) for name in names):
                raise RunError(
                    f"{folder} has no run: its training was stopped before it began. Start it again with the same "
                    "command."
                ) from None
            if (folder / "network.safetensors").exists():
                raise RunError(
                    f"{folder} is a saved network, not a run, so it has no images; use it with dubito predict, "
                    "serve and export."
                ) from None
            raise RunError(f"{folder} is not a run folder: it has no config.yaml.") from None
        except DubitoError as error:
            raise RunError(f"{file} is not a run's configuration: {error}") from None
        except FAULTS as error:
            raise RunError(f"{file} is not a run's configuration ({reason_of(error)}).") from None

    @property
    def is_ensemble(self) -> bool:
        """Whether the run has members, which have the weights."""
        return self.config.members > 1

    def member_path(self, number: int) -> Path:
        """The folder of an ensemble's member."""
        return self.path / MEMBERS / str(number)

    @property
    def members(self) -> tuple[Run, ...]:
        """The runs of an ensemble's members, in their order; a single network is its own only member."""
        if not self.is_ensemble:
            return (self,)
        paths = [self.member_path(number) for number in range(self.config.members)]
        begun = sum((path / "config.yaml").exists() for path in paths)
        if begun < len(paths):
            raise RunError(
                f"{self.path} is an ensemble of {len(paths)}, of which only {begun} have begun to train: "
                f"continue with `dubito train --resume {self.path}`."
            )
        return tuple(Run.open(path) for path in paths)

    def write_table(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Write a CSV file with these rows."""
        self.write(name, to_csv(rows[0], [list(row.values()) for row in rows]) if rows else "")

    def metrics(self) -> list[dict[str, float]]:
        """The rows of metrics.csv; an empty list before the first epoch has ended."""
        return self._read_table("metrics.csv", {})

    def posterior_trace(self) -> list[dict[str, Any]]:
        """The rows of posterior.csv: epoch, layer, index, mean and std of one weight per Bayesian layer."""
        kinds: dict[str, Any] = {"epoch": int, "layer": str, "index": int, "mean": float, "std": float}
        return self._read_table("posterior.csv", kinds)

    def _read_table(self, name: str, kinds: Mapping[str, Any]) -> list[dict[str, Any]]:
        file = self.path / name
        if not file.exists():
            return []
        with reading(file, "restore it or remove it"):
            try:
                rows = list(csv.DictReader(read_text(file).splitlines()))
            except csv.Error as error:
                raise ValueError(reason_of(error)) from None
            return [{key: kinds.get(key, float)(value) for key, value in row.items()} for row in rows]

    def write_checkpoint(self, name: str, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        """Write tensors and notes (JSON) into one file `name`.safetensors."""
        from safetensors.torch import save

        whole = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        self.write(f"{name}.safetensors", save(whole, {"notes": json.dumps(notes)}))

    def read_checkpoint(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and notes of a checkpoint."""
        from dubito.convert.pruning import unpack

        file = self.path / f"{name}.safetensors"
        if not file.exists() and self.is_ensemble:
            raise RunError(f"{self.path} is an ensemble: its weights are those of its members, in {MEMBERS}.")
        if not file.exists():
            raise RunError(f"The run {self.path} has no {file.name} yet; train it for an epoch first.")
        if not os.access(file, os.R_OK):
            raise RunError(f"{file} cannot be read: its permissions do not allow it.")
        with reading(file, "restore it or train again"):
            tensors, text = read_tensors(file)
            notes = parse_json(text)
            if not isinstance(notes, dict):
                raise ValueError(f"its notes are a {type(notes).__name__}")
            return unpack(tensors, notes.get("pruned", {})), notes

    def open_data(self, moved: str | None = None) -> DataSource:
        """The data set that the run was trained on, at the run's image size.

        `moved` is another place to look if the data set is not where it was.
        """
        try:
            return self.data.open(self.config.data)
        except DubitoError as error:
            if moved is not None:
                return self.data.open(moved)
            raise RunError(f"{self.path} was trained on {self.config.data}, which cannot be opened: {error}") from None

    def parts(self, moved: str | None = None) -> tuple[Dataset, Dataset]:
        """The images that the run was trained on, and those of its validation.

        A RunError says if the data set has changed since. `moved` is as in `open_data`.
        """
        source = self.open_data(moved)
        trained, held_out = source.parts(self.config.validation_fraction, self.config.seed_of_split)
        self._require_unchanged(source.name, len(trained), source.class_names)
        return trained, held_out

    def split(self, whole: Dataset) -> tuple[Tensor, Tensor]:
        """Indices of the images that the run was trained on, and of those that it held out for validation.

        `whole` is the training split of the run's data set, which has no validation split of its own; a RunError says
        if it has changed since.
        """
        from dubito.data import split_validation

        kept, held_out = split_validation(whole.labels, self.config.validation_fraction, self.config.seed_of_split)
        self._require_unchanged(whole.name, len(kept), whole.class_names)
        return kept, held_out

    def may_be_own(self, whole: Dataset) -> bool:
        """Whether the training split of data without splits has the classes and the number of images of the run's."""
        from dubito.data import split_validation

        kept, _ = split_validation(whole.labels, self.config.validation_fraction, self.config.seed_of_split)
        return len(kept) == self.data.num_data and whole.class_names == self.data.class_names

    def _require_unchanged(self, name: str, kept: int, class_names: tuple[str, ...]) -> None:
        if kept != self.data.num_data or class_names != self.data.class_names:
            raise RunError(f"{name} has changed since {self.path} was trained on it: the held-out images are unknown.")

    def has_checkpoint(self, name: str) -> bool:
        """Whether `name`.safetensors exists."""
        return (self.path / f"{name}.safetensors").exists()

    def fingerprint(self, checkpoint: str = "best") -> str:
        """Tells whether weights are the same: the SHA-256 of their file, or of an ensemble's members' fingerprints."""
        if self.is_ensemble:
            parts = "".join(member.fingerprint(checkpoint) for member in self.members)
            return hashlib.sha256(parts.encode()).hexdigest()
        file = self.path / f"{checkpoint}.safetensors"
        if not file.exists():
            raise RunError(f"The run {self.path} has no {file.name} yet; train it for an epoch first.")
        return _digest(file)

    def novelty_fingerprint(self) -> str | None:
        """The same of the file that says how novelty is measured; None if there is none."""
        file = self.path / NOVELTY
        return _digest(file) if file.exists() else None

    def origin(self, checkpoint: str = "best") -> dict[str, str | None]:
        """The fingerprints of all that predictions depend on, to be kept with whatever is fitted to them."""
        return {"weights": self.fingerprint(checkpoint), "novelty": self.novelty_fingerprint()}

    def changed_since(self, origin: Mapping[str, Any], checkpoint: str = "best") -> list[str]:
        """Which of ``weights`` and ``novelty`` have changed since this origin was kept, as far as it knows them."""
        return [name for name, now in self.origin(checkpoint).items() if name in origin and origin[name] != now]

    def validation(self) -> Validation:
        """The validation record of the best weights: predictions and labels of the images that training held out.

        :func:`dubito.evaluation.validation_of` also makes a missing one from the images.
        """
        return self._recorded(self.find_validation())

    def calibration(self) -> Calibration:
        """What was fitted to the validation images: the part of their record that is not predictions."""
        return self._recorded(self.find_calibration())

    def _recorded(self, found: Part | None) -> Part:
        if found is None:
            raise RunError(
                f"{self.path} has no validation record of its best weights; "
                f"`dubito train --resume {self.path}` makes it from its images."
            )
        return found

    def find_validation(self) -> Validation | None:
        """The validation record; None if there is none of the best weights."""
        from dubito.runs.validation import Validation

        calibration = self.find_calibration()
        if calibration is None or not self.has_checkpoint(VALIDATION):
            return None
        tensors, notes = self.read_checkpoint(VALIDATION)
        if any(notes[name] != kept for name, kept in calibration.origin.items() if name in notes):
            return None  # a kill came between the two files
        with reading(self.path / f"{VALIDATION}.safetensors", "remove it; it is created again when needed"):
            return Validation.of(tensors, notes["samples"], calibration, self.data)

    def find_calibration(self) -> Calibration | None:
        """What calibration.json holds; None if there is none of the best weights and their novelty."""
        from dubito.runs.validation import Calibration

        file = self.path / CALIBRATION
        if not file.exists():
            return None
        with reading(file, "remove it; it is created again when needed"):
            found = Calibration.of(read_json(file))
        return None if self.changed_since(found.origin) else found

    def write_validation(self, made: Validation) -> None:
        """Keep a validation record: the JSON last, so that tensors without it are an incomplete one."""
        notes = {**made.calibration.origin, "samples": made.prediction.samples}
        self.write_checkpoint(VALIDATION, made.tensors(), notes)
        content = json.dumps(asdict(made.calibration), indent=2, allow_nan=False)
        self.write(CALIBRATION, content + "\n")

    def build(self, *, start: bool = False) -> nn.Module:
        """The run's network with fresh weights; with `start`, with those that its training starts from."""
        from dubito.models import build
        from dubito.models.trust import require_trust

        config, stored = self.config, self.path / "network.json"
        try:
            require_trust(config.model)
        except RunError as error:
            raise RunError(f"{self.path} cannot be opened: {error}.") from None
        if config.model.startswith("hf:") and not start and not stored.is_file():
            raise RunError(f"{self.path} has no network.json, which says how its network {config.model} is built.")
        return build(
            f"hf:{stored}" if stored.exists() and not start else config.model,
            len(self.data.class_names),
            self.data.channels,
            config.inference,
            self.data.size,
            activation=config.activation,
            head=config.head,
            dropout=config.dropout,
            norm=config.norm,
            freeze=config.freeze,
            init=config.init if start else "none",
            **config.layer_options,
        )

    def skeleton(self, *, start: bool = False) -> nn.Module:
        """The run's network to load weights into: without memory for its own if it is of the registry."""
        import torch

        from dubito.models import names

        if self.config.model not in names():  # its code may need real tensors
            return self.build(start=start)
        with torch.device("meta"):
            return self.build(start=start)

    def load(self, checkpoint: str = "best") -> nn.Module:
        """The trained network, in evaluation mode; of an ensemble, all its members as one."""
        from dubito.runs.attached import attach_data

        if self.is_ensemble:
            from dubito.models.ensemble import ensemble

            members = self.members
            for member in members:
                if any(getattr(member.data, name) != getattr(self.data, name) for name in SHARED):
                    raise RunError(f"{member.path} is of other classes or images than its ensemble; restore both.")
            return attach_data(ensemble(member.load(checkpoint) for member in members).eval(), self.data)
        tensors, _ = self.read_checkpoint(checkpoint)
        weights = {key.removeprefix(NETWORK): t for key, t in tensors.items() if key.startswith(NETWORK)}
        network = self.skeleton()
        try:
            network.load_state_dict(fitting(weights, network), assign=True)
        except (RuntimeError, ValueError) as error:
            raise RunError(f"The weights in {self.path} do not fit its configuration: {reason_of(error)}.") from None
        return attach_data(network.requires_grad_(True).eval(), self.data)


def fitting(weights: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """The weights in the types that the network has; a ValueError if one is of another shape or kind, or not finite."""
    own, fit = network.state_dict(), {}
    learning = {name for name, _ in network.named_parameters()}  # a buffer may mask by infinities
    for name, tensor in weights.items():
        wanted = own.get(name, tensor)
        if tensor.shape != wanted.shape:
            raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, but must have {tuple(wanted.shape)}")
        floats = tensor.is_floating_point() and wanted.is_floating_point()
        if tensor.dtype != wanted.dtype and not floats:
            raise ValueError(f"{name} is {tensor.dtype}, but must be {wanted.dtype}")
        fit[name] = tensor.to(wanted.dtype)
        if name in learning and floats and not bool(fit[name].isfinite().all()):
            raise ValueError(f"{name} has values that are not finite")
    return fit


def _digest(file: Path) -> str:
    with reading(file, "restore it or train again"):
        return digest_of(file)
