"""From image files and pixels to tensors of one size: files of the usual formats become bytes (C, size, size)."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dubito.data.fitting import Fit, Window, box, check_fit, fitted, least_scale
from dubito.data.registry import IMAGE_SIZE
from dubito.errors import DataError, OptionError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

__all__ = [
    "FORMATS",
    "IMAGE_SUFFIXES",
    "MAX_PIXELS",
    "FileFacts",
    "inspect_image",
    "is_image_file",
    "read_image",
    "read_pixels",
    "resize_all",
]

IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pbm", ".pgm", ".ppm", ".pnm"}
)
"""Endings by which a folder's images are told from its other files."""

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""What is read, by the file's content. Pillow knows more, among them EPS, which starts another program."""

MAX_PIXELS = 89_478_485
"""Larger images are refused as decompression bombs (Pillow's own threshold: a quarter of a GiB at three bytes)."""

_GRAY_MODES = frozenset({"1", "L", "LA", "La", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"})

_ORIENTATION = 0x0112

Source = str | os.PathLike[str] | BinaryIO


def read_image(
    source: Source,
    channels: int,
    size: int = IMAGE_SIZE,
    padding: int = 0,
    fit: Fit = "crop",
    window: Window | None = None,
) -> Tensor:
    """An image file as a uint8 tensor of shape (channels, size, size).

    The first frame counts, the EXIF orientation is honoured, transparency is laid over white, 16-bit values are
    scaled to 8 bits, and colour becomes gray or gray colour as `channels` (1 or 3) asks. `fit` says what becomes of
    the proportions: ``crop`` takes the largest square in the middle, ``pad`` adds black to the shorter sides,
    ``stretch`` changes them. The result has `size - 2 * padding` pixels a side and is framed by `padding` black ones,
    as the MNIST family is; an image that already is `size` x `size` stays as it is. Training gives a `window`, the
    random part of the image to take.

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (10, 20), (255, 0, 0)).save(file, "png")
    >>> image = read_image(file, channels=3)
    >>> image.shape, image[:, 0, 0].tolist()
    (torch.Size([3, 32, 32]), [255, 0, 0])
    """
    return torch.from_numpy(read_pixels(source, channels, size, padding, fit, window))


def read_pixels(
    source: Source, channels: int, size: int, padding: int = 0, fit: Fit = "crop", window: Window | None = None
) -> npt.NDArray[np.uint8]:
    """What :func:`read_image` gives, as an array: in threads that read, torch would start threads of its own."""
    if channels not in (1, 3):
        raise OptionError(f"channels is {channels}, but must be 1 (gray) or 3 (colour).")
    check_fit(fit)
    picture = _decode(source, _name(source), size - 2 * padding, fit, window)
    mode = "L" if channels == 1 else "RGB"
    return fitted(picture if picture.mode == mode else picture.convert(mode), size, padding, fit, window)


def _name(source: Source) -> str:
    if isinstance(source, (str, os.PathLike)):
        return str(source)
    return str(getattr(source, "name", "the image"))


@dataclass(frozen=True)
class FileFacts:
    """What an image file says of itself: width and height in pixels, and whether it has no colours by its format."""

    width: int
    height: int
    gray: bool


def inspect_image(path: str | os.PathLike[str]) -> FileFacts:
    """The facts of a file that can be read; a DataError says why it cannot.

    Cheaper than reading it: a JPEG is decoded at an eighth of its size, and of a PNG the checksums are compared.
    """
    name = str(path)
    _require_file(path, name)
    try:
        with _open(path) as picture:
            _refuse_bomb(picture, name)
            facts = FileFacts(picture.width, picture.height, picture.mode in _GRAY_MODES)
            if picture.format == "PNG":
                picture.verify()
            else:
                picture.draft(None, (1, 1))
                picture.load()
            return facts
    except DataError:
        raise
    except Exception as error:
        raise _unreadable(name, error) from error


def is_image_file(path: Path, folder: Path) -> bool:
    """Whether a file below `folder` is an image by its ending, and not hidden."""
    return path.suffix.lower() in IMAGE_SUFFIXES and not _hidden(path, folder) and path.is_file()


def is_other_file(path: Path, folder: Path) -> bool:
    """Whether a file below `folder` is no image by its ending, and not hidden."""
    return path.suffix.lower() not in IMAGE_SUFFIXES and not _hidden(path, folder) and path.is_file()


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def resize_all(pixels: npt.NDArray[np.uint8], size: int, padding: int = 0, fit: Fit = "crop") -> Tensor:
    """Images (N, C, H, W) of bytes as (N, C, size, size), each treated as :func:`fitted` does it.

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
        images.numpy()[index] = fitted(Image.fromarray(np.ascontiguousarray(plane)), size, padding, fit)
    return images


def _open(source: Source) -> Picture:
    """Pillow's lazy picture, of which only the header has been read."""
    from PIL import Image

    return Image.open(source, formats=FORMATS)


def _decode(source: Source, name: str, size: int, fit: Fit, window: Window | None) -> Picture:
    """The first frame, upright, as L or RGB; a JPEG at an eighth to the whole of its size, as `size` pixels need.

    Pillow's decoders raise nearly anything on bytes that lie about themselves, hence the broad handler.
    """
    from PIL import ImageOps

    _require_file(source, name)
    try:
        with _open(source) as picture:
            _refuse_bomb(picture, name)
            scale = least_scale(size, box(*_upright_size(picture), fit, window))
            picture.draft(None, tuple(math.ceil(side * scale) for side in picture.size))  # only JPEG can
            picture.load()
            upright = ImageOps.exif_transpose(picture)
            return _eight_bits(upright, name)
    except DataError:
        raise
    except Exception as error:
        raise _unreadable(name, error) from error


def _upright_size(picture: Picture) -> tuple[int, int]:
    """Width and height after the turn that the EXIF orientation asks for."""
    lying = picture.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
    return (picture.height, picture.width) if lying else picture.size


def _require_file(source: Source, name: str) -> None:
    if isinstance(source, (str, os.PathLike)) and not os.path.isfile(source):
        reason = "is a folder, but must be an image file" if os.path.isdir(source) else "does not exist"
        raise DataError(f"{name} {reason}.")


def _refuse_bomb(picture: Picture, name: str) -> None:
    width, height = picture.size
    if width * height > MAX_PIXELS:
        raise DataError(f"{name} has {width} x {height} pixels, but at most {MAX_PIXELS} are read; shrink it.")


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
    elif isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        reason = f"it has more than the {MAX_PIXELS} pixels that are read"
    elif isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    else:
        reason = str(error).strip().rstrip(".") or type(error).__name__
    return DataError(f"{name} cannot be read as an image: {reason}.")
