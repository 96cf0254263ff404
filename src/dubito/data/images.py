"""From image files and pixels to tensors of one size: files of the usual formats become bytes (C, size, size)."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
from dubito.harmless import short
from dubito.limits import file_limits, variable
from dubito.memory import give_back_memory

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pbm", ".pgm", ".ppm", ".pnm"}
)
"""Endings by which a folder's images are told from its other files."""

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""What is read, by the file's content. Pillow knows more, among them EPS, which starts another program."""

SERVED_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
"""What the server reads of them. TIFF is a container of many encodings, whose decoders are long and old."""

LARGE = 2**24
"""Pixels of a picture that is decoded alone, and shrunk in strips."""

MAX_SCANS = 200
"""Scans of a progressive JPEG; cameras and programs write about ten."""

_BYTES_A_PIXEL = {"WEBP": 16, "progressive": 10}
"""What decoders need for a pixel, measured; others 4, and as much again to convert it."""

_STRIP = 2**20
"""Pixels that are converted at once: it takes several copies of them."""
_one_large_picture = threading.Lock()

_GRAY_MODES = frozenset({"1", "L", "LA", "La", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"})

_ORIENTATION = 0x0112
_LYING = (5, 6, 7, 8)
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
"""What undoes an EXIF orientation, as a member of Pillow's `Transpose`."""

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

    Only the first frame is read. The EXIF orientation is applied, transparency becomes white, 16-bit values are scaled
    to 8 bits, and colours are converted to `channels`: 1 (gray) or 3 (colour). `fit` says how the image becomes square:
    ``crop`` takes the largest square in the middle, ``pad`` adds black to the shorter sides, ``stretch`` changes the
    proportions. The result has `size - 2 * padding` pixels a side and is framed by `padding` black ones, as in the
    MNIST family. An image that already has `size` x `size` pixels does not change. `window` is the part of the image to
    take; training chooses it at random. >>> import io >>> from PIL import Image >>> file = io.BytesIO() >>>
    Image.new("RGB", (10, 20), (255, 0, 0)).save(file, "png") >>> image = read_image(file, channels=3) >>> image.shape,
    image[:, 0, 0].tolist() (torch.Size([3, 32, 32]), [255, 0, 0])
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
    """What a sentence calls it."""
    return short(str(source if isinstance(source, (str, os.PathLike)) else getattr(source, "name", "the image")))


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
    name = _name(path)
    _require_file(path, name)
    try:
        with _open(path) as picture, _memory_for(picture, path, name):
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
    """The first frame, upright, as L or RGB; large ones shrunk on the way, as far as `size` pixels allow.

    Pillow's decoders raise nearly anything on bytes that lie about themselves, hence the broad handler.
    """
    from PIL import Image

    _require_file(source, name)
    try:
        with _open(source) as picture, _memory_for(picture, source, name):
            scale = least_scale(size, box(*_upright_size(picture), fit, window))
            picture.draft(None, tuple(math.ceil(side * scale) for side in picture.size))  # only JPEG can
            picture.load()
            turn = _TURNS.get(_orientation(picture))
            lying = _orientation(picture) in _LYING
            width, height = (picture.height, picture.width) if lying else picture.size
            small = _shrunk(picture, name, least_scale(size, box(width, height, fit, window)))
            if turn is not None:
                return small.transpose(Image.Transpose(turn))
            return small.copy() if small is picture else small  # whose memory is freed at once
    except DataError:
        raise
    except Exception as error:
        raise _unreadable(name, error) from error


@contextmanager
def _memory_for(picture: Picture, source: Source, name: str) -> Iterator[None]:
    """Refuse a picture that costs too much, by its header; of large ones decode one at a time, and tidy up after it."""
    _refuse_costly(picture, source, name)
    if picture.width * picture.height <= LARGE:
        yield
        return
    with _one_large_picture:
        try:
            yield
        finally:
            picture.close()
            give_back_memory()


def _refuse_costly(picture: Picture, source: Source, name: str) -> None:
    """By format, width and height, and for a JPEG the number of its scans, each of which goes over all pixels."""
    width, height = picture.size
    progressive = bool(picture.info.get("progressive"))
    most = file_limits().max_image_bytes // _BYTES_A_PIXEL.get("progressive" if progressive else str(picture.format), 8)
    if width * height > most:
        raise DataError(
            f"{name} has {width} x {height} pixels, but at most {most} of a {picture.format} are read; shrink it, or "
            f"set {variable('max_image_bytes')}."
        )
    if progressive and width * height > LARGE // 16 and (scans := _count_scans(source)) > MAX_SCANS:
        raise DataError(f"{name} has {scans} scans, but at most {MAX_SCANS} are read; save it again.")


def _count_scans(source: Source) -> int:
    """The markers that begin a scan of a JPEG; its compressed data have none."""
    if isinstance(source, (str, os.PathLike)):
        with open(source, "rb") as file:
            return _count_scans(file)
    place = source.tell()
    source.seek(0)
    count, last = 0, b""
    while block := source.read(1 << 20):
        count += (last + block).count(b"\xff\xda")
        last = block[-1:]
    source.seek(place)
    return count


def _shrunk(picture: Picture, name: str, scale: float) -> Picture:
    """A picture of any mode as L or RGB, in strips; those of a large one are shrunk as soon as they are converted."""
    from PIL import Image

    width, height = picture.size
    large = width * height > LARGE
    if width * height <= _STRIP or (_is_plain(picture) and not large):
        return _eight_bits(picture, name)
    factor = max(1, int(1 / (2 * scale))) if large else 1  # twice the pixels that the final size needs
    rows = factor * max(1, _STRIP // (width * factor))
    whole: Picture | None = None
    for top in range(0, height, rows):
        strip = _eight_bits(picture.crop((0, top, width, min(top + rows, height))), name)
        strip = strip.reduce(factor) if factor > 1 else strip
        if whole is None:
            whole = Image.new(strip.mode, (strip.width, math.ceil(height / factor)))
        whole.paste(strip, (0, top // factor))
    assert whole is not None  # a picture has at least one row
    return whole


def _orientation(picture: Picture) -> int:
    return int(picture.getexif().get(_ORIENTATION, 1))


def _upright_size(picture: Picture) -> tuple[int, int]:
    """Width and height after the turn that the EXIF orientation asks for."""
    return (picture.height, picture.width) if _orientation(picture) in _LYING else picture.size


def _require_file(source: Source, name: str) -> None:
    if isinstance(source, (str, os.PathLike)) and not os.path.isfile(source):
        reason = "is a folder, but must be an image file" if os.path.isdir(source) else "does not exist"
        raise DataError(f"{name} {reason}.")


def _is_plain(picture: Picture) -> bool:
    return picture.mode in ("L", "RGB") and "transparency" not in picture.info


def _eight_bits(picture: Picture, name: str) -> Picture:
    """A picture of any mode as L or RGB."""
    from PIL import Image

    if _is_plain(picture):
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
        reason = "its format is not a known image format"
    elif isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        reason = "it has far too many pixels"
    elif isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    else:
        reason = str(error).strip().rstrip(".") or type(error).__name__
    return DataError(f"{name} cannot be read as an image: {reason}.")
