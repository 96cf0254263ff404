"""Bayesian twins of torch's linear and convolutional layers.

They take the same positional arguments as their `torch.nn` twins, in the same order, and return a tensor.
"""

from __future__ import annotations

from dubito.layers.base import BayesianOptions, BayesLayer
from dubito.layers.convolution import BayesConv1d, BayesConv2d, BayesConv3d
from dubito.layers.linear import BayesLinear
from dubito.layers.parameter import DrawnParameter, draw_parameter
from dubito.layers.transposed import BayesConvTranspose1d, BayesConvTranspose2d, BayesConvTranspose3d
from dubito.layers.twins import TWINS

__all__ = [
    "TWINS",
    "BayesConv1d",
    "BayesConv2d",
    "BayesConv3d",
    "BayesConvTranspose1d",
    "BayesConvTranspose2d",
    "BayesConvTranspose3d",
    "BayesLayer",
    "BayesLinear",
    "BayesianOptions",
    "DrawnParameter",
    "draw_parameter",
]
