"""Calibrated probabilities: temperature scaling (Guo et al. 2017) of mean probabilities.

With m the mean probabilities of the draws, calibrated ones are m^(1/T), normalised over the classes. That needs no
logits, so it is the same for every head, for draws and moments, in a server and in an ONNX file. T above 1 softens, T
below 1 sharpens. No label changes, because the order of the classes stays.

What is calibrated are the probabilities, and with them confidence and entropy. Aleatoric and epistemic uncertainty and
mutual information describe the draws, and stay as they are: their sums are those of the mean before calibration.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from dubito.errors import OptionError
from dubito.heads.split import Prediction


def temper(probs: Tensor, temperature: float) -> Tensor:
    """p^(1/T), renormalised over the classes.

    >>> temper(torch.tensor([[0.8, 0.2]]), 2.0)
    tensor([[0.6667, 0.3333]])
    """
    if not (temperature > 0 and math.isfinite(temperature)):
        raise OptionError(f"temperature is {temperature}, but must be positive and finite.")
    return torch.softmax(log_probs(probs) / temperature, 1).to(probs.dtype)


def log_probs(probs: Tensor) -> Tensor:
    """The logarithms in float64; a probability of 0 counts as the smallest positive number."""
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).double().log()


def calibrate(prediction: Prediction, temperature: float) -> Prediction:
    """The prediction with calibrated probabilities and their entropy.

    >>> import dubito
    >>> prediction = dubito.decompose(torch.tensor([[[0.8, 0.2]]]))
    >>> calibrate(prediction, 2.0).confidence
    tensor([0.6667])
    """
    probs = temper(prediction.probs, temperature)
    return replace(prediction, probs=probs, entropy=torch.special.entr(probs).sum(1))
