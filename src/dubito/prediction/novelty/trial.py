"""The trial that decides which score measures novelty, without a look at any other data set.

A good score is high where an image is unfamiliar. Ten ways turn held-out images into images that are none
(:mod:`dubito.prediction.novelty.outliers`): some are far from any image (noise), some near (two halves, a mixture). For
each kind a score's mark is the mean of two shares, because novelty is used in two ways:

- *as an order*: the area under the ROC curve, outliers against held-out images;
- *as an alarm*: the share of outliers found at false-alarm rates of up to 5 %, averaged over the rates.

The highest mean over the kinds wins; of those within 0.01 of it, which is chance, the first in a fixed order:
neighbours with the energy in all layers, in the last, neighbours alone, Gaussians, energy. Entropy takes part: if
nothing is better, novelty is the entropy and says so.

No class is left out in turn: the network was trained on it, so that its features tell it from the others as those of a
truly new class do not. Leaving classes out favoured relative Mahalanobis distances, which found fewer foreign images.

What was seen when this rule was settled: a ResNet-20 on CIFAR-10 (88.6 %) and a LeNet-5 on MNIST, frequentist and
Bayesian, against each other's data, Fashion-MNIST, CIFAR-100, noise and blur. The number of neighbours, the largest
standardised distance, the energy beside it and the order were picked with a look at those. So figures for these
networks are no independent test; every other network and data set is.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dubito.prediction.novelty.layers import Observed
from dubito.prediction.novelty.scores import Score

LARGEST_RATE = 0.05
"""The largest false-alarm rate of an alarm."""
RATES = 25

Mark = Mapping[str, float]
"""Of each kind of outliers, how well a score finds it: from 0 to 1."""


def found(own: Tensor, other: Tensor) -> float:
    """The share of the `other` images that a score finds, averaged over false-alarm rates of up to 5 % of its `own`.

    >>> round(found(torch.linspace(0, 1, 1001), torch.tensor([0.5, 0.9701, 2.0])), 3)
    0.48
    """
    rates = torch.linspace(0, LARGEST_RATE, RATES + 1)[1:]
    thresholds = own.float().quantile(1 - rates)
    return float((other.float().unsqueeze(1) > thresholds).float().mean())


def area(own: Tensor, other: Tensor) -> float:
    """The probability that one of the `other` images has a larger score than one of its `own`; equal ones count half.

    >>> area(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0]))
    0.75
    """
    ordered, values = own.double().sort().values, other.double()
    below, until = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return float((below + until).double().mean() / (2 * len(own)))


def marks(score: Score, usual: Tensor, outliers: Mapping[str, Observed]) -> Mark:
    """How well a score finds each kind of outliers; `usual` are its values of held-out images."""
    strange = {name: score(seen) for name, seen in outliers.items()}
    return {name: (area(usual, values) + found(usual, values)) / 2 for name, values in strange.items()}
