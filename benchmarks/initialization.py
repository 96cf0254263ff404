"""How fast a softplus network starts to learn, by the spread that initialisation gives its hidden units.

    python benchmarks/initialization.py [--model alexnet] [--data cifar10] [--steps 300]

Prints the mean training NLL over the last quarter of the steps for each spread.
"""

from __future__ import annotations

import argparse

import torch

import dubito
from dubito.models import initialization
from dubito.training import ImageData

SPREADS = (1.0, 2.0, 3.0, 4.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="alexnet")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    images = ImageData(arguments.data, 64)
    for spread in SPREADS:
        initialization.HIDDEN_SPREAD = spread
        print(f"spread {spread:g}: NLL {nll(images, arguments):.3f}", flush=True)


def nll(images: ImageData, arguments: argparse.Namespace) -> float:
    torch.manual_seed(0)
    part = images.train_part
    model = dubito.models.build(arguments.model, part.num_classes, part.channels, "frequentist")
    batches = images.batches(part, train=True)
    dubito.models.initialize(model, next(iter(batches))[0])
    objective = dubito.ELBO(len(part))
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    losses = []
    for step, (inputs, labels) in zip(range(arguments.steps), batches, strict=False):
        optimizer.param_groups[0]["lr"] = arguments.learning_rate * min(1, (step + 1) / 100)
        optimizer.zero_grad()
        terms = objective(model, inputs, labels)
        terms.loss.backward()
        optimizer.step()
        losses.append(terms.nll.item())
    last = losses[-arguments.steps // 4 :]
    return sum(last) / len(last)


if __name__ == "__main__":
    main()
