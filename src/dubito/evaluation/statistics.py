"""Every statistic of predictions that has an interval, of all images or of resamples of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito.evaluation import metrics
from dubito.evaluation.bootstrap import Sampled
from dubito.evaluation.ranking import Ranking
from dubito.prediction import Prediction

CALIBRATION_ERRORS = ("ece", "ece_equal_mass")
MEANS = metrics.UNCERTAINTIES[:-1]


class Statistics(Sampled):
    """Every metric of labelled predictions.

    How well an uncertainty finds mistakes is named ``errors/UNCERTAINTY/auroc`` and ``errors/UNCERTAINTY/aurc``. The
    bins of the calibration errors stay those of all images in every resample.

    Args:
        prediction: of the images.
        labels: (N,) their true classes.
        ranked: the uncertainties that are to find mistakes; they take most of the time.
    """

    def __init__(self, prediction: Prediction, labels: Tensor, ranked: Sequence[str] = metrics.UNCERTAINTIES) -> None:
        self.count = len(labels)
        self.scores = metrics.uncertainties(prediction)
        self.errors = ~metrics.hits(prediction.probs, labels)
        probs = prediction.probs
        shares = {"accuracy": ~self.errors}
        if probs.shape[1] > 5:
            shares["top5_accuracy"] = metrics.top_k_hits(probs, labels, 5)
        shares["nll"] = metrics.log_losses(probs, labels)
        shares["brier"] = metrics.squared_errors(probs, labels)
        shares |= {name: self.scores[name] for name in MEANS}
        self._shares = torch.stack([values.double() for values in shares.values()])
        gap = prediction.confidence.double() - (~self.errors).double()
        self._gaps = [
            F.one_hot(metrics.bin_of(prediction.confidence, equal_mass=equal), metrics.BINS) * gap.unsqueeze(1)
            for equal in (False, True)
        ]
        self._rankings = [Ranking(self.scores[name], self.errors) for name in ranked]
        found = [f"errors/{name}/{what}" for name in ranked for what in ("auroc", "aurc")]
        self.names = [*shares, *CALIBRATION_ERRORS, *found]

    def values(self, weights: Tensor) -> Tensor:
        """(statistics, B) for weights (B, N)."""
        means = self._shares.to(weights.dtype) @ weights.T / self.count
        errors = [(weights @ gap.to(weights.dtype)).abs().sum(1) / self.count for gap in self._gaps]
        ranked = [value for ranking in self._rankings for value in ranking.statistics(weights)]
        return torch.cat([means, torch.stack([*errors, *ranked])])


class Separations(Sampled):
    """How well each uncertainty tells the images of another data set from the network's own: AUROC."""

    def __init__(self, own: Prediction, other: Prediction) -> None:
        self.count = len(own) + len(other)
        positive = torch.arange(self.count) >= len(own)
        others = metrics.uncertainties(other)
        self._rankings = {
            name: Ranking(torch.cat([score, others[name]]), positive)
            for name, score in metrics.uncertainties(own).items()
        }
        self.names = [f"{name}/auroc" for name in self._rankings]

    def values(self, weights: Tensor) -> Tensor:
        """(uncertainties, B) for weights (B, N)."""
        return torch.stack([ranking.statistics(weights)[0] for ranking in self._rankings.values()])


class MeanUncertainties(Sampled):
    """The mean uncertainties of images."""

    def __init__(self, prediction: Prediction) -> None:
        self.count = len(prediction)
        self.names = list(MEANS)
        self._columns = torch.stack([getattr(prediction, name).double() for name in MEANS])

    def values(self, weights: Tensor) -> Tensor:
        """(uncertainties, B) for weights (B, N)."""
        return self._columns.to(weights.dtype) @ weights.T / self.count
