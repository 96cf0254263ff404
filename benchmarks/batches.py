"""How much of a LeNet-5 training step goes into making its batch: selecting, cropping, flipping, normalising.

    python benchmarks/batches.py [mnist cifar10 ...]

Batches and steps alternate in one process, so that both see the same machine; medians with quartiles.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

import dubito
from dubito.training import ImageData

STEPS = 150


def main(names: list[str]) -> None:
    torch.set_flush_denormal(True)
    print(f"{'data':>15}{'batch (ms)':>22}{'step (ms)':>24}{'share':>9}   {torch.get_num_threads()} threads")
    for name in names:
        data = ImageData(name, batch_size=128, crop=4)
        batches = data.batches(data.train_part, train=True)
        model = dubito.models.build("lenet5", data.train_part.num_classes, data.train_part.channels, prior="learned")
        objective = dubito.ELBO(len(data.train_part))
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        making, stepping = [], []
        iterator = iter(batches)
        for _ in range(STEPS):
            start = time.perf_counter()
            batch = next(iterator, None)
            if batch is None:
                batches.set_epoch(batches.epoch + 1)
                iterator = iter(batches)
                batch = next(iterator)
            made = time.perf_counter()
            optimizer.zero_grad()
            objective(model, *batch).loss.backward()
            optimizer.step()
            making.append(1000 * (made - start))
            stepping.append(1000 * (time.perf_counter() - made))
        share = statistics.median(making) / statistics.median(stepping)
        print(f"{name:>15}{spread(making):>22}{spread(stepping):>24}{share:>9.2%}")


def spread(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.2f} .. {high:.2f})"


if __name__ == "__main__":
    main(sys.argv[1:] or ["digits", "mnist", "cifar10"])
