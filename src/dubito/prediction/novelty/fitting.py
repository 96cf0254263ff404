"""Fitting novelty: features of training images, every candidate on trial, the best one kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from dubito.errors import OptionError, ShapeError
from dubito.heads import Head
from dubito.prediction.novelty.layers import Layer, Observed
from dubito.prediction.novelty.novelty import Novelty, rows
from dubito.prediction.novelty.outliers import each_kind
from dubito.prediction.novelty.scores import (
    NUMBERS,
    ClassGaussians,
    Energy,
    Entropy,
    Neighbours,
    NeighboursAndEnergy,
    Score,
)
from dubito.prediction.novelty.trial import Mark, marks

TRAINING_IMAGES = 10_000
"""Training images that are looked at, at most."""
HELD_OUT_IMAGES = 5_000
"""Held-out images that are looked at, at most."""
TRIAL_IMAGES = 500
"""Held-out images from which outliers are made, at most."""
ALIKE = 0.01
"""Marks that differ by less are alike: so much is chance with a few hundred outliers of each kind."""
FEWEST = 20
"""Images that either part needs."""

Labelled = Iterable[tuple[Tensor, Tensor | None]]
Observe = Callable[[Tensor], Observed]
Tried = tuple[Score, tuple[int, ...], Mark]
"""A score, the numbers of its layers, and its marks."""


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
    images, labels, seen = _collected(observe, head, training, TRAINING_IMAGES, seed, keep=held_out is None)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    if held_out is not None:
        images, own_labels, own = _collected(observe, head, held_out, HELD_OUT_IMAGES, seed, keep=True)
    else:
        apart, order = order[: len(order) // 10], order[len(order) // 10 :]
        own_labels, own = labels[apart], seen.images(apart)
    labels, seen = labels[order], seen.images(order)
    if min(len(labels), len(own_labels)) < FEWEST:
        raise OptionError(
            f"There are {len(labels)} training and {len(own_labels)} held-out images, but novelty needs at least "
            f"{FEWEST} of each: give more images."
        )
    strange = {name: _observed(observe, made) for name, made in each_kind(images, seed)}
    tried: list[Tried] = []
    for places, score in _candidates(seen, labels, own, head, numbers):
        parts = {name: one.at(places) for name, one in strange.items()}
        tried.append((score, places, marks(score, score(own.at(places)), parts)))
    best, places, _ = _chosen(tried)
    table = rows([(score, tuple(layers[p] for p in where), given) for score, where, given in tried])
    distribution = best(own.at(places)).sort().values
    notes = {
        "training_images": len(labels),
        "held_out_images": len(own_labels),
        "held_out": "validation" if held_out is not None else "training",
    }
    return Novelty(best, tuple(layers[place] for place in places), distribution, table, notes)


def _chosen(tried: list[Tried]) -> Tried:
    """The first of those that are alike with the best and better than entropy, which comes last; else entropy."""
    means = [sum(marks.values()) / len(marks) for _, _, marks in tried]
    least = max(max(means) - ALIKE, means[-1])
    return next((entry for entry, mean in zip(tried, means, strict=True) if mean > least), tried[-1])


def _candidates(
    seen: Observed, labels: Tensor, held_out: Observed, head: Head, numbers: int
) -> Iterator[tuple[tuple[int, ...], Score]]:
    """Every score with the numbers of its layers, in the order in which they are preferred if they are alike."""
    layers = range(len(seen.features))
    each, every, last = [(place,) for place in layers], tuple(layers), (len(layers) - 1,)
    for places in dict.fromkeys([every, last]):
        yield places, NeighboursAndEnergy.fit(seen.at(places), held_out.at(places), numbers, head=head)
    for places in dict.fromkeys([every, *reversed(each)]):
        yield places, Neighbours.fit(seen.at(places), held_out.at(places), numbers)
    for places in each:
        gaussians = ClassGaussians.fit(seen.at(places), labels)
        yield places, gaussians
        yield places, gaussians.relative()
    yield (), Energy(head)
    yield (), Entropy(head)


def _collected(
    observe: Observe, head: Head, batches: Labelled, most: int, seed: int, keep: bool
) -> tuple[Tensor, Tensor, Observed]:
    """Labels and features of the first images, and if asked some of these images, chosen at random; labels are the
    network's own if none are given."""
    some = _Sample(TRIAL_IMAGES if keep else 0, seed)
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
        some.add(batch.cpu())
        if count >= most:
            break
    if not parts:
        raise ShapeError("There are no images to fit novelty on: the batches are empty.")
    return some.images, torch.cat(labels), Observed.cat(parts)


class _Sample:
    """A random choice of at most `most` of the images that come by: those with the smallest random keys."""

    def __init__(self, most: int, seed: int) -> None:
        self.images = torch.empty(0)
        self._most, self._keys = most, torch.empty(0)
        self._generator = torch.Generator().manual_seed(seed)

    def add(self, batch: Tensor) -> None:
        """Let a batch come by."""
        keys = torch.cat([self._keys, torch.rand(len(batch), generator=self._generator)])
        chosen = keys.argsort()[: self._most].sort().values
        if len(chosen) and int(chosen[-1]) >= len(self._keys):  # one of the new ones is among them
            self.images = torch.cat([self.images, batch] if len(self._keys) else [batch])[chosen]
            self._keys = keys[chosen]


def _observed(observe: Observe, images: Tensor) -> Observed:
    from dubito.data import images_at_once

    at_once = images_at_once(images.shape[-1]) if images.dim() == 4 else 256
    parts = [observe(part) for part in images.split(at_once)]
    return Observed.cat([Observed(part.outputs.cpu(), tuple(f.cpu() for f in part.features)) for part in parts])
