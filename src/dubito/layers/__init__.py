"""Bayesian twins of torch's linear and convolutional layers.

A new layer is a file here and a line in `TWINS`. They take the same positional arguments as their `torch.nn` twins, in
the same order, and return a tensor.
"""

from __future__ import annotations

from torch import nn

from dubito.layers.base import BayesianOptions, BayesLayer, DrawingModule, drawing_modules, estimator, forced
from dubito.layers.convolution import BayesConv1d, BayesConv2d, BayesConv3d
from dubito.layers.linear import BayesLinear
from dubito.layers.parameter import DrawnParameter, draw_parameter, drawn_parameters
from dubito.layers.transposed import BayesConvTranspose1d, BayesConvTranspose2d, BayesConvTranspose3d

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
    "DrawingModule",
    "DrawnParameter",
    "draw_parameter",
    "drawing_modules",
    "drawn_parameters",
    "estimator",
    "forced",
]

TWINS: dict[type[nn.Module], type[BayesLayer]] = {
    nn.Linear: BayesLinear,
    nn.Conv1d: BayesConv1d,
    nn.Conv2d: BayesConv2d,
    nn.Conv3d: BayesConv3d,
    nn.ConvTranspose1d: BayesConvTranspose1d,
    nn.ConvTranspose2d: BayesConvTranspose2d,
    nn.ConvTranspose3d: BayesConvTranspose3d,
}
"""Exactly these types: a subclass may do more than its base does, so its parameters get posteriors of their own."""
