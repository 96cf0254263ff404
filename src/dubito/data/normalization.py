"""Normalising images: (x - mean) / std of each channel, for pixels in [0, 1] or for bytes 0 .. 255."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dubito.errors import OptionError


def normalize(
    images: Tensor,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Images (..., C, H, W) as a network takes them: (x - mean) / std of each channel.

    Bytes stand for pixels from 0 to 1, so 255 is 1; floats are pixels in [0, 1] already, and may lie outside, as noisy
    ones do. None changes nothing but the scale.

    >>> normalize(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8), mean=[0.5], std=[0.5]).unique().tolist()
    [1.0]
    >>> normalize(torch.ones(1, 1, 2, 2), mean=[0.5], std=[0.5]).unique().tolist()
    [1.0]
    """
    mean, std = per_channel(images.shape[-3], mean, std)
    top = 1 if images.is_floating_point() else 255
    shift, scale = channel_constants(mean, std, dtype, images.device, top=top)
    return standardize(images, shift, scale, dtype)


def standardize(images: Tensor, shift: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """(images - shift) / scale, with the constants that :func:`channel_constants` gives."""
    values = images.to(shift.dtype, copy=True)
    return values.sub_(shift).div_(scale).to(dtype)


def channel_constants(
    mean: Sequence[float],
    std: Sequence[float],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    top: int = 255,
) -> tuple[Tensor, Tensor]:
    """Shift and scale of shape (C, 1, 1) for pixels from 0 to `top`.

    (x / top - mean) / std = (x - shift) / scale, with shift = top * mean and scale = top * std.

    >>> channel_constants([0.5], [0.25])[0].item()
    127.5
    """
    working = torch.float64 if dtype == torch.float64 else torch.float32
    constants = torch.tensor([mean, std], dtype=torch.float64).mul(top).to(device, working)
    return constants[0].view(-1, 1, 1), constants[1].view(-1, 1, 1)


def per_channel(
    channels: int, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Check mean and standard deviation, one a channel; None becomes the ones that change nothing.

    >>> per_channel(2, None, [1, 2])
    ((0.0, 0.0), (1.0, 2.0))
    """
    means = (0.0,) * channels if mean is None else tuple(float(value) for value in mean)
    stds = (1.0,) * channels if std is None else tuple(float(value) for value in std)
    if len(means) != channels:
        raise OptionError(f"mean is {means}, but must have {channels} numbers, one for each channel.")
    if len(stds) != channels or min(stds) <= 0:
        raise OptionError(f"std is {stds}, but must have {channels} positive numbers, one for each channel.")
    return means, stds
