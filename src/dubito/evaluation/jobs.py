"""Predicting sets of images by runs: the work of an evaluation, in pieces that any engine's workers can share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

from dubito.data import Dataset, Images, images_at_once
from dubito.engines import Engine
from dubito.errors import OptionError
from dubito.evaluation.noise import noisy_batches
from dubito.evaluation.predictions import Drawn, Evaluated, Piece, draw_piece, joined, put_together
from dubito.models.trust import trusting, trusts
from dubito.prediction import Predictor
from dubito.prediction.weights import seeds_of
from dubito.progress import progress_bar
from dubito.runs.attached import require_data
from dubito.runs.run import Run

PIECE = 1024
"""Images of a piece of the work: enough to be worth sending, few enough to share out."""


@dataclass(frozen=True)
class Settings:
    """How runs predict: plain values, which can be sent to other processes."""

    samples: int
    seed: int
    checkpoint: str
    batch_size: int
    device: str | torch.device


@dataclass(frozen=True, eq=False)
class Job:
    """Images to predict, with noise on their pixels."""

    part: Dataset
    name: str
    gamma: float = 0.0
    labelled: bool = True


@dataclass(frozen=True, eq=False)
class _Images:
    """Some of the images of a job, for one member: what a worker is given."""

    member: int
    key: str
    first: int
    images: Images
    gamma: float


class _Drawing:
    """What a worker does: draw for images by the member that they are for; it holds one predictor at a time."""

    def __init__(self, runs: Sequence[Path], settings: Settings, trust: bool) -> None:
        self.runs, self.settings, self.trust = runs, settings, trust
        self.held: tuple[int, Predictor] | None = None
        # Softplus outputs underflow to denormals, which cost a CPU several times an ordinary number.
        torch.set_flush_denormal(True)

    def predictor(self, member: int) -> Predictor:
        """The predictor of a member, which takes the place of the last one."""
        if self.held is None or self.held[0] != member:
            self.held = None  # before another one takes memory
            settings, count = self.settings, len(self.runs)
            with trusting(self.trust):
                run = Run.open(self.runs[member])
                network = run.load(settings.checkpoint).to(settings.device)
            # As a predictor of the whole ensemble shares out its draws and its seed.
            seed = settings.seed if count == 1 else seeds_of(settings.seed, count)[member]
            samples = math.ceil(settings.samples / count)
            predictor = Predictor(network, samples, seed=seed, batch_size=settings.batch_size)
            predictor.use_novelty(run, settings.checkpoint)
            if count > 1 and predictor.head.unit != "probability":
                raise OptionError(
                    f"{run.path} has the {predictor.head.name} head, whose uncertainties are those of logits: it "
                    "cannot be a member of an ensemble."
                )
            self.held = member, predictor
        return self.held[1]

    def __call__(self, images: _Images) -> tuple[Piece, float]:
        """The draws for the images, and the seconds that they took."""
        predictor = self.predictor(images.member)
        data = require_data(predictor.data, "An evaluation")
        size = images_at_once(data.size, self.settings.batch_size)
        began = perf_counter()
        batches = noisy_batches(images.images, data, images.gamma, size, self.settings.seed, first=images.first)
        return draw_piece(predictor, batches), perf_counter() - began


def predict_jobs(
    runs: Sequence[Run], jobs: Mapping[str, Job], settings: Settings, engine: Engine, *, progress: bool
) -> tuple[dict[str, Evaluated], float]:
    """What the runs together predict for the images of every job, and the seconds that the predictions took."""
    pieces: dict[tuple[str, int], dict[int, Piece]] = {}
    seconds = 0.0
    total = len(runs) * sum(len(job.part) for job in jobs.values())
    make = partial(_Drawing, [run.path.resolve() for run in runs], settings, trusts())
    with progress_bar("Evaluating", total, shown=progress) as advance:
        for images, (piece, took) in engine.map(make, _pieces(len(runs), jobs)):
            pieces.setdefault((images.key, images.member), {})[images.first] = piece
            seconds += took
            advance(len(images.images))
    found = {}
    for key, job in jobs.items():
        labels = job.part.labels if job.labelled else None
        if len(job.part):
            drawn = _drawn(pieces, key, len(runs))
            found[key] = joined(job.name, job.part.images, labels, drawn, job.part.files)
        else:  # a part without images: the test images, none of them
            drawn = _drawn(pieces, "test", len(runs))
            found[key] = joined(job.name, jobs["test"].part.images, jobs["test"].part.labels, drawn)[:0]
    return found, seconds


def _pieces(members: int, jobs: Mapping[str, Job]) -> Iterator[_Images]:
    """The images of all jobs for every member, in pieces, member after member."""
    for member in range(members):
        for key, job in jobs.items():
            for first in range(0, len(job.part), PIECE):
                yield _Images(member, key, first, job.part.images[first : first + PIECE], job.gamma)


def _drawn(pieces: Mapping[tuple[str, int], Mapping[int, Piece]], key: str, members: int) -> list[Drawn]:
    """The draws of all members for a job's images."""
    ordered = ([piece for _, piece in sorted(pieces[key, member].items())] for member in range(members))
    return [drawn for own in ordered for drawn in put_together(own)]
