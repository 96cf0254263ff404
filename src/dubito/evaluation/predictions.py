"""What networks predict for sets of images: draw by draw, by the members of an ensemble, and as their mixture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from dubito.data import Images
from dubito.data.dataset import chosen
from dubito.errors import ShapeError
from dubito.evaluation.intervals import units_of
from dubito.harmless import printable
from dubito.prediction import Prediction, Predictor, decompose, pool
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
    def truth(self) -> Tensor:
        """The labels of a set that has some, as all but those of other classes do."""
        assert self.labels is not None
        return self.labels

    @property
    def wrong(self) -> Tensor:
        """(N,) whether the predicted class is not the true one."""
        return self.prediction.label != self.truth

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


@dataclass(frozen=True, eq=False)
class Drawn:
    """What one network predicts for a set of images: the probabilities of each draw, and what they make together."""

    draws: Tensor
    prediction: Prediction
    unit: str


@dataclass(frozen=True, eq=False)
class Piece:
    """What the members of a predictor draw for some of the images. Pieces can be made by several processes.

    Attributes:
        draws: of each member, (draws, images, classes).
        own: each member's own prediction, if its head splits logits.
        sampling, units: of each member.
        novelty: of the images, where it was fitted.
    """

    draws: tuple[Tensor, ...]
    own: tuple[Prediction | None, ...]
    sampling: tuple[str, ...]
    units: tuple[str, ...]
    novelty: Tensor | None


def draw_piece(predictor: Predictor, batches: Iterable[Tensor]) -> Piece:
    """The draws of all batches by each member of an ensemble, or by a single network, which is its own only member.

    Their novelty, where it was fitted, is the ensemble's. A head that splits logits is asked for its own prediction
    too.
    """
    members = predictor.members
    parts: list[list[Tensor]] = [[] for _ in members]
    owned: list[list[Prediction]] = [[] for _ in members]
    novelty = []
    for batch in batches:
        strange = predictor.measure_novelty(batch) if predictor not in members else None
        for found, own, member in zip(parts, owned, members, strict=True):
            if member.head.unit != "probability":
                own.append(member(batch).to("cpu"))
            draws, measured = member.draws_and_novelty(batch)
            strange = measured if member is predictor else strange
            found.append(draws.float().cpu())
        if strange is not None:
            novelty.append(strange.cpu())
    return Piece(
        draws=tuple(torch.cat(found, 1) for found in parts),
        own=tuple(Prediction.cat(own) if own else None for own in owned),
        sampling=tuple(member.sampling for member in members),
        units=tuple(member.head.unit for member in members),
        novelty=torch.cat(novelty) if novelty else None,
    )


def put_together(pieces: Sequence[Piece]) -> list[Drawn]:
    """What each member draws for all images, from pieces in their order; novelty is with the first."""
    made = []
    for member, sampling in enumerate(pieces[0].sampling):
        draws = torch.cat([piece.draws[member] for piece in pieces], 1)
        if bool((draws == draws[:1]).all()):  # a network without anything to draw
            draws, sampling = draws[:1], "exact"
        own = [prediction for piece in pieces if (prediction := piece.own[member]) is not None]
        found = Prediction.cat(own) if own else decompose(draws, sampling=sampling)
        made.append(Drawn(draws, found, pieces[0].units[member]))
    novelty = [piece.novelty for piece in pieces if piece.novelty is not None]
    if novelty:
        made[0] = replace(made[0], prediction=replace(made[0].prediction, novelty=torch.cat(novelty)))
    return made


def joined(
    name: str, images: Images, labels: Tensor | None, members: Sequence[Drawn], files: tuple[str, ...] = ()
) -> Evaluated:
    """The mixture of the members' draws."""
    return Evaluated(
        name=name,
        images=images,
        labels=labels,
        prediction=pool([member.prediction for member in members], [1.0] * len(members)),
        draws=torch.cat([member.draws for member in members]),
        members=tuple(len(member.draws) for member in members),
        unit=members[0].unit,
        files=files,
    )


def predicted(name: str, images: Images, labels: Tensor, predictor: Predictor, batches: Iterable[Tensor]) -> Evaluated:
    """What a predictor says of batches of its inputs; `images` are what these look like."""
    return joined(name, images, labels, put_together([draw_piece(predictor, batches)]))


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
