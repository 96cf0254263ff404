"""Metrics of probabilities and uncertainties: pure functions on tensors.

Confidence intervals need the contribution of every image, and rank statistics of weighted images, so the standard
metrics are computed here too. Tests compare them with scikit-learn and torchmetrics; importing either of these takes
longer than computing them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dubito.errors import OptionError, ShapeError
from dubito.prediction import Prediction

__all__ = [
    "UNCERTAINTIES",
    "Ranking",
    "Reliability",
    "RiskCoverage",
    "Separation",
    "accuracy",
    "auroc",
    "brier",
    "calibration_error",
    "confusion_matrix",
    "nll",
    "per_class",
    "reliability",
    "risk_coverage",
    "separation",
    "top_k_accuracy",
    "uncertainties",
]

UNCERTAINTIES = ("aleatoric", "epistemic", "entropy", "mutual_information", "confidence")
"""What may find mistakes; of the confidence, its lack: 1 - confidence."""
BINS = 15


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence against accuracy, bin by bin; NaN where a bin is empty."""

    lower: Tensor
    upper: Tensor
    confidence: Tensor
    accuracy: Tensor
    count: Tensor

    @property
    def error(self) -> float:
        """The calibration error: the mean over all images of |confidence - accuracy| of their bin."""
        gap = (self.confidence - self.accuracy).abs().nan_to_num(0.0)
        return float((gap * self.count).sum() / self.count.sum())


class RiskCoverage(NamedTuple):
    """Risk, the share of mistakes among accepted images, against coverage, the share of images that are accepted."""

    coverage: Tensor
    risk: Tensor
    area: float
    """AURC: the mean over all images of the risk of accepting what is at most as uncertain as that image."""
    excess: float
    """AURC above that of the best possible order with as many mistakes."""


class Separation(NamedTuple):
    """How well a score separates images of another data set (positive) from the network's own."""

    auroc: float
    aupr: float
    fpr95: float
    """Share of own images that are refused where 95 % of the others are."""


def uncertainties(prediction: Prediction) -> dict[str, Tensor]:
    """Every score by which a prediction may be doubted, by the names in `UNCERTAINTIES`.

    >>> import dubito
    >>> list(uncertainties(dubito.decompose(torch.tensor([[[0.9, 0.1]]]))))
    ['aleatoric', 'epistemic', 'entropy', 'mutual_information', 'confidence']
    """
    scores = {name: getattr(prediction, name) for name in UNCERTAINTIES[:-1]}
    return {**scores, "confidence": 1 - prediction.confidence}


def hits(probs: Tensor, labels: Tensor) -> Tensor:
    """(N,) whether the most probable class is the true one."""
    labels = require_labelled(probs, labels)
    return probs.argmax(1) == labels


def top_k_hits(probs: Tensor, labels: Tensor, k: int) -> Tensor:
    """(N,) whether the true class is among the k most probable."""
    labels = require_labelled(probs, labels)
    if not 1 <= k <= probs.shape[1]:
        raise OptionError(f"k is {k}, but must lie in 1 ... {probs.shape[1]}, the number of classes.")
    return (probs.topk(k, 1).indices == labels.unsqueeze(1)).any(1)


def log_losses(probs: Tensor, labels: Tensor) -> Tensor:
    """(N,) -log of the true class's probability, in nats and float64; a probability of 0 counts as the smallest."""
    labels = require_labelled(probs, labels)
    tiny = torch.finfo(probs.dtype).tiny
    return -probs.gather(1, labels.unsqueeze(1)).squeeze(1).clamp_min(tiny).double().log()


def squared_errors(probs: Tensor, labels: Tensor) -> Tensor:
    """(N,) squared distance of the probabilities from the true class's unit vector, in float64."""
    labels = require_labelled(probs, labels)
    wide = probs.double()
    return wide.square().sum(1) - 2 * wide.gather(1, labels.unsqueeze(1)).squeeze(1) + 1


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of images whose most probable class is the true one.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
    0.5
    """
    return float(hits(probs, labels).double().mean())


def top_k_accuracy(probs: Tensor, labels: Tensor, k: int = 5) -> float:
    """Share of images whose true class is among the k most probable.

    >>> top_k_accuracy(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([1]), k=2)
    1.0
    """
    return float(top_k_hits(probs, labels, k).double().mean())


def nll(probs: Tensor, labels: Tensor) -> float:
    """Mean negative log-likelihood of the true classes, in nats.

    >>> round(nll(torch.tensor([[0.5, 0.5]]), torch.tensor([1])), 4)
    0.6931
    """
    return float(log_losses(probs, labels).mean())


def brier(probs: Tensor, labels: Tensor) -> float:
    """Brier score, the mean of sum_c (p_c - [y = c])^2: 0 at best, 2 at worst.

    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
    0.5
    """
    return float(squared_errors(probs, labels).mean())


def bin_of(confidence: Tensor, bins: int = BINS, equal_mass: bool = False) -> Tensor:
    """(N,) the bin of every confidence: of equal width, (0, 1/bins] and so on, or of equally many images.

    Images of equal confidence share a bin, so that the order of images does not matter.
    """
    if bins < 1:
        raise OptionError(f"bins is {bins}, but must be at least 1.")
    if not equal_mass:
        edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
        return torch.bucketize(confidence.double(), edges[1:-1])
    _, group, sizes = torch.unique(confidence, return_inverse=True, return_counts=True)
    middle = sizes.cumsum(0).double() - sizes.double() / 2
    return (middle * (bins / len(confidence))).long().clamp(max=bins - 1)[group]


def reliability(probs: Tensor, labels: Tensor, bins: int = BINS, equal_mass: bool = False) -> Reliability:
    """Mean confidence and accuracy of images grouped by their confidence: the reliability diagram.

    >>> table = reliability(torch.tensor([[0.6, 0.4], [0.9, 0.1]]), torch.tensor([0, 1]), bins=2)
    >>> table.count, table.accuracy[1], table.confidence[1]
    (tensor([0, 2]), tensor(0.5000, dtype=torch.float64), tensor(0.7500, dtype=torch.float64))
    """
    correct = hits(probs, labels).double()
    confidence = probs.amax(1)
    place = bin_of(confidence, bins, equal_mass)
    count = torch.bincount(place, minlength=bins)
    mean_confidence = torch.bincount(place, confidence.double(), bins) / count
    mean_accuracy = torch.bincount(place, correct, bins) / count
    if equal_mass:
        infinite = torch.full((bins,), float("inf"), dtype=torch.float64)
        lower = infinite.scatter_reduce(0, place, confidence.double(), "amin")
        upper = (-infinite).scatter_reduce(0, place, confidence.double(), "amax")
        lower, upper = (torch.where(count > 0, edge, float("nan")) for edge in (lower, upper))
    else:
        edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
        lower, upper = edges[:-1], edges[1:]
    return Reliability(lower, upper, mean_confidence, mean_accuracy, count)


def calibration_error(probs: Tensor, labels: Tensor, bins: int = BINS, equal_mass: bool = False) -> float:
    """Expected calibration error: sum over bins of their share of images times |confidence - accuracy|.

    >>> round(calibration_error(torch.tensor([[0.6, 0.4], [0.9, 0.1]]), torch.tensor([0, 1]), bins=2), 4)
    0.25
    """
    return reliability(probs, labels, bins, equal_mass).error


def auroc(scores: Tensor, positive: Tensor) -> float:
    """Area under the ROC curve: the probability that a positive image has the higher score, ties counting one half.

    NaN if all images, or none, are positive. With `positive` the mistakes it says how well an uncertainty finds them.

    >>> auroc(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([False, False, True, True]))
    0.75
    """
    return float(Ranking(scores, positive).statistics(torch.ones(1, len(scores), dtype=torch.float64))[0])


def risk_coverage(uncertainty: Tensor, errors: Tensor) -> RiskCoverage:
    """The risk of accepting the images that are least uncertain, for every coverage.

    The curve has a point for each distinct uncertainty u: among the images with uncertainty up to u, the share of
    mistakes. Its area is AURC = mean_i risk(u_i), its excess that above an order which puts all mistakes last.

    >>> curve = risk_coverage(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([False, True, False, False]))
    >>> curve.risk, round(curve.area, 4), round(curve.excess, 4)
    (tensor([0.0000, 0.5000, 0.3333, 0.2500], dtype=torch.float64), 0.2708, 0.2083)
    """
    ranking = Ranking(uncertainty, errors)
    count = len(uncertainty)
    mistaken = ranking.positive.double().cumsum(0)[ranking.ends]
    accepted = (ranking.ends + 1).double()
    area = float(ranking.statistics(torch.ones(1, count, dtype=torch.float64))[1])
    return RiskCoverage(accepted / count, mistaken / accepted, area, area - best_aurc(int(errors.sum()), count))


def best_aurc(mistakes: int, count: int) -> float:
    """The smallest AURC that any order of `count` images with so many mistakes can have.

    >>> best_aurc(1, 4)
    0.0625
    """
    wrong = torch.arange(1, mistakes + 1, dtype=torch.float64)
    return float((wrong / (count - mistakes + wrong)).sum() / count)


def risk_at(curve: RiskCoverage, coverage: Tensor) -> Tensor:
    """The risk at given coverages; images of equal uncertainty are accepted in random order, on average."""
    zero = curve.coverage.new_zeros(1)
    known = torch.cat([zero, curve.coverage])
    mistakes = torch.cat([zero, curve.coverage * curve.risk])
    wanted = coverage.to(known.dtype)
    place = torch.searchsorted(known, wanted).clamp(1, len(known) - 1)
    share = (wanted - known[place - 1]) / (known[place] - known[place - 1])
    return (mistakes[place - 1] + share.clamp(0, 1) * (mistakes[place] - mistakes[place - 1])) / wanted


def percentile(usual: Tensor, values: Tensor) -> Tensor:
    """The share of the `usual` uncertainties, which are in ascending order, below each value; equal ones count half.

    >>> percentile(torch.tensor([1.0, 2.0, 2.0, 3.0]), torch.tensor([0.5, 2.0, 9.0]))
    tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """
    below, until = (torch.searchsorted(usual, values.to(usual), right=right) for right in (False, True))
    return (below + until).double() / (2 * len(usual))


def separation(own: Tensor, other: Tensor) -> Separation:
    """How well an uncertainty separates the images of another data set (`other`, positive) from the network's `own`.

    >>> separation(torch.tensor([0.1, 0.2, 0.6]), torch.tensor([0.5, 0.9]))
    Separation(auroc=0.8333333333333334, aupr=0.8333333333333333, fpr95=0.3333333333333333)
    """
    if not len(own) or not len(other):
        raise ShapeError(f"There are {len(own)} own and {len(other)} other images, but each needs at least 1.")
    scores = torch.cat([own, other])
    ranking = Ranking(-scores, torch.arange(len(scores)) >= len(own))
    refused = (ranking.ends + 1).double()
    true = ranking.positive.double().cumsum(0)[ranking.ends]
    recall = true / len(other)
    precision = true / refused
    gained = torch.diff(recall, prepend=torch.zeros(1, dtype=torch.float64))
    false_rate = (refused - true) / len(own)
    return Separation(
        1 - float(ranking.statistics(torch.ones(1, len(scores), dtype=torch.float64))[0]),
        float((gained * precision).sum()),
        float(false_rate[recall >= 0.95].min()),
    )


def confusion_matrix(predicted: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """(C, C) how many images of each true class (row) were given each label (column).

    >>> confusion_matrix(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2)
    tensor([[1, 1],
            [0, 1]])
    """
    if predicted.shape != labels.shape or labels.dim() != 1:
        raise ShapeError(
            f"predicted has shape {tuple(predicted.shape)} and labels {tuple(labels.shape)}, not both (N,)."
        )
    for name, classes in (("predicted", predicted), ("labels", labels)):
        if classes.is_floating_point() or classes.dtype == torch.bool:
            raise ShapeError(f"{name} has type {classes.dtype}, but must be class numbers.")
        low, high = (int(value) for value in classes.long().aminmax()) if len(classes) else (0, 0)
        if low < 0 or high >= num_classes:
            raise ShapeError(f"{name} goes from {low} to {high}, but must lie in 0 ... {num_classes - 1}.")
    # In int64: products of class numbers overflow int8 from 12 classes on.
    cells = labels.long() * num_classes + predicted.long()
    return torch.bincount(cells, minlength=num_classes**2).view(num_classes, num_classes)


def per_class(prediction: Prediction, labels: Tensor, class_names: tuple[str, ...]) -> list[dict[str, Any]]:
    """For each true class precision, recall, F1, support, and the mean uncertainties of its images.

    >>> import dubito
    >>> prediction = dubito.decompose(torch.tensor([[[0.9, 0.1], [0.4, 0.6]]]))
    >>> table = per_class(prediction, torch.tensor([0, 0]), ("a", "b"))
    >>> [(row["class"], row["recall"], row["support"]) for row in table]
    [('a', 0.5, 2), ('b', 0.0, 0)]
    """
    labels = require_labelled(prediction.probs, labels)
    if len(class_names) != prediction.probs.shape[1]:
        raise ShapeError(f"There are {len(class_names)} class names, but {prediction.probs.shape[1]} classes.")
    classes = range(len(class_names))
    matrix = confusion_matrix(prediction.label, labels, len(class_names)).double()
    support, given, right = matrix.sum(1), matrix.sum(0), matrix.diagonal()
    precision, recall, f1 = (
        right / total.clamp_min(1)
        for total in (given, support, (given + support) / 2)  # 0 where there is nothing
    )
    means = {
        name: torch.bincount(labels, getattr(prediction, name).double(), len(class_names)) / support
        for name in ("confidence", *UNCERTAINTIES[:-1])
    }
    return [
        {
            "class": class_names[index],
            "precision": float(precision[index]),
            "recall": float(recall[index]),
            "f1": float(f1[index]),
            "support": int(support[index]),
            **{name: float(values[index]) for name, values in means.items()},
        }
        for index in classes
    ]


def require_labelled(probs: Tensor, labels: Tensor) -> Tensor:
    """The labels as int64, in which no arithmetic of class numbers overflows, whatever type they came in.

    An error unless `probs` (N, C) are finite probabilities, and `labels` (N,) their classes, with N > 0.
    """
    if probs.dim() != 2 or not probs.is_floating_point() or not probs.numel():
        raise ShapeError(
            f"probs has shape {tuple(probs.shape)} and type {probs.dtype}, but must be floating point of shape (N, C) "
            "with at least one image and class."
        )
    if labels.shape != probs.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ShapeError(
            f"labels has shape {tuple(labels.shape)} and type {labels.dtype}, but must be class numbers of shape "
            f"({len(probs)},), one for each image."
        )
    low, high = (int(value) for value in labels.long().aminmax())
    if low < 0 or high >= probs.shape[1]:
        raise ShapeError(f"labels goes from {low} to {high}, but must lie in 0 ... {probs.shape[1] - 1}.")
    smallest, largest = (float(value) for value in probs.aminmax())
    if not (smallest >= 0 and largest <= 1 + 1e-4):
        raise ShapeError(f"probs goes from {smallest:g} to {largest:g}, but probabilities lie between 0 and 1.")
    return labels.long()


# ---- rank statistics of weighted images: AUROC and the area under the risk-coverage curve, for many weights at once --


class Ranking:
    """Images in the order of a score, for rank statistics of weighted images; equal scores share their rank.

    >>> ranking = Ranking(torch.tensor([0.1, 0.4, 0.4, 0.9]), positive=torch.tensor([False, False, True, True]))
    >>> ranking.statistics(torch.ones(1, 4))
    (tensor([0.8750]), tensor([0.2917]))
    """

    def __init__(self, scores: Tensor, positive: Tensor) -> None:
        if scores.dim() != 1 or scores.shape != positive.shape or not len(scores):
            raise ShapeError(
                f"The scores have shape {tuple(scores.shape)} and what they are to find {tuple(positive.shape)}, but "
                "both must be (N,) with at least one image."
            )
        if bool(scores.isnan().any()):
            raise ShapeError("The scores contain NaN, which has no rank.")
        ordered, self.order = scores.detach().cpu().sort(stable=True)
        self.positive = positive.bool()[self.order]
        last = torch.ones(len(scores), dtype=torch.bool)
        last[:-1] = ordered[1:] != ordered[:-1]
        self.ends = last.nonzero().squeeze(1)
        """Position of the last image of every distinct score."""
        self.ties = len(self.ends) < len(scores)
        self._places = self.positive.nonzero().squeeze(1)
        group = (torch.cumsum(last, 0) - last.long())[self._places]
        """The distinct score of every positive image."""
        self._group = group
        self._end = self.ends[group] + 1
        self._start = torch.cat([torch.zeros(1, dtype=torch.long), self.ends + 1])[group]
        passed = torch.cat([torch.zeros(1, dtype=torch.long), self.positive.long().cumsum(0)])
        self._positive_end, self._positive_start = passed[self._end], passed[self._start]

    def statistics(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """AUROC and area under the risk-coverage curve, each (B,), of images with weights (B, N).

        AUROC is the probability that a positive image has the higher score, ties counting one half, and NaN where all
        images or none are positive. For the area, positive images are the mistakes and the score is the uncertainty.
        """
        weights = weights.index_select(1, self.order)
        found = weights.index_select(1, self._places)
        total = _running_sums(weights)
        return self._auroc(found, total), self._area(weights, found, total)

    def _auroc(self, found: Tensor, total: Tensor) -> Tensor:
        positive = _running_sums(found)
        below = total.index_select(1, self._start)
        if self.ties:
            below -= positive.index_select(1, self._positive_start)
            upto = total.index_select(1, self._end) - positive.index_select(1, self._positive_end)
            below = (below + upto) / 2
        else:
            below -= positive[:, :-1]
        negatives = total[:, -1] - positive[:, -1]
        # Divided first: products of counts would not be exact in single precision.
        return (below / negatives.unsqueeze(1) * found).sum(1) / positive[:, -1]

    def _area(self, weights: Tensor, found: Tensor, total: Tensor) -> Tensor:
        """Sum over thresholds of weight * mistakes / accepted, mistake by mistake: each counts from its own on."""
        accepted = total[:, 1:]
        if self.ties:
            accepted = accepted.index_select(1, self.ends)
            weights = torch.diff(accepted, prepend=torch.zeros_like(accepted[:, :1]))
        # Where nothing is accepted yet the weights are 0 too.
        passed = _running_sums(weights / accepted.clamp_min(1e-30))
        later = passed[:, -1:] - passed.index_select(1, self._group)
        return (found * later).sum(1) / total[:, -1]


def _running_sums(values: Tensor) -> Tensor:
    """Sums along the rows, with a 0 before the first."""
    sums = values.new_empty(len(values), values.shape[1] + 1)
    sums[:, 0] = 0
    torch.cumsum(values, 1, out=sums[:, 1:])
    return sums
