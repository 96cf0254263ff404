"""Rules for reshaping, padding and averages."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito.prediction.moments.linear import per_axis
from dubito.prediction.moments.value import Moments, Pull, UnsupportedError, as_moments, rule


@rule("flatten", "reshape", "view", "squeeze", "unsqueeze", "unflatten")
def reshape(function: Any, x: Moments, *args: Any, **kwargs: Any) -> Moments:
    """Units in another shape, which does not touch the batch axis."""
    mean = function(x.expected, *args, **kwargs)
    if mean.dim() < 2 or mean.shape[0] != x.expected.shape[0]:
        raise UnsupportedError(f"{function.__name__} that touches the batch axis")
    return Moments(
        mean,
        lambda: function(x.variance, *args, **kwargs),
        links=[(x, lambda j: j.reshape(*j.shape[:2], *x.expected.shape[1:]))],
        unmixed=True,
    )


@rule("contiguous", "clone")
def _identity(function: Any, x: Moments, *args: Any, **kwargs: Any) -> Moments:
    return x


@rule("pad")
def _pad(function: Any, x: Moments, pad: Any, mode: str = "constant", value: float | None = None) -> Moments:
    mean = function(x.expected, pad, mode=mode, value=value)
    return Moments(mean, lambda: function(x.variance, pad, mode=mode, value=0 if value else value), links=[(x, None)])


@rule("cat", "concat", "concatenate")
def _cat(function: Any, tensors: Any, dim: int = 0) -> Moments:
    parts = [as_moments(part) for part in tensors]
    axis = dim % parts[0].expected.dim()
    if axis == 0:
        raise UnsupportedError("cat along the batch axis")
    mean = function([part.expected for part in parts], axis)
    sizes = [part.expected.shape[axis] for part in parts]
    starts = itertools.accumulate(sizes, initial=0)

    def piece(start: int, size: int) -> Pull:
        return lambda j: j.narrow(axis + 1, start, size)

    links = [(part, piece(start, size)) for part, start, size in zip(parts, starts, sizes, strict=False)]
    return Moments(mean, lambda: function([part.variance for part in parts], axis), links=links)


@rule("mean")
def _mean(function: Any, x: Moments, dim: Any = None, keepdim: bool = False) -> Moments:
    axes = [] if dim is None else sorted(d % x.expected.dim() for d in ((dim,) if isinstance(dim, int) else dim))
    if not axes or axes[0] == 0:
        raise UnsupportedError("mean over the batch axis")
    mean = x.expected.mean(axes, keepdim=True)
    count = x.expected.numel() // mean.numel()
    kept = Moments(
        mean,
        lambda: x.variance.mean(axes, keepdim=True) / count,
        links=[(x, lambda j: (j / count).expand(*j.shape[:2], *x.expected.shape[1:]))],
    )
    final = x.expected.shape[:1] + tuple(s for a, s in enumerate(x.expected.shape) if a and a not in axes)
    return kept if keepdim else reshape(torch.reshape, kept, final)


@rule("avg_pool2d")
def _average_pool(
    function: Any,
    x: Moments,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Moments:
    kernel, padding = per_axis(kernel_size, 2), per_axis(padding, 2)
    stride = per_axis(stride or kernel, 2)
    if ceil_mode or divisor_override or (any(padding) and not count_include_pad):
        raise UnsupportedError("avg_pool2d with windows of several sizes")
    count = math.prod(kernel)

    def pull(jacobian: Tensor) -> Tensor:
        return unslide([jacobian / count] * count, x.expected.shape, kernel, stride, padding, (1, 1))

    mean = function(x.expected, kernel, stride, padding)
    return Moments(mean, lambda: function(x.variance, kernel, stride, padding) / count, links=[(x, pull)])


@rule("adaptive_avg_pool2d")
def _adaptive_average_pool(function: Any, x: Moments, output_size: Any) -> Moments:
    size = tuple(x.expected.shape[2:])
    wanted = tuple(s if o is None else o for s, o in zip(size, _per_axis_or_none(output_size), strict=True))
    if any(s % o for s, o in zip(size, wanted, strict=True)):
        raise UnsupportedError(f"adaptive_avg_pool2d from {size} to {wanted}")
    return _average_pool(F.avg_pool2d, x, tuple(s // o for s, o in zip(size, wanted, strict=True)))


def _per_axis_or_none(value: Any) -> tuple[int | None, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def unslide(
    parts: list[Tensor],
    shape: torch.Size,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """Rows (B, R, C, H, W) for each place in the window, added up where they come from."""
    rows, channels, places = parts[0].shape[:2], shape[1], parts[0].shape[3:]
    if kernel == stride and not any(padding) and set(dilation) == {1}:  # windows side by side: the general way is slow
        blocks = torch.stack(parts, -1).unflatten(-1, kernel)
        whole = blocks.permute(0, 1, 2, 3, 5, 4, 6).reshape(
            *rows, channels, places[0] * kernel[0], places[1] * kernel[1]
        )
        return F.pad(whole, (0, shape[3] - whole.shape[4], 0, shape[2] - whole.shape[3]))
    columns = torch.stack(parts, 3).flatten(4).flatten(2, 3).flatten(0, 1)
    return F.fold(columns, shape[2:], kernel, dilation, padding, stride).unflatten(0, rows)
