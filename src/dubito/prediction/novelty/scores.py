"""Scores of novelty: each is larger, the less an image is like the training images.

A score is fitted on the features of training images and is a module, so that it can be stored, moved and exported.

- ``neighbours``: distance to the k-th nearest of some training images, features at unit length (Sun et al. 2022). Each
  layer's distance is measured in standard deviations from its mean over held-out images; the largest counts.
- ``neighbours and energy``: the same with the energy as one more distance.
- ``class gaussians``: squared Mahalanobis distance to the nearest class, with one covariance for all (Lee et al. 2018).
- ``relative mahalanobis``: the same minus the distance to one Gaussian of all images (Ren et al. 2021).
- ``energy``: -log sum exp of the outputs (Liu et al. 2020).
- ``entropy``: of the probabilities.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dubito.heads import Head
from dubito.prediction.novelty.layers import Observed

NEIGHBOURS = 5
"""Which neighbour's distance counts."""
NUMBERS = 1 << 20
"""Numbers of reference features that a layer keeps at most: 2 MB in half precision."""
LEAST_NUMBERS = 1 << 17
"""Numbers of reference features that a layer may keep, however cheap the network is."""
SHRINKAGE = 1e-2
"""Share of the mean variance that is added to a covariance's diagonal, so that it can be inverted."""

GAUSSIAN = ("means", "whitening", "mean", "whitening_of_all")
"""The tensors of Gaussian scores."""


def reference_numbers(multiplications: int) -> int:
    """Numbers of reference features that a layer may keep for a network with so many multiplications: an eighth.

    Five layers are then searched with fewer multiplications than one pass has, of ten or so.

    >>> reference_numbers(4_000_000), reference_numbers(40_000_000) == NUMBERS
    (500000, True)
    """
    return min(max(multiplications // 8, LEAST_NUMBERS), NUMBERS)


class Score(nn.Module, ABC):
    """A fitted score: what a network made of images (N) to numbers (N,)."""

    name: ClassVar[str]

    @abstractmethod
    def forward(self, seen: Observed) -> Tensor:
        """(N,) the score of each image."""

    def tensors(self) -> dict[str, Tensor]:
        """What has to be stored."""
        return dict(self.named_buffers())


class Neighbours(Score):
    """Distance to the k-th nearest training image in one layer or several.

    Args:
        references: for each layer (M, D) features of training images, at unit length.
        centre, spread: of each distance, mean and standard deviation over held-out images.
    """

    name = "neighbours"

    def __init__(self, references: list[Tensor], centre: Tensor, spread: Tensor) -> None:
        super().__init__()
        self.layers = len(references)
        self.register_buffer("centre", centre)
        self.register_buffer("spread", spread)
        for number, reference in enumerate(references):
            self.register_buffer(f"reference{number}", reference)
            self.register_buffer(f"half_square{number}", reference.square().sum(1) / 2)

    def distances(self, seen: Observed) -> Tensor:
        """(N, L) Euclidean distance to the k-th nearest reference in each layer, features at unit length."""
        columns = []
        for number, features in enumerate(seen.features):
            reference = self.get_buffer(f"reference{number}")
            # |x - r|^2 = 1 + |r|^2 - 2 x.r; references are only nearly of unit length after rounding.
            near = F.normalize(features, dim=1) @ reference.T - self.get_buffer(f"half_square{number}")
            kth = near.topk(min(NEIGHBOURS, len(reference)), 1).values[:, -1]
            columns.append((1 - 2 * kth).clamp_min(0).sqrt())
        return torch.stack(columns, 1)

    @classmethod
    def fit(cls, seen: Observed, held_out: Observed, numbers: int = NUMBERS, **options: Any) -> Neighbours:
        """From training images, of which those at the front are kept (`numbers` features in all), and held-out ones."""
        references = []
        for features in seen.features:
            count = max(numbers // features.shape[1], 10 * NEIGHBOURS)
            references.append(F.normalize(features[:count], dim=1).half().float())  # as a file has them
        measured = cls(references, torch.zeros(()), torch.ones(()), **options).distances(held_out)
        return cls(references, measured.mean(0), measured.std(0).clamp_min(1e-6), **options)

    def forward(self, seen: Observed) -> Tensor:
        """The largest standardised distance."""
        return ((self.distances(seen) - self.get_buffer("centre")) / self.get_buffer("spread")).amax(1)

    def tensors(self) -> dict[str, Tensor]:
        """References in half precision, to which they were rounded; what follows from them is left out."""
        kept = {key: t for key, t in self.named_buffers() if not key.startswith("half_square")}
        return {key: t.half() if key.startswith("reference") else t for key, t in kept.items()}


class NeighboursAndEnergy(Neighbours):
    """The same with one more distance, the energy: whichever is the most unusual counts.

    Neighbours see what features are like, the energy how strongly they speak for any class; each misses what the other
    finds.
    """

    name = "neighbours and energy"

    def __init__(self, references: list[Tensor], centre: Tensor, spread: Tensor, head: Head) -> None:
        super().__init__(references, centre, spread)
        self._head = head

    def distances(self, seen: Observed) -> Tensor:
        """(N, L + 1) those of the layers, and the energy."""
        return torch.cat([super().distances(seen), energy(seen.outputs, self._head).unsqueeze(1)], 1)


class ClassGaussians(Score):
    """Squared Mahalanobis distance to the nearest class.

    Args:
        means: (C, D) of the classes.
        whitening: (D, D) matrix that makes their common covariance the identity.
        mean, whitening_of_all: the same of all images together.
    """

    name = "class gaussians"

    def __init__(self, means: Tensor, whitening: Tensor, mean: Tensor, whitening_of_all: Tensor) -> None:
        super().__init__()
        for key, tensor in zip(GAUSSIAN, (means, whitening, mean, whitening_of_all), strict=True):
            self.register_buffer(key, tensor)

    @classmethod
    def fit(cls, seen: Observed, labels: Tensor) -> ClassGaussians:
        """From training images of one layer."""
        features = seen.features[0]
        present = labels.unique()
        means = torch.stack([features[labels == label].mean(0) for label in present])
        inside = features - means[torch.searchsorted(present, labels)]
        mean = features.mean(0)
        return cls(means, _whitening(inside), mean, _whitening(features - mean))

    def forward(self, seen: Observed) -> Tensor:
        """The distance to the nearest class."""
        return self.to_classes(seen.features[0])

    def to_classes(self, features: Tensor) -> Tensor:
        """(N,) squared distance to the nearest class."""
        mean, whitening = self.get_buffer("mean"), self.get_buffer("whitening")
        points, centres = ((place - mean) @ whitening for place in (features, self.get_buffer("means")))
        # |x - c|^2 = |x|^2 + |c|^2 - 2 x.c: products alone, which any runtime has for any number of images.
        to_centres = centres.square().sum(1) - 2 * points @ centres.T
        return (points.square().sum(1) + to_centres.amin(1)).clamp_min(0)

    def to_all(self, features: Tensor) -> Tensor:
        """(N,) squared distance to the mean of all images."""
        return ((features - self.get_buffer("mean")) @ self.get_buffer("whitening_of_all")).square().sum(1)

    def relative(self) -> RelativeMahalanobis:
        """The score that compares with the distance to all images."""
        return RelativeMahalanobis(*(self.get_buffer(name) for name in GAUSSIAN))


class RelativeMahalanobis(ClassGaussians):
    """Distance to the nearest class minus that to all images."""

    name = "relative mahalanobis"

    def forward(self, seen: Observed) -> Tensor:
        """The difference of the two squared distances."""
        return self.to_classes(seen.features[0]) - self.to_all(seen.features[0])


def _whitening(deviations: Tensor) -> Tensor:
    """W with W W' the inverse of the covariance."""
    wide = deviations.double()
    covariance = wide.T @ wide / len(wide)
    added = SHRINKAGE * covariance.diagonal().mean().clamp_min(1e-12)
    factor = torch.linalg.cholesky(covariance + added * torch.eye(len(covariance), dtype=wide.dtype))
    return torch.linalg.solve_triangular(factor, torch.eye(len(factor), dtype=wide.dtype), upper=False).T.float()


def energy(outputs: Tensor, head: Head) -> Tensor:
    """(N,) -log sum exp of the classes' outputs, which come first where a head has more."""
    return -outputs[:, : outputs.shape[1] // head.num_outputs(1)].float().logsumexp(1)


class Energy(Score):
    """-log sum exp of the outputs."""

    name = "energy"

    def __init__(self, head: Head) -> None:
        super().__init__()
        self._head = head

    def forward(self, seen: Observed) -> Tensor:
        """Minus the logarithm of the sum over the classes."""
        return energy(seen.outputs, self._head)


class Entropy(Score):
    """Entropy of the probabilities, in nats."""

    name = "entropy"

    def __init__(self, head: Head) -> None:
        super().__init__()
        self._head = head

    def forward(self, seen: Observed) -> Tensor:
        """Of the head's probabilities."""
        return torch.special.entr(self._head.probs(seen.outputs)).sum(1)


def restored(name: str, tensors: Mapping[str, Tensor], head: Head) -> Score:
    """A score from what :meth:`Score.tensors` gave."""
    if name in (Neighbours.name, NeighboursAndEnergy.name):
        count = sum(key.startswith("reference") for key in tensors)
        references = [tensors[f"reference{number}"].float() for number in range(count)]
        fitted = (references, tensors["centre"], tensors["spread"])
        return Neighbours(*fitted) if name == Neighbours.name else NeighboursAndEnergy(*fitted, head)
    if name in (Energy.name, Entropy.name):
        return Energy(head) if name == Energy.name else Entropy(head)
    kind = {ClassGaussians.name: ClassGaussians, RelativeMahalanobis.name: RelativeMahalanobis}[name]
    return kind(*(tensors[key] for key in GAUSSIAN))
