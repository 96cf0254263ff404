"""Turning any network into a Bayesian one."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from typing_extensions import Unpack

from dubito.divergence import describe_non_finite
from dubito.errors import NonFiniteError
from dubito.head import Head, attach_head
from dubito.layers import (
    BayesConv1d,
    BayesConv2d,
    BayesConv3d,
    BayesConvTranspose1d,
    BayesConvTranspose2d,
    BayesConvTranspose3d,
    BayesianOptions,
    BayesLayer,
    BayesLinear,
)

__all__ = ["to_bayesian"]

TWINS: dict[type[nn.Module], type[BayesLayer]] = {
    nn.Linear: BayesLinear,
    nn.Conv1d: BayesConv1d,
    nn.Conv2d: BayesConv2d,
    nn.Conv3d: BayesConv3d,
    nn.ConvTranspose1d: BayesConvTranspose1d,
    nn.ConvTranspose2d: BayesConvTranspose2d,
    nn.ConvTranspose3d: BayesConvTranspose3d,
}
"""The Bayesian twin of each layer of torch. Subclasses are left alone: others rely on what they add."""

_CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")


def to_bayesian(module: nn.Module, *, head: str | Head | None = None, **bayesian: Unpack[BayesianOptions]) -> nn.Module:
    """A Bayesian copy of `module`: every linear and convolutional layer gets a posterior centred on its weights.

    The original is untouched. Layers that appear in several places stay shared, tied weights stay tied, and everything
    that is no such layer (normalisation, activations, Bayesian layers) is copied as it is, so applying it twice
    changes nothing.

    Args:
        module: any network, or a single layer.
        head: makes this the copy's own head.
        bayesian: options of the new layers, see :class:`~dubito.layers.BayesianOptions`; `prior="empirical"` centres
            the prior on the weights too.

    >>> network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Softplus(), nn.Flatten(), nn.Linear(16, 10))
    >>> bayesian = to_bayesian(network, prior="empirical")
    >>> bayesian[3].weight_mean.equal(network[3].weight), type(network[3]).__name__
    (True, 'Linear')
    """
    if any(not bool(p.isfinite().all()) for p in module.parameters() if not p.is_meta):
        raise NonFiniteError(f"The network cannot be made Bayesian: {describe_non_finite(module)}")
    converted = _convert(copy.deepcopy(module), bayesian, {}, {})
    return converted if head is None else attach_head(converted, head)


def _convert(
    module: nn.Module, bayesian: BayesianOptions, replaced: dict[int, nn.Module], stds: dict[int, nn.Parameter]
) -> nn.Module:
    """`module` with its layers replaced in place.

    `replaced` remembers modules by identity, so that shared ones stay shared; `stds` the standard deviations by their
    mean's, so that tied weights have one posterior.
    """
    if id(module) not in replaced:
        if type(module) in TWINS:
            replaced[id(module)] = _twin(module, bayesian, stds)
        else:
            replaced[id(module)] = module
            _leave_fused_path(module)
            for name, child in module._modules.items():  # named_children would skip a child's second name
                if child is not None:
                    module._modules[name] = _convert(child, bayesian, replaced, stds)
    return replaced[id(module)]


def _leave_fused_path(module: nn.Module) -> None:
    """Keep torch's transformer from reading its linear layers' weights instead of calling them."""
    if isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0
    elif isinstance(module, nn.TransformerEncoder):
        module.use_nested_tensor = False


def _twin(layer: nn.Module, bayesian: BayesianOptions, stds: dict[int, nn.Parameter]) -> BayesLayer:
    """The Bayesian twin of one layer, on its device, in its dtype and mode, with its own parameters as means."""
    weight: nn.Parameter = layer.weight  # type: ignore[assignment]
    bias: nn.Parameter | None = layer.bias  # type: ignore[assignment]
    names = ("in_features", "out_features") if isinstance(layer, nn.Linear) else _CONVOLUTION
    options: dict[str, Any] = {name: getattr(layer, name) for name in names}
    if type(layer).__name__.startswith("ConvTranspose"):
        options["output_padding"] = layer.output_padding
    twin = TWINS[type(layer)](**options, bias=bias is not None, device=weight.device, dtype=weight.dtype, **bayesian)
    twin.adopt(weight, bias, bayesian.get("prior", "standard"))
    twin.tie_stds(stds)
    return twin.train(layer.training)
