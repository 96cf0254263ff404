"""What networks predict for a set of images, draw by draw, and the mixture of several networks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dubito.data import Images
from dubito.evaluation.evaluated import Evaluated
from dubito.prediction import Prediction, Predictor, decompose, pool

__all__ = ["Drawn", "draw", "joined"]


@dataclass(frozen=True, eq=False)
class Drawn:
    """What one network predicts for a set of images: the probabilities of each draw, and what they make together."""

    draws: Tensor
    prediction: Prediction
    unit: str


def draw(predictor: Predictor, batches: Iterable[Tensor]) -> list[Drawn]:
    """The draws of all batches by each member of an ensemble, or by a single network, which is its own only member.

    Their novelty, where it was fitted, is the first member's. A head that splits logits is asked for its own prediction
    too.
    """
    members = predictor.members
    parts: list[list[tuple[Tensor, Prediction | None]]] = [[] for _ in members]
    novelty = []
    for batch in batches:
        strange = predictor.measure_novelty(batch) if predictor not in members else None
        for found, member in zip(parts, members, strict=True):
            own = None if member.head.unit == "probability" else member(batch).to("cpu")
            draws, measured = member.draws_and_novelty(batch)
            strange = measured if member is predictor else strange
            found.append((draws.float().cpu(), own))
        if strange is not None:
            novelty.append(strange.cpu())
    made = [_drawn(member, found) for member, found in zip(members, parts, strict=True)]
    if novelty:
        made[0] = replace(made[0], prediction=replace(made[0].prediction, novelty=torch.cat(novelty)))
    return made


def _drawn(predictor: Predictor, parts: Sequence[tuple[Tensor, Prediction | None]]) -> Drawn:
    together, sampling = torch.cat([draws for draws, _ in parts], 1), predictor.sampling
    if bool((together == together[:1]).all()):  # a network without anything to draw
        together, sampling = together[:1], "exact"
    own = [prediction for _, prediction in parts if prediction is not None]
    found = Prediction.cat(own) if own else decompose(together, sampling=sampling)
    return Drawn(together, found, predictor.head.unit)


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
