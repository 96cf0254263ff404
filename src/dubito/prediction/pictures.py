"""Photographs as a predictor takes them: files, their bytes, Pillow's images and NumPy's arrays.

They are prepared as the network's description of its images says, by the one function that reads image files: whatever
is no file goes through an uncompressed file in memory.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from dubito.errors import DataError, ShapeError

if TYPE_CHECKING:
    import numpy.typing as npt

    from dubito.runs.description import DataDescription

Picture = Any
"""A path, the bytes of a file, an image of Pillow, or an array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4) of bytes."""


def as_pictures(inputs: Any) -> Sequence[Picture] | None:
    """The pictures among what a predictor was given; None if it was given tensors or batches of them."""
    if _is_array(inputs) and inputs.dtype.name != "uint8":
        return None  # floats are no pictures
    if _is_array(inputs) and inputs.ndim == 4:
        return list(inputs)
    if _is_picture(inputs):
        return [inputs]
    if isinstance(inputs, (list, tuple)) and inputs and _is_picture(inputs[0]):
        return inputs
    return None


def _is_picture(given: Any) -> bool:
    kinds = (str, os.PathLike, bytes, bytearray, memoryview)
    return isinstance(given, kinds) or _is_array(given) or _is_pillow(given)


def _is_array(given: Any) -> TypeGuard[npt.NDArray[Any]]:
    return type(given).__module__ == "numpy" and type(given).__name__ == "ndarray"


def _is_pillow(given: Any) -> bool:
    return hasattr(given, "getexif") and hasattr(given, "save")


def read_pictures(pictures: Sequence[Picture], data: DataDescription, batch_size: int) -> Iterator[Tensor]:
    """Batches of pictures, normalised as the network takes them: of large ones fewer at once."""
    from dubito.data import images_at_once, normalize

    at_once = images_at_once(data.size, batch_size)
    for start in range(0, len(pictures), at_once):
        numbered = enumerate(pictures[start : start + at_once], start)
        images = torch.stack([read_picture(picture, f"image {number}", data) for number, picture in numbered])
        yield normalize(images, data.mean, data.std)


def read_picture(picture: Picture, name: str, data: DataDescription) -> Tensor:
    """One picture as bytes (C, size, size); errors call one that is no file by `name`."""
    if isinstance(picture, (str, os.PathLike)):
        return data.read(picture)
    if isinstance(picture, (bytes, bytearray, memoryview)):
        file = io.BytesIO(picture)
    elif _is_array(picture) or _is_pillow(picture):
        file = _file_of(picture, name)
    else:
        raise ShapeError(
            f"{_begin(name)} is a {type(picture).__name__}, but must be a path, bytes of a file, an image of Pillow or "
            "an array (H, W, 3) of bytes."
        )
    file.name = name
    return data.read(file)


def _begin(name: str) -> str:
    """A name at the start of a sentence."""
    return "I" + name[1:] if name.startswith("image ") else name


def _file_of(picture: Picture, name: str) -> io.BytesIO:
    """A file in memory that holds an upright image without loss."""
    from PIL import Image, ImageOps

    if _is_array(picture):
        fits = picture.ndim == 2 or (picture.ndim == 3 and picture.shape[2] in (1, 3, 4))
        if picture.dtype != "uint8" or not fits or not picture.size:
            raise ShapeError(
                f"{_begin(name)} is an array of {picture.dtype} and shape {picture.shape}, but must be of uint8 and "
                "(H, W), (H, W, 1), (H, W, 3) or (H, W, 4); give normalised images as a tensor."
            )
        picture = Image.fromarray(picture[..., 0] if picture.ndim == 3 and picture.shape[2] == 1 else picture)
    file = io.BytesIO()
    try:
        upright = ImageOps.exif_transpose(picture)
        (upright if upright.mode not in ("HSV", "LAB", "YCbCr") else upright.convert("RGB")).save(file, format="TIFF")
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{_begin(name)} cannot be read: {' '.join(str(error).split())}.") from None
    file.seek(0)
    return file
