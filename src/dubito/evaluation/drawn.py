"""What networks predict for a set of images, draw by draw, and the mixture of several networks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dubito.data import Images
from dubito.evaluation.evaluated import Evaluated
from dubito.prediction import Prediction, Predictor, decompose, pool


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


def draw(predictor: Predictor, batches: Iterable[Tensor]) -> list[Drawn]:
    """What each member draws for all batches."""
    return put_together([draw_piece(predictor, batches)])


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
