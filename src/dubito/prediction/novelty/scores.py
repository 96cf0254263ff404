"""Scores of novelty: each is larger, the less an image is like the training images.

A score is fitted on the features of training images and is a module, so that it can be stored, moved and exported.

- ``neighbours``: distance to the k-th nearest of some training images, features at unit length (Sun et al. 2022). Each
  layer's distance is measured in standard deviations from its mean over held-out images; the largest counts.
- ``class gaussians``: squared Mahalanobis distance to the nearest class, with one covariance for all (Lee et al. 2018).
- ``relative mahalanobis``: the same minus the distance to one Gaussian of all images (Ren et al. 2021).
- ``energy``: -log sum exp of the outputs (Liu et al. 2020).
- ``entropy``: of the mean network's probabilities.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dubito.heads import Head
from dubito.prediction.novelty.layers import Observed

__all__ = ["ClassGaussians", "Energy", "Entropy", "Neighbours", "RelativeMahalanobis", "Score", "restored"]

NEIGHBOURS = 10
"""Which neighbour's distance counts."""
NUMBERS = 1 << 20
"""Numbers of reference features that a layer keeps at most: 2 MB in half precision."""
SHRINKAGE = 1e-2
"""Share of the mean variance that is added to a covariance's diagonal, so that it can be inverted."""

GAUSSIAN = ("means", "whitening", "mean", "whitening_of_all")
"""The tensors of Gaussian scores."""


class Score(nn.Module, ABC):
    """A fitted score: what a network made of images (N) to numbers (N,)."""

    name: ClassVar[str]
    uses_features: ClassVar[bool] = True

    @abstractmethod
    def forward(self, seen: Observed) -> Tensor:
        """(N,) the score of each image."""

    @abstractmethod
    def without(self, label: int) -> Score:
        """The score of a network that had never seen a class, as far as its features tell."""

    def tensors(self) -> dict[str, Tensor]:
        """What has to be stored."""
        return dict(self.named_buffers())


class Neighbours(Score):
    """Distance to the k-th nearest training image in one layer or several.

    Args:
        references: for each layer (M, D) features of training images, at unit length.
        centre, spread: (L,) mean and standard deviation of each layer's distance over held-out images.
        labels: for each layer (M,) the classes of the references; only `without` needs them.
    """

    name = "neighbours"

    def __init__(
        self, references: list[Tensor], centre: Tensor, spread: Tensor, labels: list[Tensor] | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("centre", centre)
        self.register_buffer("spread", spread)
        for number, reference in enumerate(references):
            self.register_buffer(f"reference{number}", reference)
            self.register_buffer(f"half_square{number}", reference.square().sum(1) / 2)
        self._labels = labels

    @property
    def references(self) -> list[Tensor]:
        """Features of training images, for each layer."""
        return [self.get_buffer(f"reference{number}") for number in range(len(self.get_buffer("centre")))]

    def distances(self, seen: Observed) -> Tensor:
        """(N, L) Euclidean distance to the k-th nearest reference in each layer, features at unit length."""
        columns = []
        for number, (features, reference) in enumerate(zip(seen.features, self.references, strict=True)):
            # |x - r|^2 = 1 + |r|^2 - 2 x.r; references are only nearly of unit length after rounding.
            near = F.normalize(features, dim=1) @ reference.T - self.get_buffer(f"half_square{number}")
            kth = near.topk(min(NEIGHBOURS, len(reference)), 1).values[:, -1]
            columns.append((1 - 2 * kth).clamp_min(0).sqrt())
        return torch.stack(columns, 1)

    @classmethod
    def fit(cls, seen: Observed, labels: Tensor, held_out: Observed, numbers: int = NUMBERS) -> Neighbours:
        """From training images, of which those at the front are kept (`numbers` features in all), and held-out ones."""
        references, kept = [], []
        for features in seen.features:
            count = max(min(numbers, NUMBERS) // features.shape[1], 10 * NEIGHBOURS)
            references.append(F.normalize(features[:count], dim=1).half().float())  # as a file has them
            kept.append(labels[:count])
        layers = len(references)
        measured = cls(references, torch.zeros(layers), torch.ones(layers)).distances(held_out)
        return cls(references, measured.mean(0), measured.std(0).clamp_min(1e-6), kept)

    def forward(self, seen: Observed) -> Tensor:
        """The largest standardised distance over the layers."""
        return ((self.distances(seen) - self.get_buffer("centre")) / self.get_buffer("spread")).amax(1)

    def tensors(self) -> dict[str, Tensor]:
        """References in half precision, to which they were rounded; what follows from them is left out."""
        kept = {key: t for key, t in self.named_buffers() if not key.startswith("half_square")}
        return {key: t.half() if key.startswith("reference") else t for key, t in kept.items()}

    def without(self, label: int) -> Neighbours:
        """The same without the references of a class."""
        assert self._labels is not None
        pairs = zip(self.references, self._labels, strict=True)
        return Neighbours(
            [reference[own != label] for reference, own in pairs], self.get_buffer("centre"), self.get_buffer("spread")
        )


class ClassGaussians(Score):
    """Squared Mahalanobis distance to the nearest class.

    Args:
        means: (C, D) of the classes.
        whitening: (D, D) matrix that makes their common covariance the identity.
        mean, whitening_of_all: the same of all images together.
    """

    name = "class gaussians"

    def __init__(
        self,
        means: Tensor,
        whitening: Tensor,
        mean: Tensor,
        whitening_of_all: Tensor,
        labels: Tensor | None = None,
    ) -> None:
        super().__init__()
        self._labels = labels  # of the classes' means; only `without` needs them
        for key, tensor in {"means": means, "whitening": whitening, "mean": mean}.items():
            self.register_buffer(key, tensor)
        self.register_buffer("whitening_of_all", whitening_of_all)

    @classmethod
    def fit(cls, seen: Observed, labels: Tensor, held_out: Observed) -> ClassGaussians:
        """From training images of one layer."""
        features = seen.features[0]
        present = labels.unique()
        means = torch.stack([features[labels == label].mean(0) for label in present])
        inside = features - means[torch.searchsorted(present, labels)]
        mean = features.mean(0)
        return cls(means, _whitening(inside), mean, _whitening(features - mean), present)

    def forward(self, seen: Observed) -> Tensor:
        """The distance to the nearest class."""
        return self.to_classes(seen.features[0])

    def to_classes(self, features: Tensor) -> Tensor:
        """(N,) squared distance to the nearest class."""
        whitening = self.get_buffer("whitening")
        distances = torch.cdist(features @ whitening, self.get_buffer("means") @ whitening)
        return distances.amin(1).square()

    def to_all(self, features: Tensor) -> Tensor:
        """(N,) squared distance to the mean of all images."""
        return ((features - self.get_buffer("mean")) @ self.get_buffer("whitening_of_all")).square().sum(1)

    def without(self, label: int) -> ClassGaussians:
        """The same without the mean of a class."""
        assert self._labels is not None
        left = self.get_buffer("means")[self._labels != label]
        rest = (self.get_buffer(name) for name in GAUSSIAN[1:])
        return type(self)(left, *rest)

    def relative(self) -> RelativeMahalanobis:
        """The score that compares with the distance to all images."""
        means, whitening, mean, of_all = (self.get_buffer(name) for name in GAUSSIAN)
        return RelativeMahalanobis(means, whitening, mean, of_all, self._labels)


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


class Energy(Score):
    """-log sum exp of the outputs of `classes`."""

    name = "energy"
    uses_features = False

    def __init__(self, classes: Tensor) -> None:
        super().__init__()
        self.register_buffer("classes", classes)

    def forward(self, seen: Observed) -> Tensor:
        """Minus the logarithm of the sum over the classes."""
        return -seen.outputs.float().index_select(1, self.get_buffer("classes")).logsumexp(1)

    def without(self, label: int) -> Energy:
        """The same without the output of a class."""
        classes = self.get_buffer("classes")
        return Energy(classes[classes != label])


class Entropy(Score):
    """Entropy of the mean network's probabilities over `classes`, in nats."""

    name = "entropy"
    uses_features = False

    def __init__(self, classes: Tensor, head: Head) -> None:
        super().__init__()
        self.register_buffer("classes", classes)
        self._head = head

    def forward(self, seen: Observed) -> Tensor:
        """Of the probabilities, scaled to a sum of 1."""
        probs = self._head.probs(seen.outputs).index_select(1, self.get_buffer("classes"))
        return torch.special.entr(probs / probs.sum(1, keepdim=True).clamp_min(1e-30)).sum(1)

    def without(self, label: int) -> Entropy:
        """The same without the probability of a class."""
        classes = self.get_buffer("classes")
        return Entropy(classes[classes != label], self._head)


def restored(name: str, tensors: Mapping[str, Tensor], head: Head) -> Score:
    """A score from what :meth:`Score.tensors` gave."""
    if name == Neighbours.name:
        references = [tensors[f"reference{number}"] for number in range(len(tensors["centre"]))]
        return Neighbours([reference.float() for reference in references], tensors["centre"], tensors["spread"])
    if name == Energy.name:
        return Energy(tensors["classes"])
    if name == Entropy.name:
        return Entropy(tensors["classes"], head)
    kind = {ClassGaussians.name: ClassGaussians, RelativeMahalanobis.name: RelativeMahalanobis}[name]
    return kind(*(tensors[key] for key in GAUSSIAN))
