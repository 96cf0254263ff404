"""A set of images with what was predicted for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from torch import Tensor

from dubito.data import Images
from dubito.data.dataset import chosen
from dubito.evaluation.intervals import units_of
from dubito.harmless import printable
from dubito.prediction import Prediction, decompose, pool
from dubito.prediction.calibrated import calibrate


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A set of images with what was predicted for them.

    Attributes:
        name: data set and part, such as ``cifar10/test``.
        images: (N, C, H, W), uint8, with as many channels as the network takes; those of a folder stay on disk.
        labels: (N,) true classes; None for images of other classes (out of distribution).
        prediction: of all draws.
        draws: (T, N, classes) the probabilities of each draw, float32; None where they were not kept.
        members: how many of the draws are of each member of an ensemble; one number for a single network.
        unit: what the uncertainties are variances of: ``probability``, or ``logit`` for the kendall_gal head.
        files: the paths of the images, where each is a file of its own.
        temperature: that the probabilities of the prediction are calibrated with; 1 if they are not. Draws never are.
    """

    name: str
    images: Images
    labels: Tensor | None
    prediction: Prediction
    draws: Tensor | None = None
    members: tuple[int, ...] = ()
    unit: str = "probability"
    files: tuple[str, ...] = ()
    temperature: float = 1.0

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
            files=chosen(self.files, index),
        )

    def name_of(self, number: int) -> str:
        """The name of an image: its file with the folder that it is in, else its number."""
        return printable("/".join(PurePath(self.files[number]).parts[-2:])) if self.files else f"image {number}"

    @property
    def units(self) -> tuple[int, ...]:
        """The members' numbers of draws, as intervals take them: none if the draws were not kept."""
        return () if self.draws is None else self.members

    @property
    def intervals_cover(self) -> str:
        """What intervals of these predictions cover: ``images and draws``, or ``images`` if there are too few draws."""
        return "images and draws" if units_of(self.units) else "images"

    def calibrated(self, temperature: float) -> Evaluated:
        """The same with calibrated probabilities; see :mod:`dubito.prediction.calibrated`."""
        return replace(self, prediction=calibrate(self.prediction, temperature), temperature=temperature)

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
        if self.temperature != 1:
            found = calibrate(found, self.temperature)
        if self.unit == "probability":
            return found
        whole = self.prediction
        return replace(
            found, aleatoric_per_class=whole.aleatoric_per_class, epistemic_per_class=whole.epistemic_per_class
        )
