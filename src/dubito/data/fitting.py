"""How a picture of any proportions becomes a square: cropped, padded or stretched, whole or a random part of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from dubito.errors import OptionError, unknown

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Fit = Literal["crop", "pad", "stretch"]
"""How a picture becomes a square: cut its middle out, add black beside it, or ignore its proportions."""
FITS: tuple[Fit, ...] = ("crop", "pad", "stretch")
"""crop: the largest square in the middle; pad: the whole picture, black where it is too narrow; stretch: the whole
picture, its proportions changed."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom edge in pixels of a picture; beyond its edges it is black."""


@dataclass(frozen=True)
class Window:
    """A random part of a picture.

    Attributes:
        area: its share of the picture's area.
        ratio: its width divided by its height.
        x, y: its place, 0 (left, top) to 1 (right, bottom).
        flip: whether it is mirrored left to right.
    """

    area: float
    ratio: float
    x: float
    y: float
    flip: bool


def check_fit(fit: str) -> None:
    """Refuse an unknown way to fit pictures."""
    if fit not in FITS:
        raise OptionError(unknown("fit", fit, FITS))


def box(width: int, height: int, fit: Fit, window: Window | None = None) -> Box:
    """The part of a picture that becomes the square.

    A window is a part of the picture for `crop`, and of the square that the whole picture becomes for `pad` and
    `stretch`. One that is too wide or too high for its place is made smaller; it keeps its proportions.

    >>> box(40, 20, "crop"), box(40, 20, "pad"), box(40, 20, "stretch")
    ((10.0, 0.0, 30.0, 20.0), (0.0, -10.0, 40.0, 30.0), (0.0, 0.0, 40.0, 20.0))
    >>> box(40, 20, "crop", Window(area=0.5, ratio=1, x=1, y=0, flip=False))
    (20.0, 0.0, 40.0, 20.0)
    """
    if window is None:
        side = {"crop": min(width, height), "pad": max(width, height)}.get(fit)
        wide, high = (width, height) if side is None else (side, side)
        x, y = (width - wide) / 2, (height - high) / 2
        return x, y, x + wide, y + high
    if fit != "crop":  # a part of the unit square, in the units of the whole square's box
        x0, y0, x1, y1 = _part(1.0, 1.0, window)
        left, top, right, bottom = box(width, height, fit)
        across, down = right - left, bottom - top
        return left + x0 * across, top + y0 * down, left + x1 * across, top + y1 * down
    return _part(width, height, window)


def _part(width: float, height: float, window: Window) -> Box:
    wide = math.sqrt(window.area * width * height * window.ratio)
    high = wide / window.ratio
    shrink = min(1.0, width / wide, height / high)
    wide, high = min(wide * shrink, width), min(high * shrink, height)
    left, top = window.x * (width - wide), window.y * (height - high)
    return left, top, min(left + wide, width), min(top + high, height)


def least_scale(size: int, part: Box) -> float:
    """How far a picture may be shrunk before `part` has fewer than `size` pixels a side."""
    return max(size / (part[2] - part[0]), size / (part[3] - part[1]))


def fitted(
    picture: Picture, size: int, padding: int = 0, fit: Fit = "crop", window: Window | None = None
) -> npt.NDArray[np.uint8]:
    """An L or RGB picture as (C, size, size): bilinear with antialiasing, framed by `padding` black pixels.

    A whole picture that already has `size` x `size` pixels is left as it is, without a frame.
    """
    from PIL import Image

    if window is None and picture.size == (size, size):
        padding = 0
    inner = size - 2 * padding
    part = box(*picture.size, fit, window)
    if fit == "pad" and picture.width != picture.height:
        picture = _bounded(picture)
        side = max(picture.size)
        canvas = Image.new(picture.mode, (side, side))
        shift = (side - picture.width) // 2, (side - picture.height) // 2
        canvas.paste(picture, shift)
        left, top, right, bottom = box(side, side, fit, window)
        part, picture = (left, top, min(right, side), min(bottom, side)), canvas
    if picture.size != (inner, inner) or part != (0, 0, inner, inner):
        picture = picture.resize((inner, inner), Image.Resampling.BILINEAR, part)
    if window is not None and window.flip:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = np.asarray(picture)
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    image = np.zeros((len(pixels), size, size), np.uint8)
    image[:, padding : padding + inner, padding : padding + inner] = pixels
    return image


LONGEST = 4096
"""Pixels a side of the square that a long picture is padded to at most: it could be a line of 60,000 pixels."""


def _bounded(picture: Picture) -> Picture:
    from PIL import Image

    side = max(picture.size)
    if side <= LONGEST:
        return picture
    width, height = (max(1, round(pixels * LONGEST / side)) for pixels in picture.size)
    return picture.resize((width, height), Image.Resampling.BILINEAR)
