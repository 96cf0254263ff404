"""From image files and pixels to tensors of one size: every format that Pillow reads becomes bytes (C, size, size)."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dubito.data.registry import IMAGE_SIZE
from dubito.errors import DataError, OptionError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

__all__ = ["IMAGE_SUFFIXES", "MAX_PIXELS", "is_gray", "read_image", "resize", "resize_all", "with_channels"]

IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pbm", ".pgm", ".ppm", ".pnm"}
)
"""Endings by which a folder's images are told from its other files."""

MAX_PIXELS = 89_478_485
"""Larger images are refused as decompression bombs (Pillow's own threshold: a quarter of a GiB at three bytes)."""

_GRAY_MODES = frozenset({"1", "L", "LA", "La", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"})


def read_image(
    source: str | os.PathLike[str] | BinaryIO, channels: int, size: int = IMAGE_SIZE, padding: int = 0
) -> Tensor:
    """An image file as a uint8 tensor of shape (channels, size, size).

    The first frame counts, the EXIF orientation is honoured, transparency is laid over white, 16-bit values are
    scaled to 8 bits, and colour becomes gray or gray colour as `channels` (1 or 3) asks. The image is resized, whatever
    its proportions, to `size - 2 * padding` and framed by `padding` black pixels, as the MNIST family is; one that
    already is `size` x `size` stays as it is.

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (10, 20), (255, 0, 0)).save(file, "png")
    >>> image = read_image(file, channels=3)
    >>> image.shape, image[:, 0, 0].tolist()
    (torch.Size([3, 32, 32]), [255, 0, 0])
    """
    if channels not in (1, 3):
        raise OptionError(f"channels is {channels}, but must be 1 (gray) or 3 (colour).")
    name = str(source) if isinstance(source, (str, os.PathLike)) else str(getattr(source, "name", "the image"))
    picture = _decode(source, name)
    mode = "L" if channels == 1 else "RGB"
    return resize(picture if picture.mode == mode else picture.convert(mode), size, padding)


def resize(picture: Picture, size: int = IMAGE_SIZE, padding: int = 0) -> Tensor:
    """An L or RGB picture as (C, size, size): bilinear with antialiasing, framed by `padding` black pixels."""
    from PIL import Image

    inner = size - 2 * padding
    if picture.size == (size, size):
        inner, padding = size, 0
    if picture.size != (inner, inner):
        picture = picture.resize((inner, inner), Image.Resampling.BILINEAR)
    pixels = np.array(picture, dtype=np.uint8)
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    image = torch.zeros(len(pixels), size, size, dtype=torch.uint8)
    image[:, padding : padding + inner, padding : padding + inner] = torch.from_numpy(pixels.copy())
    return image


def resize_all(pixels: npt.NDArray[np.uint8], size: int, padding: int = 0) -> Tensor:
    """Images (N, C, H, W) of bytes as (N, C, size, size), each treated as `resize` does it.

    >>> resize_all(np.full((2, 1, 28, 28), 9, np.uint8), size=32, padding=2)[0, 0, :3, 16].tolist()
    [0, 0, 9]
    """
    from PIL import Image

    if pixels.shape[2:] == (size, size):
        return torch.from_numpy(np.array(pixels, order="C"))
    inner = size - 2 * padding
    images = torch.zeros(*pixels.shape[:2], size, size, dtype=torch.uint8)
    if pixels.shape[2:] == (inner, inner):
        inside = slice(padding, size - padding)
        images.numpy()[:, :, inside, inside] = pixels
        return images
    for index, image in enumerate(pixels):
        plane = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
        images[index] = resize(Image.fromarray(np.ascontiguousarray(plane)), size, padding)
    return images


def with_channels(images: Tensor, channels: int) -> Tensor:
    """Gray uint8 images (N, C, H, W) as colour or colour as gray, as Pillow does it with files.

    >>> with_channels(torch.full((1, 3, 1, 1), 7, dtype=torch.uint8), 1)
    tensor([[[[7]]]], dtype=torch.uint8)
    """
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1).contiguous()
    weights = torch.tensor([19595, 38470, 7471]).view(1, 3, 1, 1)  # ITU-R 601-2, in 16 bits
    parts = [((part.int() * weights).sum(1, keepdim=True) + 0x8000 >> 16).byte() for part in images.split(1000)]
    return torch.cat(parts)


def is_gray(path: str | os.PathLike[str]) -> bool:
    """Whether a file's image has no colours by its format; reads the header only."""

    try:
        with _open(path) as picture:
            return picture.mode in _GRAY_MODES
    except Exception as error:
        raise _unreadable(str(path), error) from error


def _open(source: str | os.PathLike[str] | BinaryIO) -> Picture:
    """Pillow's lazy picture, without its warning about sizes that are refused here anyway."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(source)


def _decode(source: str | os.PathLike[str] | BinaryIO, name: str) -> Picture:
    """The first frame, upright, as L or RGB.

    Pillow's decoders raise nearly anything on bytes that lie about themselves, hence the broad handler.
    """
    from PIL import ImageOps

    if isinstance(source, (str, os.PathLike)) and not Path(source).is_file():
        reason = "is a folder, but must be an image file" if Path(source).is_dir() else "does not exist"
        raise DataError(f"{name} {reason}.")
    try:
        with _open(source) as picture:
            width, height = picture.size
            if width * height > MAX_PIXELS:
                raise DataError(f"{name} has {width} x {height} pixels, but at most {MAX_PIXELS} are read; shrink it.")
            picture.load()
            upright = ImageOps.exif_transpose(picture)
            return _eight_bits(upright, name)
    except DataError:
        raise
    except Exception as error:
        raise _unreadable(name, error) from error


def _eight_bits(picture: Picture, name: str) -> Picture:
    """A picture of any mode as L or RGB."""
    from PIL import Image

    if picture.mode in ("L", "RGB") and "transparency" not in picture.info:
        return picture
    if picture.mode == "F" or picture.mode.startswith("I"):
        values = np.asarray(picture)
        shown = _wide_to_bytes(values, name)
        shown[values == picture.info.get("transparency", -1)] = 255
        return Image.fromarray(shown)
    if picture.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in picture.info:
        gray = picture.mode in _GRAY_MODES
        layer = picture.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, layer).convert("L" if gray else "RGB")
    return picture.convert("L" if picture.mode in _GRAY_MODES else "RGB")


def _wide_to_bytes(values: np.ndarray, name: str) -> np.ndarray:
    """Integers of up to 16 bits, or floats in [0, 1], scaled to 0 .. 255."""
    top = 1.0 if values.dtype.kind == "f" else 65535.0
    if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= top):
        raise DataError(
            f"{name} has pixel values from {values.min()} to {values.max()}, but {values.dtype} pixels must lie in "
            f"0 .. {top:g}; save it as 8-bit."
        )
    return np.rint(values.astype(np.float64) * (255.0 / top)).astype(np.uint8)


def _unreadable(name: str, error: Exception) -> DataError:
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        reason = "it is in no known image format"
    elif isinstance(error, Image.DecompressionBombError):
        reason = f"it has more than the {MAX_PIXELS} pixels that are read"
    elif isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    else:
        reason = str(error).strip().rstrip(".") or type(error).__name__
    return DataError(f"{name} cannot be read as an image: {reason}.")
