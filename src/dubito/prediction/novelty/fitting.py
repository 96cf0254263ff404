"""Fitting novelty: features of training images, every candidate on trial, the best one kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from dubito.errors import OptionError, ShapeError
from dubito.heads import Head
from dubito.prediction.novelty.layers import Layer, Observed
from dubito.prediction.novelty.novelty import Novelty, rows
from dubito.prediction.novelty.outliers import outliers
from dubito.prediction.novelty.scores import (
    NUMBERS,
    ClassGaussians,
    Energy,
    Entropy,
    Neighbours,
    NeighboursAndEnergy,
    Score,
)
from dubito.prediction.novelty.trial import marks

__all__ = ["FEWEST", "HELD_OUT_IMAGES", "TRAINING_IMAGES", "Labelled", "fit"]

TRAINING_IMAGES = 10_000
"""Training images that are looked at, at most."""
HELD_OUT_IMAGES = 5_000
"""Held-out images that are looked at, at most."""
TRIAL_IMAGES = 500
"""Held-out images from which outliers are made, at most."""
FEWEST = 20
"""Images that either part needs."""

Labelled = Iterable[tuple[Tensor, Tensor | None]]
Observe = Callable[[Tensor], Observed]


def fit(
    observe: Observe,
    layers: list[Layer],
    head: Head,
    training: Labelled,
    held_out: Labelled | None,
    seed: int,
    numbers: int = NUMBERS,
) -> Novelty:
    """The score with the best mark on trial (:mod:`dubito.prediction.novelty.trial`).

    Without held-out images, a tenth of the training images takes their place: the network knows those by heart, so
    that new familiar images will look a little less familiar, and false alarms be more frequent than stated.
    `numbers` bounds the reference features of each layer.
    """
    _, labels, seen = _collected(observe, head, training, TRAINING_IMAGES, keep=held_out is None)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    images, own_labels, own = (
        _collected(observe, head, held_out, HELD_OUT_IMAGES, keep=True) if held_out is not None else (_, labels, seen)
    )
    if held_out is None:
        apart, order = order[: len(order) // 10], order[len(order) // 10 :]
        images, own_labels, own = images[apart], own_labels[apart], own.images(apart)
    labels, seen = labels[order], seen.images(order)
    if min(len(labels), len(own_labels)) < FEWEST:
        raise OptionError(
            f"There are {len(labels)} training and {len(own_labels)} held-out images, but novelty needs at least "
            f"{FEWEST} of each: give more images."
        )
    chosen = torch.randperm(len(own_labels), generator=torch.Generator().manual_seed(seed))[:TRIAL_IMAGES]
    strange = {name: _observed(observe, made) for name, made in outliers(images[chosen], seed).items()}
    tried = []
    for places, score in _candidates(seen, labels, own, head, numbers):
        parts = {name: one.at(places) for name, one in strange.items()}
        tried.append((score, places, marks(score, score(own.at(places)), parts)))
    # Entropy comes last, so that any other must be better, and of two that are alike the simpler wins.
    best, places, _ = max(reversed(tried), key=lambda entry: sum(entry[2].values()))
    table = rows([(score, tuple(layers[p] for p in where), given) for score, where, given in tried])
    distribution = best(own.at(places)).sort().values
    notes = {
        "training_images": len(labels),
        "held_out_images": len(own_labels),
        "held_out": "validation" if held_out is not None else "training",
    }
    return Novelty(best, tuple(layers[place] for place in places), distribution, table, notes)


def _candidates(
    seen: Observed, labels: Tensor, held_out: Observed, head: Head, numbers: int
) -> Iterator[tuple[tuple[int, ...], Score]]:
    """Every score with the numbers of its layers: each layer alone, and neighbours in all of them."""
    layers = range(len(seen.features))
    each, every, last = [(place,) for place in layers], tuple(layers), (len(layers) - 1,)
    for places in dict.fromkeys([*each, every]):
        yield places, Neighbours.fit(seen.at(places), held_out.at(places), numbers)
    for places in dict.fromkeys([last, every]):
        yield places, NeighboursAndEnergy.fit(seen.at(places), held_out.at(places), numbers, head=head)
    for places in each:
        gaussians = ClassGaussians.fit(seen.at(places), labels)
        yield places, gaussians
        yield places, gaussians.relative()
    yield (), Energy(head)
    yield (), Entropy(head)


def _collected(
    observe: Observe, head: Head, batches: Labelled, most: int, keep: bool
) -> tuple[Tensor, Tensor, Observed]:
    """Images (if they are to be kept), labels and features of the first images; labels are the network's own if none
    are given."""
    images: list[Tensor] = []
    labels: list[Tensor] = []
    parts: list[Observed] = []
    count = 0
    for batch, given in batches:
        batch = batch[: most - count]
        count += len(batch)
        seen = _observed(observe, batch)
        parts.append(seen)
        own = head.probs(seen.outputs).argmax(1) if given is None else given[: len(batch)].cpu().long()
        if own.shape != batch.shape[:1]:
            raise ShapeError(
                f"The labels have shape {tuple(own.shape)}, but novelty needs a class for each image: ({len(batch)},)."
            )
        labels.append(own)
        if keep:
            images.append(batch.cpu())
        if count >= most:
            break
    if not parts:
        raise ShapeError("There are no images to fit novelty on: the batches are empty.")
    return (torch.cat(images) if keep else torch.empty(0)), torch.cat(labels), Observed.cat(parts)


def _observed(observe: Observe, images: Tensor, size: int = 250) -> Observed:
    parts = [observe(part) for part in images.split(size)]
    return Observed.cat([Observed(part.outputs.cpu(), tuple(f.cpu() for f in part.features)) for part in parts])
