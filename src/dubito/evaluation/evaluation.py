"""What an evaluation holds: the images, what was predicted for them, and how good that is."""

from __future__ import annotations

import errno
import os
import warnings
from dataclasses import dataclass, field, fields
from typing import Any

from dubito.errors import DubitoWarning
from dubito.evaluation.evaluated import Evaluated
from dubito.evaluation.images import found_at
from dubito.evaluation.noise import NoiseLevel
from dubito.evaluation.storage import read, write
from dubito.runs.run import Run
from dubito.zoo import is_here


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
        try:
            self.save(folder)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            warnings.warn(f"{folder} cannot be written, so its evaluation is not kept.", DubitoWarning, stacklevel=2)

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
