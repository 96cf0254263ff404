"""What an evaluation holds: the images, what was predicted for them, and how good that is."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from dubito.errors import DubitoWarning
from dubito.evaluation.intervals import units_of
from dubito.evaluation.noise import NoiseLevel
from dubito.prediction import Prediction, decompose, pool
from dubito.runs.run import Run

__all__ = ["Evaluated", "Evaluation"]


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A set of images with what was predicted for them.

    Attributes:
        name: data set and part, such as ``cifar10/test``.
        images: (N, C, H, W), uint8, with as many channels as the network takes.
        labels: (N,) true classes; None for images of other classes (out of distribution).
        prediction: of all draws.
        draws: (T, N, classes) the probabilities of each draw, float32; None where they were not kept.
        members: how many of the draws are of each member of an ensemble; one number for a single network.
        unit: what the uncertainties are variances of: ``probability``, or ``logit`` for the kendall_gal head.
    """

    name: str
    images: Tensor
    labels: Tensor | None
    prediction: Prediction
    draws: Tensor | None = None
    members: tuple[int, ...] = ()
    unit: str = "probability"

    def __len__(self) -> int:
        """The number of images."""
        return len(self.prediction)

    def __getitem__(self, index: Any) -> Evaluated:
        """Some of the images."""
        return replace(
            self,
            images=self.images[index],
            labels=None if self.labels is None else self.labels[index],
            prediction=self.prediction[index],
            draws=None if self.draws is None else self.draws[:, index],
        )

    @property
    def units(self) -> tuple[int, ...]:
        """The members' numbers of draws, as intervals take them: none if the draws were not kept."""
        return () if self.draws is None else self.members

    @property
    def intervals_cover(self) -> str:
        """What intervals of these predictions cover: ``images and draws``, or ``images`` if there are too few draws."""
        return "images and draws" if units_of(self.units) else "images"

    def without(self, left_out: Sequence[int] = ()) -> Prediction:
        """The prediction without some draws; members of an ensemble count as much as before.

        Variances of logits are not known draw by draw: they stay those of all draws.
        """
        if not left_out or self.draws is None:
            return self.prediction
        parts, start = [], 0
        for count in self.members:
            kept = [number for number in range(start, start + count) if number not in left_out]
            parts.append(decompose(self.draws[kept]))
            start += count
        found = pool(parts, [1.0] * len(parts))
        if self.unit == "probability":
            return found
        whole = self.prediction
        return replace(
            found, aleatoric_per_class=whole.aleatoric_per_class, epistemic_per_class=whole.epistemic_per_class
        )


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Predictions and metrics of a run, of several as an ensemble, or of any network.

    All intervals are of 95 % and cover the test images and the draws, if the network has at least three draws;
    otherwise the images alone. See :mod:`dubito.evaluation.intervals`.

    Attributes:
        runs: one, or the members of an ensemble; none if a network was evaluated without a run.
        class_names: of the network.
        test: the test images.
        validation: the images that every run held out from its training, for post-hoc calibration; an ensemble whose
            members have no such images in common has none.
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
    def is_current(self) -> bool:
        """Whether the runs still have the weights that were evaluated."""
        from dubito.evaluation.storage import fingerprint

        settings = self.metrics["settings"]
        return all(
            fingerprint(run, settings["checkpoint"]) == facts["weights"]
            for run, facts in zip(self.runs, settings["runs"], strict=True)
        )

    def keep(self, folder: str | os.PathLike[str]) -> None:
        """Save it if the folder can be written, else warn: it will be evaluated again the next time."""
        try:
            self.save(folder)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            warnings.warn(f"{folder} cannot be written, so its evaluation is not kept.", DubitoWarning, stacklevel=2)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write evaluation.json and evaluation.safetensors into `folder`, each atomically."""
        from dubito.evaluation.storage import save

        save(self, folder)

    @staticmethod
    def load(folder: str | os.PathLike[str], *, images: bool = True) -> Evaluation:
        """The evaluation that `save` wrote into a folder.

        The images are read again from their data sets. With images=False there are none, and no data set is needed.
        """
        from dubito.evaluation.storage import load

        return load(folder, images=images)
