"""Images that are certainly unlike the training images, made from held-out ones: the trial of a score of novelty.

They keep some of what makes an image look familiar (colours, textures, parts, spectrum) and destroy the rest, so that
no single trick finds them all. None is rotated or mirrored: for many data sets that would be a familiar image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

Maker = Callable[[Tensor, torch.Generator], Tensor]


def outliers(images: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Outliers of each kind, as many as there are images (N, C, H, W); of inputs of another shape, those that fit.

    >>> list(outliers(torch.rand(4, 1, 8, 8)))[:3]
    ['halves', 'quarters', 'sixteenths']
    """
    return dict(each_kind(images, seed))


def each_kind(images: Tensor, seed: int = 0) -> Iterator[tuple[str, Tensor]]:
    """The same, one kind after the other, so that no more than one is in memory."""
    kinds = OUTLIERS if images.dim() == 4 else {name: OUTLIERS[name] for name in ("mixture", "pixels", "noise")}
    for number, (name, make) in enumerate(kinds.items()):
        yield name, make(images, torch.Generator().manual_seed(seed + number))


def _partners(images: Tensor, generator: torch.Generator) -> Tensor:
    """Another image for each image."""
    shift = int(torch.randint(1, max(len(images), 2), (), generator=generator))
    return images.roll(shift, 0)


def _halves(images: Tensor, generator: torch.Generator) -> Tensor:
    """The left half of one image beside the right half of another."""
    left = torch.arange(images.shape[3]) < images.shape[3] // 2
    return torch.where(left.to(images.device), images, _partners(images, generator))


def _pieces(grid: int) -> Maker:
    """The squares of a grid in random order."""

    def shuffled(images: Tensor, generator: torch.Generator) -> Tensor:
        height, width = (max(size // grid, 1) for size in images.shape[2:])
        rows, columns = images.shape[2] // height, images.shape[3] // width
        inside = images[:, :, : rows * height, : columns * width]
        squares = F.unfold(inside, (height, width), stride=(height, width))
        order = torch.rand(len(images), 1, rows * columns, generator=generator).argsort(2).to(images.device)
        squares = squares.gather(2, order.expand_as(squares))
        made = images.clone()
        made[:, :, : rows * height, : columns * width] = F.fold(
            squares, (rows * height, columns * width), (height, width), stride=(height, width)
        )
        return made

    return shuffled


def _pixels(images: Tensor, generator: torch.Generator) -> Tensor:
    """Every pixel somewhere else."""
    flat = images.flatten(2) if images.dim() > 2 else images.unsqueeze(1)
    order = torch.rand(len(flat), 1, flat.shape[2], generator=generator).argsort(2).to(images.device)
    return flat.gather(2, order.expand_as(flat)).view_as(images)


def _blur(images: Tensor, generator: torch.Generator) -> Tensor:
    """Four by four blobs."""
    small = F.adaptive_avg_pool2d(images, 4)
    return F.interpolate(small, size=images.shape[2:], mode="bilinear", align_corners=False)


def _inverted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Dark for bright, within each channel."""
    low, high = _range(images)
    return low + high - images


def _mixture(images: Tensor, generator: torch.Generator) -> Tensor:
    """Two images on top of each other."""
    return (images + _partners(images, generator)) / 2


def _noisy(images: Tensor, generator: torch.Generator) -> Tensor:
    """Noise with a standard deviation of a quarter of the range on every pixel."""
    low, high = _range(images)
    return images + 0.25 * (high - low) * torch.randn(images.shape, generator=generator).to(images)


def _noise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform noise alone."""
    low, high = _range(images)
    return low + (high - low) * torch.rand(images.shape, generator=generator).to(images)


def _phases(images: Tensor, generator: torch.Generator) -> Tensor:
    """The image's own spectrum with random phases: its textures without its shapes."""
    spectrum = torch.fft.rfft2(images.float())
    angles = (2 * torch.pi * torch.rand(spectrum.shape, generator=generator)).to(images.device)
    made = torch.fft.irfft2(torch.polar(spectrum.abs(), angles), s=images.shape[2:])
    low, high = _range(images)
    return made.to(images.dtype).clamp(low, high)


def _range(images: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each channel."""
    axes = [axis for axis in range(images.dim()) if axis != 1] if images.dim() > 2 else [0]
    return images.amin(axes, keepdim=True), images.amax(axes, keepdim=True)


OUTLIERS: dict[str, Maker] = {
    "halves": _halves,
    "quarters": _pieces(2),
    "sixteenths": _pieces(4),
    "pixels": _pixels,
    "blur": _blur,
    "inverted": _inverted,
    "mixture": _mixture,
    "noisy": _noisy,
    "noise": _noise,
    "phases": _phases,
}
"""Every kind of outlier: a function of images and a source of random numbers."""
