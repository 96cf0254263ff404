"""The trial that decides which score measures novelty, without a look at any other data set.

A good score is high where an image is unfamiliar. Held-out images give eleven kinds of images that are:

- *outliers*, ten ways to make an image that is none (:mod:`dubito.prediction.novelty.outliers`);
- *a class left out*: what the score knows of one class is taken away (its reference features, mean, or output), and
  that class's held-out images should stand out from the rest. The network itself has seen the class, which makes this
  easier than a truly new one, so it is one kind of eleven and not half of the trial.

A score's mark is the share of such images that it finds at false-alarm rates of up to 5 % of the held-out images,
averaged over the rates and then over the kinds. The highest mark wins. Entropy takes part, and if nothing is better,
novelty is the entropy and says so.

The weights of the kinds were settled on one pair, a LeNet-5 on MNIST: with half of the mark for left-out classes,
relative Mahalanobis distance won, and found fewer images of Fashion-MNIST and CIFAR-10 than neighbours did. The
candidates, too (pairs of layers, the largest standardised distance), were picked with a look at those two sets. So
figures for that pair are no independent test of the rule; every other network and data set is.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dubito.prediction.novelty.layers import Observed
from dubito.prediction.novelty.scores import Score

__all__ = ["LEFT_OUT", "found", "shares_found"]

LEFT_OUT = "left-out class"
LARGEST_RATE = 0.05
"""The largest false-alarm rate that counts."""
RATES = 25
CLASSES = 10
"""Classes that are left out in turn, at most."""


def found(own: Tensor, other: Tensor) -> float:
    """The share of the `other` images that a score finds, averaged over false-alarm rates of up to 5 % of its `own`.

    >>> round(found(torch.linspace(0, 1, 1001), torch.tensor([0.5, 0.9701, 2.0])), 3)
    0.48
    """
    rates = torch.linspace(0, LARGEST_RATE, RATES + 1)[1:]
    thresholds = own.float().quantile(1 - rates)
    return float((other.float().unsqueeze(1) > thresholds).float().mean())


def shares_found(score: Score, own: Observed, labels: Tensor, outliers: Mapping[str, Observed]) -> dict[str, float]:
    """The share of each kind that a score finds, by held-out images and outliers made of them."""
    usual = score(own)
    shares = {name: found(usual, score(seen)) for name, seen in outliers.items()}
    classes = labels.unique()
    if len(classes) > 2:  # without one of two there is nothing to tell apart
        places = torch.linspace(0, len(classes) - 1, min(CLASSES, len(classes))).round().long()
        near = []
        for label in classes[places].tolist():
            left = score.without(label)(own)
            near.append(found(left[labels != label], left[labels == label]))
        shares[LEFT_OUT] = sum(near) / len(near)
    return shares
