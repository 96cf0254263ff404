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


def draw(predictor: Predictor, batches: Iterable[Tensor]) -> Drawn:
    """The draws of all batches, and their novelty where it was fitted.

    A head that splits logits is asked for its own prediction too.
    """
    unit = predictor.head.unit
    draws, predictions, novelty = [], [], []
    for batch in batches:
        if (strange := predictor.measure_novelty(batch)) is not None:
            novelty.append(strange.cpu())
        draws.append(predictor.draws(batch).float().cpu())
        if unit != "probability":
            predictions.append(predictor(batch).to("cpu"))
    together, sampling = torch.cat(draws, 1), predictor.sampling
    if bool((together == together[:1]).all()):  # a network without anything to draw
        together, sampling = together[:1], "exact"
    found = Prediction.cat(predictions) if predictions else decompose(together, sampling=sampling)
    return Drawn(together, replace(found, novelty=torch.cat(novelty)) if novelty else found, unit)


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
