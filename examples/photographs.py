"""A folder of small photographs to try things with: washers, nuts and screws on a bench, and other things.

    python -m examples.photographs photos/

draws `photos/train` and `photos/test` with a sub-folder for each class, `photos/new` with a few parts that nobody has
labelled, and `photos/other` with coins, springs and keys, which are no such parts. Light, colours, size, turn and
sharpness differ from picture to picture, and some parts lie half outside of it.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SIZE, SCALE = 64, 4
"""Pixels of a picture, and how much larger it is drawn before it is made small, which smooths its edges."""
Point = tuple[float, float]
Draw = Callable[[ImageDraw.ImageDraw, "Part"], None]


class Part:
    """Where a part lies, how large it is and how it is turned, and the colours of metal and table."""

    def __init__(self, chance: random.Random) -> None:
        whole = SIZE * SCALE
        spread = 0.2 if chance.random() < 0.9 else 0.5
        self.centre = tuple(whole * (0.5 + chance.uniform(-spread, spread)) for _ in range(2))
        self.radius = whole * chance.uniform(0.2, 0.34)
        self.turn = chance.uniform(0, 2 * math.pi)
        grey = chance.randint(120, 210)
        self.metal = (grey, grey - chance.randint(0, 25), grey - chance.randint(0, 50))
        self.table = tuple(chance.randint(20, 110) for _ in range(3))
        self.chance = chance

    def at(self, angle: float, distance: float) -> Point:
        """The point in this direction, at a distance that is a multiple of the radius."""
        x, y = self.centre
        return x + self.radius * distance * math.cos(angle + self.turn), y + self.radius * distance * math.sin(
            angle + self.turn
        )

    def polygon(self, corners: int, distance: float = 1.0) -> list[Point]:
        return [self.at(2 * math.pi * corner / corners, distance) for corner in range(corners)]

    def disc(self, distance: float) -> tuple[Point, Point]:
        (x, y), r = self.centre, self.radius * distance
        return (x - r, y - r), (x + r, y + r)

    def along(self, start: float, end: float, width: float) -> list[Point]:
        """A bar along the direction of the part."""
        half = width / 2
        return [
            self.at(math.atan2(y, x), math.hypot(x, y))
            for x, y in ((start, -half), (end, -half), (end, half), (start, half))
        ]


def washer(draw: ImageDraw.ImageDraw, part: Part) -> None:
    draw.ellipse(part.disc(1), fill=part.metal)
    draw.ellipse(part.disc(part.chance.uniform(0.55, 0.75)), fill=part.table)


def nut(draw: ImageDraw.ImageDraw, part: Part) -> None:
    draw.polygon(part.polygon(6), fill=part.metal)
    draw.ellipse(part.disc(part.chance.uniform(0.3, 0.5)), fill=part.table)


def screw(draw: ImageDraw.ImageDraw, part: Part) -> None:
    dark = tuple(value // 2 for value in part.metal)
    draw.polygon(part.along(-1.3, -0.9, 0.9), fill=part.metal)
    draw.polygon(part.along(-0.9, 1.4, 0.35), fill=part.metal)
    for step in range(8):
        place = -0.6 + 0.25 * step
        draw.polygon(part.along(place, place + 0.08, 0.4), fill=dark)


def coin(draw: ImageDraw.ImageDraw, part: Part) -> None:
    draw.ellipse(part.disc(1), fill=(190, 140, 60))
    draw.ellipse(part.disc(0.85), outline=(120, 80, 30), width=SCALE)
    draw.polygon(part.polygon(5, 0.5), fill=(120, 80, 30))


def spring(draw: ImageDraw.ImageDraw, part: Part) -> None:
    waves = [(-1.4 + 2.8 * step / 80, 0.5 * math.sin(step * 0.7)) for step in range(81)]
    draw.line([part.at(math.atan2(y, x), math.hypot(x, y)) for x, y in waves], fill=part.metal, width=2 * SCALE)


def key(draw: ImageDraw.ImageDraw, part: Part) -> None:
    draw.polygon(part.along(0.4, 2.2, 0.25), fill=part.metal)
    for place in (1.5, 1.9):
        draw.polygon(part.along(place, place + 0.2, 0.8), fill=part.metal)
    draw.ellipse(part.disc(0.7), outline=part.metal, width=5 * SCALE)


PARTS: dict[str, Draw] = {"nut": nut, "screw": screw, "washer": washer}
OTHERS: dict[str, Draw] = {"coin": coin, "key": key, "spring": spring}


def photograph(kind: Draw, chance: random.Random) -> Image.Image:
    """One picture: the part on its table, unevenly lit, a little blurred and noisy."""
    part = Part(chance)
    whole = Image.new("RGB", (SIZE * SCALE, SIZE * SCALE), part.table)
    kind(ImageDraw.Draw(whole), part)
    small = whole.resize((SIZE, SIZE), Image.Resampling.LANCZOS)
    small = small.filter(ImageFilter.GaussianBlur(chance.uniform(0, 1.0)))
    rows, columns = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
    angle = chance.uniform(0, 2 * math.pi)
    light = 1 + chance.uniform(0, 0.4) * (rows * math.sin(angle) + columns * math.cos(angle))
    noise = np.random.default_rng(chance.getrandbits(32)).normal(0, chance.uniform(2, 9), (SIZE, SIZE, 3))
    pixels = np.asarray(small, dtype=float) * light[:, :, None] + noise
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write(folder: Path, kinds: dict[str, Draw], each: int, seed: int, labelled: bool = True) -> None:
    chance = random.Random(seed)
    for name, kind in kinds.items():
        place = folder / name if labelled else folder
        place.mkdir(parents=True, exist_ok=True)
        for number in range(each):
            file = f"{number:03}.jpg" if labelled else f"{chance.getrandbits(24):06x}.jpg"
            photograph(kind, chance).save(place / file, quality=92)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Draw small photographs of washers, nuts and screws.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=300, help="photographs of each class to train on (default: 300)")
    parser.add_argument("--test", type=int, default=80, help="photographs of each class to test on (default: 80)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    write(options.folder / "train", PARTS, options.train, options.seed)
    write(options.folder / "test", PARTS, options.test, options.seed + 1)
    write(options.folder / "new", PARTS, 4, options.seed + 2, labelled=False)
    write(options.folder / "other", OTHERS, 10, options.seed + 3, labelled=False)
    count = sum(1 for _ in options.folder.rglob("*.jpg"))
    print(f"{count:,} photographs of {SIZE} x {SIZE} pixels are in {options.folder}.")


if __name__ == "__main__":
    main()
