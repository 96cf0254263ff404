"""From untrusted bytes to an image, and what the page's sliders do to it.

Only a few formats are tried, and format and size are known from the header before a pixel is decoded: a small file that
claims to be a huge image costs nothing. Nothing in a request is ever taken for the name of a file.

Noise is that of `dubito evaluate`: gamma times standard normal noise is added to pixels in [0, 1], and the sum is not
clipped. Rotation is about the centre, in degrees, counter-clockwise and bilinear; new pixels get the colour of the
image's border.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence

import torch
from torch import Tensor

from dubito.data.images import SERVED_FORMATS
from dubito.errors import DataError
from dubito.runs.description import DataDescription
from dubito.serving.refusal import RefusedError


def count_pixels(files: Sequence[bytes], max_pixels: int) -> int:
    """Pixels of all images together, by their headers; too many are refused."""
    pixels = 0
    for number, content in enumerate(files, start=1):
        pixels += _count_pixels(content, _name(number, len(files)))
        if pixels > max_pixels:
            what = "The image has" if len(files) == 1 else "The images have together"
            raise RefusedError(
                413, f"{what} {pixels:,} pixels, but at most {max_pixels:,} are read; shrink or split them."
            )
    return pixels


def decode_images(files: Sequence[bytes], data: DataDescription) -> list[Tensor]:
    """Each file as an image (C, H, W) of bytes, as the run's own data was read; their pixels have been counted."""
    return [_decode(content, _name(number, len(files)), data) for number, content in enumerate(files, start=1)]


def decode_base64(text: str, number: int, total: int) -> bytes:
    """The bytes of base64, with or without `data:...;base64,` before it."""
    name = _name(number, total)
    if text[:5].lower() == "data:":
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise RefusedError(422, f"{name} is a data: URL without ';base64,', but images must be given in base64.")
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise RefusedError(422, f"{name} is not valid base64: encode the file's bytes.") from None


def _name(number: int, total: int) -> str:
    return "The image" if total == 1 else f"Image {number}"


def _count_pixels(content: bytes, name: str) -> int:
    """Width times height, by the header alone."""
    from PIL import Image, UnidentifiedImageError

    if not content:
        raise RefusedError(422, f"{name} is empty: it has no bytes.")
    try:
        with Image.open(io.BytesIO(content), formats=SERVED_FORMATS) as picture:
            width, height = picture.size
    except Image.DecompressionBombError:
        raise RefusedError(413, f"{name} has far too many pixels; shrink it.") from None
    except UnidentifiedImageError:
        raise RefusedError(
            422, f"{name} cannot be read: it is not a PNG, JPEG, WebP, BMP or GIF file, or its header is damaged."
        ) from None
    except Exception:  # Pillow raises nearly anything on bytes that lie about themselves
        raise RefusedError(422, f"{name} cannot be read: its header is damaged.") from None
    return width * height


def _decode(content: bytes, name: str, data: DataDescription) -> Tensor:
    file = io.BytesIO(content)
    file.name = name  # what messages call it
    try:
        return data.read(file)
    except DataError as error:
        raise RefusedError(422, str(error)) from None
    except MemoryError:
        raise RefusedError(413, f"{name} needs more memory than there is; shrink it.") from None


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
