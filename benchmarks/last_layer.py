"""Ten draws of a network whose last layer alone is Bayesian, as multiples of one plain pass of the network.

    python -m benchmarks.last_layer [--network package.module:function] [--size 224] [--threads 1] [--clock cpu]

What no draw touches is computed once, so ten draws should cost little more than one pass: at most 1.15. The default
network is a ResNet-18 of torch's own layers; a function of your own is called without arguments and returns a module.
Plain passes and predictions take turns; median with quartiles over the rounds, for one image and for eight.
"""

from __future__ import annotations

import argparse
import copy
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from benchmarks.before_after import CLOCKS, quartiles
from torch import Tensor, nn

import dubito
from dubito.files import write_atomically
from dubito.memory import keep_freed_memory

DRAWS = 10


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm, around which the input is added."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.short: nn.Module = nn.Identity() if inputs == outputs else short

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(inner)) + self.short(x))


def resnet18() -> nn.Module:
    """The network for images of 224 pixels, with 1,000 classes."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks, inputs = [], 64
    for outputs in (64, 128, 256, 512):
        blocks += [Block(inputs, outputs, 1 if inputs == outputs else 2), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def measure(network: nn.Module, images: Tensor, rounds: int, clock: str) -> dict[str, float]:
    """The cost of ten draws in plain passes."""
    now = CLOCKS[clock]
    plain = copy.deepcopy(network).eval()
    bayesian = dubito.to_bayesian(network, last_layer=True, head="softmax")
    predictor = dubito.Predictor(bayesian, DRAWS)
    ratios = []
    for number in range(rounds + 1):
        start = now()
        with torch.no_grad():
            plain(images).softmax(1)
        between = now()
        predictor(images)
        if number:  # the first round warms up
            ratios.append((now() - between) / (between - start))
    return quartiles(ratios)


def made(path: str) -> nn.Module:
    """The network that a function makes."""
    module, _, function = path.partition(":")
    network: Any = getattr(import_module(module), function)()
    return network


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.last_layer", description=__doc__, formatter_class=raw)
    parser.add_argument("--network", default="benchmarks.last_layer:resnet18")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--images", default="1,8")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=list(CLOCKS), default="cpu")
    parser.add_argument("--out", type=Path, help="a JSON file")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    keep_freed_memory()
    rows = []
    print("| images | ten draws / one pass | quartiles |\n| --- | --- | --- |")
    for count in map(int, given.images.split(",")):
        torch.manual_seed(0)
        images = torch.randn(count, 3, given.size, given.size)
        found = measure(made(given.network), images, given.rounds, given.clock)
        rows.append({"images": count, **found})
        print(f"| {count} | {found['median']:.2f} | {found['low']:.2f}, {found['high']:.2f} |", flush=True)
    if given.out:
        settings = {"network": given.network, "size": given.size, "threads": given.threads, "clock": given.clock}
        write_atomically(given.out, json.dumps({**settings, "rounds": given.rounds, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
