"""Noise and rotation: what the page's sliders do to an image.

Noise is that of `dubito evaluate`: gamma times standard normal noise is added to pixels in [0, 1], and the sum is not
clipped. Rotation is about the centre, in degrees, counter-clockwise and bilinear; new pixels get the colour of the
image's border.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(image: Tensor, degrees: float) -> Tensor:
    """Rotate an image (C, H, W) of bytes.

    >>> image = torch.tensor([[[1, 2], [3, 4]]], dtype=torch.uint8)
    >>> rotate(image, 90).tolist()
    [[[2, 4], [1, 3]]]
    """
    if degrees % 360 == 0:
        return image
    import numpy as np
    from PIL import Image

    pixels = image.numpy()
    border = np.concatenate([pixels[:, 0], pixels[:, -1], pixels[:, 1:-1, 0], pixels[:, 1:-1, -1]], axis=1)
    fill = [int(value) for value in np.median(border, axis=1)]
    planes = [
        np.asarray(Image.fromarray(plane).rotate(degrees, Image.Resampling.BILINEAR, fillcolor=colour))
        for plane, colour in zip(pixels, fill, strict=True)
    ]
    return torch.from_numpy(np.stack(planes))


def to_bytes(image: Tensor) -> Tensor:
    """A float image as bytes; values outside [0, 1] are clipped.

    >>> to_bytes(torch.tensor([-1.0, 0.5, 2.0])).tolist()
    [0, 128, 255]
    """
    return (image.clamp(0, 1) * 255).round().byte()
