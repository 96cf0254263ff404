"""Rules for linear maps: matrix products, convolutions, batch normalisation, sums and multiples."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito.prediction.moments.value import Lazy, Moments, Pull, UnsupportedError, as_moments, rule
from dubito.prediction.moments.window import Window


@rule("linear")
def _linear(function: Any, x: Any, weight: Any, bias: Any = None) -> Moments:
    x, weight = as_moments(x), as_weights(weight)
    size = weight.expected.shape[0] * weight.expected.shape[1] * math.prod(x.expected.shape[1:-1])
    return _mapped(x, weight, bias, F.linear, lambda jacobian: jacobian @ weight.expected, size, size)


@rule("conv1d", "conv2d", "conv3d")
def _convolution(
    function: Any,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Moments:
    x, weight = as_moments(x), as_weights(weight)
    kernel, source = tuple(weight.expected.shape[2:]), tuple(x.expected.shape[2:])
    stride, dilation = per_axis(stride, len(kernel)), per_axis(dilation, len(kernel))
    if x.expected.dim() != len(kernel) + 2:
        raise UnsupportedError(f"{function.__name__} without a batch axis")
    if isinstance(padding, str):
        total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, kernel, strict=True)]
        if any(t % 2 for t in total):
            raise UnsupportedError(f"{function.__name__} with padding={padding!r} and an even kernel")
        padding = [t // 2 for t in total]
    padding = per_axis(padding, len(kernel))
    window = Window.over(source, kernel, stride, padding, dilation, groups)
    shape = window.output
    channels, positions = weight.expected.shape[0], math.prod(shape)
    work = weight.expected.numel() * positions
    # not of the way that is chosen next, so that how far covariances are followed does not depend on the batch
    cost = x.expected[0].numel() * channels * positions if window.is_dense else work
    images = x.expected.shape[0]
    # For a few images the matrix is not worth making; a graph for any number of them makes it once and for all.
    if not window.is_dense or not window.is_compact or (isinstance(images, int) and images < 16):

        def convolve(value: Tensor, by: Tensor, offset: Tensor | None) -> Tensor:
            return function(value, by, offset, stride, padding, dilation, groups)

        return _mapped(x, weight, bias, convolve, lambda j: window.transpose(j, weight.expected), work, cost)
    dense = weight.as_dense(window)

    def multiply(value: Tensor, by: Tensor, offset: Tensor | None) -> Tensor:
        wide = None if offset is None else offset.repeat_interleave(positions)
        return F.linear(value.movedim(1, -1).flatten(1), by, wide).unflatten(1, (channels, *shape))

    def pull(jacobian: Tensor) -> Tensor:
        back = (jacobian.flatten(2) @ dense.expected).unflatten(2, (*source, x.expected.shape[1]))
        return back.movedim(-1, 2)

    return _mapped(x, dense, bias, multiply, pull, work, cost)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed_convolution(function: Any, x: Any, weight: Any, bias: Any = None, *options: Any) -> Moments:
    x, weight = as_moments(x), as_weights(weight)

    def apply(value: Tensor, by: Tensor, offset: Tensor | None) -> Tensor:
        return function(value, by, offset, *options)

    return _mapped(x, weight, bias, apply, None, weight.expected.numel() * math.prod(x.expected.shape[2:]), 0)


def _mapped(
    x: Moments,
    weight: Weights,
    bias: Any,
    apply: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    pull: Pull | None,
    work: int,
    cost: int,
) -> Moments:
    """The moments of a linear map by Gaussian weights: exact for independent inputs."""
    bias = None if bias is None else as_moments(bias)
    mean = apply(x.expected, weight.expected, None if bias is None else bias.expected)
    offset = None if bias is None or bias.certain else bias.variance
    own: Lazy | None = None
    if not weight.certain:
        square = x.expected.square() if x.certain else torch.addcmul(x.variance, x.expected, x.expected)
        new = apply(square, weight.variance, offset).clamp_min(0)  # fast convolutions may round to just below 0
        own = lambda: new  # noqa: E731
    elif offset is not None:
        new = apply(torch.zeros_like(x.expected), weight.expected, offset)
        own = lambda: new  # noqa: E731

    def variance() -> Tensor:
        carried = apply(x.variance, weight.mean_square, None).clamp_min(0)
        return carried if own is None else carried + new

    if x.certain:
        return Moments(mean, None if own is None else new, own=own, work=work)
    return Moments(mean, variance, own=own, links=[(x, pull)], work=work, cost=cost)


class Weights(Moments):
    """Moments of a layer's weights, and of the dense matrices that stand for convolutions by them."""

    def __init__(self, mean: Tensor, variance: Tensor | None = None) -> None:
        super().__init__(mean, variance)
        self.unrolled: dict[Any, Weights] = {}

    @cached_property
    def mean_square(self) -> Tensor:
        """Squares of the means."""
        return self.expected.square()

    def as_dense(self, window: Window) -> Weights:
        """The matrix of the convolution by these weights."""
        if window not in self.unrolled:
            variance = None if self.certain else window.unroll(self.variance)
            self.unrolled[window] = Weights(window.unroll(self.expected), variance)
        return self.unrolled[window]


@rule("batch_norm")
def _batch_norm(
    function: Any,
    x: Moments,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Moments:
    if training or running_mean is None or running_var is None:
        raise UnsupportedError("batch_norm with the statistics of the batch")
    scale = (running_var + eps).rsqrt() if weight is None else weight * (running_var + eps).rsqrt()
    mean = function(x.expected, running_mean, running_var, weight, bias, False, momentum, eps)
    return _scaled(x, mean, scale.view(1, -1, *(1,) * (mean.dim() - 2)))


@rule("add", "sub")
def _sum(function: Any, x: Any, other: Any) -> Moments:
    """Multiples of one value vary together, h + h as 2 h; other branches count as independent in the variance, but not
    on the way back."""
    sign = -1.0 if function.__name__ == "sub" else 1.0
    mean = function(
        x.expected if isinstance(x, Moments) else x, other.expected if isinstance(other, Moments) else other
    )
    parts = [
        (part, factor) for part, factor in ((x, 1.0), (other, sign)) if isinstance(part, Moments) and not part.certain
    ]
    if any(part.expected.shape != mean.shape for part, _ in parts):
        raise UnsupportedError(f"{function.__name__} of different shapes")

    links = [(part, same if factor > 0 else torch.neg) for part, factor in parts]
    roots = [part.multiple[0] for part, _ in parts]
    if all(root is roots[0] for root in roots):
        total = sum(part.multiple[1] * factor for part, factor in parts)
        return Moments(mean, lambda: roots[0].variance * total**2, links=links, multiple=(roots[0], total))
    return Moments(mean, lambda: parts[0][0].variance + parts[1][0].variance, links=links)


@rule("mul", "div")
def _product(function: Any, x: Any, other: Any) -> Moments:
    inverse = function.__name__ == "div"
    if inverse and isinstance(other, Moments) and not other.certain:
        raise UnsupportedError("div by an uncertain value")
    x, other = (value.expected if isinstance(value, Moments) and value.certain else value for value in (x, other))
    x, other = (other, x) if isinstance(other, Moments) else (x, other)
    if isinstance(other, Moments):
        raise UnsupportedError("a product of two uncertain values")
    factor = 1 / other if inverse else other
    mean = x.expected * factor
    if mean.shape != x.expected.shape:
        raise UnsupportedError(f"{function.__name__} of different shapes")
    if isinstance(factor, Tensor) and factor.dim():
        factor = factor.view(*(1,) * (mean.dim() - factor.dim()), *factor.shape)
    return _scaled(x, mean, factor)


def _scaled(x: Moments, mean: Tensor, factor: Any) -> Moments:
    """Units times a constant factor for each, or for each channel."""

    def pull(jacobian: Tensor) -> Tensor:
        return jacobian * (factor.unsqueeze(1) if isinstance(factor, Tensor) and factor.dim() else factor)

    root, known = x.multiple
    return Moments(
        mean, lambda: x.variance * factor**2, links=[(x, pull)], unmixed=True, multiple=(root, known * factor)
    )


def same(jacobian: Tensor) -> Tensor:
    """The way back through a function that leaves units as they are."""
    return jacobian


def as_weights(value: Any) -> Weights:
    """Weights as they are, and numbers as weights without variance; nothing else."""
    if isinstance(value, Moments) and not isinstance(value, Weights):
        raise UnsupportedError("a product of two uncertain values")
    return value if isinstance(value, Weights) else Weights(value)


def per_axis(value: Any, axes: int) -> tuple[int, ...]:
    """A number for each axis, from one or several."""
    return (value,) * axes if isinstance(value, int) else tuple(value) * (axes // len(value))
