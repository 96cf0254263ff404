"""Images inside a page: data URIs, sheets of many small images, and which of them to show.

A sheet is one picture with all thumbnails in rows, which browsers decode far faster than thousands of small files.
"""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dubito.data import shrunk

COLUMNS = 50
"""Thumbnails in a row of a sheet: 3,200 pixels at most, less than any browser's limit."""
THUMBNAIL = 64
"""The largest side of a thumbnail in a sheet, in pixels; a multiple of 16, see `_encoded`."""
PICTURE = 192
"""The largest side of a picture that is shown alone, twice what the page gives it."""


@dataclass(frozen=True)
class Sheet:
    """A picture of thumbnails in rows: its data URI, thumbnails in a row, and the side of each in pixels."""

    uri: str
    columns: int
    side: int
    count: int


def data_uri(image: Tensor) -> str:
    """One image (C, H, W) of bytes that can be put into a page: a PNG, or a JPEG if it is a photograph."""
    small = shrunk(image.unsqueeze(0), PICTURE)[0]
    return _encoded(_pixels(small), "JPEG" if len(small) == 3 and small.shape[-1] > THUMBNAIL else "PNG")


def sheet(images: Tensor) -> Sheet:
    """Images (N, C, S, S) of bytes as one picture: PNG if they are gray, JPEG, a fifth as large, if in colour."""
    count, channels, side, _ = images.shape
    columns = min(COLUMNS, max(count, 1))
    rows = math.ceil(count / columns)
    padded = torch.zeros(rows * columns, channels, side, side, dtype=torch.uint8)
    padded[:count] = images
    grid = padded.view(rows, columns, channels, side, side).permute(2, 0, 3, 1, 4)
    picture = grid.reshape(channels, rows * side, columns * side)
    return Sheet(_encoded(_pixels(picture), "PNG" if channels == 1 else "JPEG"), columns, side, count)


def choose_points(scores: list[Tensor], count: int) -> Tensor:
    """At most `count` of the images, in ascending order: the highest of each score, and others at random.

    Up to half of them are extremes, so that the crowd is seen too.
    """
    total = len(scores[0])
    if total <= count:
        return torch.arange(total)
    share = count // (2 * len(scores))
    extremes = torch.cat([score.argsort(descending=True, stable=True)[:share] for score in scores]).unique()
    left = torch.ones(total, dtype=torch.bool)
    left[extremes] = False
    others = left.nonzero().squeeze(1)
    shuffled = torch.randperm(len(others), generator=torch.Generator().manual_seed(0))
    return torch.cat([extremes, others[shuffled[: count - len(extremes)]]]).sort().values


def _pixels(image: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    pixels = image.cpu().numpy()
    return pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)


def _encoded(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], kind: str) -> str:
    from PIL import Image

    content = io.BytesIO()
    # JPEG works in blocks of 16 pixels, which divide a thumbnail's side: none shines through into another.
    options = {"quality": 90} if kind == "JPEG" else {"optimize": True}
    Image.fromarray(np.ascontiguousarray(pixels)).save(content, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(content.getvalue()).decode()}"
