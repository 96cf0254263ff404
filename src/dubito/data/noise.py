"""Noise on the pixels of images, as in the paper's experiments with noisy test images."""

from __future__ import annotations

import torch
from torch import Tensor


def add_pixel_noise(images: Tensor, gamma: float, generator: torch.Generator) -> Tensor:
    """Images in [0, 1] plus `gamma` times standard normal noise, drawn for each pixel on the CPU; nothing is clipped.

    Bytes are divided by 255 first. The noise is the same for every gamma, so differences between levels of noise are
    those of the level alone. :func:`dubito.data.normalize` makes the result ready for a network.

    >>> image = torch.zeros(1, 1, 2, 2, dtype=torch.uint8)
    >>> once, twice = (add_pixel_noise(image, gamma, torch.Generator().manual_seed(0)) for gamma in (0.1, 0.2))
    >>> torch.equal(twice, 2 * once)
    True
    """
    pixels = images if images.is_floating_point() else images / 255
    noise = torch.randn(images.shape, generator=generator, dtype=pixels.dtype)
    return pixels + gamma * noise.to(pixels.device)
