"""What reading photographs from disk adds to a training step, and how much memory a large folder of them takes.

    python -m benchmarks.loading                        # steps of resnet18 at 224 pixels, with loading and without
    python -m benchmarks.loading --images 100000        # the same on a folder of 100,000 photographs: peak memory
    python -m benchmarks.loading --data FOLDER          # photographs of one's own

Without --data a folder of synthetic photographs (500 x 375 pixels, JPEG) is made; where more are asked for than are
drawn, they are hard links. Blocks of steps with loading and of steps on one batch in memory take turns in one process.
The ratio is given twice: of wall-clock time, and of processor time of all threads, which a busy machine changes less:
it is what loading costs where every core is at work. With --out both go into a file, with every block.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import dubito
from dubito.benchmark.memory import peak
from dubito.files import write_atomically
from dubito.training import ImageData

DRAWN = 64
"""Synthetic photographs that differ."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder of class folders, instead of synthetic photographs")
    parser.add_argument("--images", type=int, default=640, help="synthetic photographs")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="of a block")
    parser.add_argument("--blocks", type=int, default=5, help="of each kind")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = given.data or photographs(Path(made), given.images)
        began = time.perf_counter()
        data = ImageData(str(folder), given.batch_size, size=given.size, workers=given.workers)
        print(
            f"{len(data.train_part) + len(data.validation_part):,} images found in {time.perf_counter() - began:.0f} s"
        )
        compare(data, given)
        print(f"peak memory of the process: {peak():,.0f} MB")


def compare(data: ImageData, given: argparse.Namespace) -> None:
    """Print how much longer a step with loading takes than one on a batch in memory."""
    part = data.train_part
    model = dubito.models.build(given.model, part.num_classes, part.channels, image_size=given.size)
    objective = dubito.ELBO(len(part))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)

    def step(batch: tuple[Tensor, Tensor]) -> None:
        optimizer.zero_grad()
        objective(model, *batch).loss.backward()
        optimizer.step()

    batches = data.batches(part, train=True)
    fixed = next(iter(batches))

    def in_memory() -> None:
        for _ in range(given.steps):
            step(fixed)

    def with_loading() -> None:
        for batch in islice(iter(batches), given.steps):
            step(batch)

    in_memory()  # the first steps are slow
    kinds = {"in memory": in_memory, "with loading": with_loading}
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for _ in range(given.blocks):
        for kind, block in kinds.items():
            found[kind].append(timed(block, given.steps))
    print(f"{given.model}, {given.size} pixels, batches of {given.batch_size}, {given.workers} workers, ", end="")
    print(f"{torch.get_num_threads()} threads")
    for kind, times in found.items():
        wall, processor = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"  step {kind:<13} {1000 * wall:8.0f} ms, {1000 * processor:8.0f} ms of processor time")
    adds = {what: ratios(found, number) for number, what in enumerate(("wall-clock", "processor"))}
    for what, each in adds.items():
        spread = f"{min(each):+.1%} to {max(each):+.1%}"
        print(f"  loading adds {statistics.median(each):+.1%} of {what} time (pairs of blocks: {spread})")
    if given.out:
        settings = {name: getattr(given, name) for name in ("model", "size", "batch_size", "workers", "steps")}
        result = {**settings, "threads": torch.get_num_threads(), "seconds": found, "loading_adds": adds}
        write_atomically(given.out, json.dumps(result, indent=1) + "\n")


def ratios(found: dict[str, list[tuple[float, float]]], number: int) -> list[float]:
    """What loading adds in each pair of neighbouring blocks, as a share."""
    pairs = zip(found["with loading"], found["in memory"], strict=True)
    return [loading[number] / memory[number] - 1 for loading, memory in pairs]


def timed(block: Callable[[], None], steps: int) -> tuple[float, float]:
    """Seconds and processor seconds of a step of the block."""
    wall, processor = time.perf_counter(), time.process_time()
    block()
    return (time.perf_counter() - wall) / steps, (time.process_time() - processor) / steps


def photographs(folder: Path, count: int) -> Path:
    """A folder of two classes with `count` files: smooth colours with noise, compressed as a camera does."""
    random = np.random.default_rng(0)
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
    drawn = []
    for number in range(min(DRAWN, count)):
        coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), dtype=np.float64)
        pixels = (smooth + random.normal(0, 8, smooth.shape)).clip(0, 255).astype(np.uint8)
        drawn.append(folder / ("one", "two")[number % 2] / f"{number:06}.jpg")
        Image.fromarray(pixels).save(drawn[-1], quality=90)
    for number in range(len(drawn), count):
        os.link(drawn[number % len(drawn)], folder / ("one", "two")[number % 2] / f"{number:06}.jpg")
    return folder


if __name__ == "__main__":
    main()
