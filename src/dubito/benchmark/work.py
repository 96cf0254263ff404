"""Work: one thing that is timed, and measures, which set it in relation to the work of the frequentist twin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn

from dubito.benchmark.systems import MomentPrediction
from dubito.heads import attach_head
from dubito.models import build
from dubito.models.registry import prefers_channels_last

CHANNELS, CLASSES = 3, 10


class Task(str, Enum):
    """What is done with a network."""

    STEP = "step"
    PREDICT = "predict"


@dataclass(frozen=True)
class PlainNetwork:
    """A stack of `depth` 3x3 convolutions of `width` channels at half the images' size, then one linear layer."""

    width: int = 32
    depth: int = 4

    def build(self) -> nn.Module:
        """The frequentist network."""
        layers: list[nn.Module] = [nn.Conv2d(CHANNELS, self.width, 3, stride=2, padding=1), nn.Softplus()]
        for _ in range(self.depth - 1):
            layers += [nn.Conv2d(self.width, self.width, 3, padding=1), nn.Softplus()]
        layers += [nn.AvgPool2d(4), nn.Flatten(), nn.Linear(16 * self.width, CLASSES)]
        return attach_head(nn.Sequential(*layers), "softplus")


@dataclass(frozen=True)
class Work:
    """A training step, or a prediction by `samples` draws, of a network on a batch of random images."""

    network: str | PlainNetwork
    task: Task
    batch: int
    samples: int = 1

    def build(self) -> nn.Module:
        """The frequentist network, the same at every call; of torch's own layers, as one would write it without us."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if isinstance(self.network, PlainNetwork):
                return self.network.build()
            return build(self.network, CLASSES, CHANNELS, "frequentist")

    def data(self) -> tuple[Tensor, Tensor]:
        """Images and labels, the same at every call; in the memory format in which the network is trained."""
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(self.batch, CHANNELS, 32, 32, generator=generator)
        if isinstance(self.network, str) and prefers_channels_last(self.network):
            images = images.contiguous(memory_format=torch.channels_last)
        return images, torch.randint(CLASSES, (self.batch,), generator=generator)


@dataclass(frozen=True)
class Measure:
    """A work, and the twin's work that its cost is a multiple of.

    There are at most `rounds`, and no more than fit into `seconds`, but at least three (or `rounds`, if fewer). `only`
    names the systems that it is for, none for all that can do it.
    """

    name: str
    work: Work
    reference: Work
    rounds: int
    seconds: float = math.inf
    only: tuple[str, ...] = ()


def measures_of(
    network: str, batch: int, rounds: int, seconds: float = math.inf, *, samples: int = 10, single: bool = True
) -> list[Measure]:
    """The measures of a network.

    - ``step``: a training step.
    - ``predict``: a prediction by `samples` draws, against as many passes of the twin.
    - ``single``, unless it would take too long: one image by 100 draws, against one pass of 100 images.
    - ``once``: a prediction by moments, against one pass.
    """
    step, draws = Work(network, Task.STEP, batch), Work(network, Task.PREDICT, batch, samples)
    one, hundred = Work(network, Task.PREDICT, 1, 100), Work(network, Task.PREDICT, 100, 1)
    once = Work(network, Task.PREDICT, batch, 1)
    return [
        Measure("step", step, step, rounds, seconds),
        Measure("predict", draws, draws, rounds, seconds),
        *([Measure("single", one, hundred, rounds, seconds)] if single else []),
        Measure("once", once, once, rounds, seconds, only=(MomentPrediction.name,)),
    ]
