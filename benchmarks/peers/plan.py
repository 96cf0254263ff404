"""What the benchmark measures, stage by stage, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers.systems import SYSTEMS

from dubito.benchmark import Frequentist, Measure, PlainNetwork, System, Work, measures_of
from dubito.benchmark.systems import LocalTraining, MomentPrediction, WeightPrediction, WeightTraining
from dubito.benchmark.work import Task

AXES: dict[str, tuple[int, ...]] = {
    "draws": (1, 3, 10, 30, 100),
    "batch": (1, 4, 16, 64, 256),
    "width": (8, 16, 32, 64, 128),
    "depth": (1, 2, 4, 8, 16),
}
GROWTH_BATCH = 64
TRAINING: tuple[type[System], ...] = (LocalTraining, WeightTraining)
PREDICTING: tuple[type[System], ...] = (WeightPrediction, MomentPrediction)
PROFILE = 4.0
"""Seconds that a profile takes, about."""


@dataclass(frozen=True)
class Stage:
    """Systems that are compared with each other, in processes that live as long as the stage."""

    name: str
    systems: tuple[type[System], ...]
    measures: tuple[Measure, ...]
    start: float
    memory: bool = False
    profiles: tuple[tuple[type[System], Work], ...] = ()

    @property
    def seconds(self) -> float:
        """How long it takes, about: `start` until all processes have imported torch and done their first work."""
        return self.start + sum(measure.seconds for measure in self.measures) + PROFILE * len(self.profiles)


def growth_work(axis: str, value: int) -> Work:
    """A training step of a plain network, or with `draws` a prediction by so many."""
    if axis == "draws":
        return Work(PlainNetwork(), Task.PREDICT, GROWTH_BATCH, value)
    if axis == "batch":
        return Work(PlainNetwork(), Task.STEP, value)
    return Work(PlainNetwork(**{axis: value}), Task.STEP, GROWTH_BATCH)


def growth(axes: dict[str, tuple[int, ...]], rounds: int, seconds: float) -> Stage:
    measures = []
    for axis, values in axes.items():
        for value in values:
            work = growth_work(axis, value)
            only = tuple(kind.name for kind in (PREDICTING if axis == "draws" else TRAINING))
            measures.append(Measure(f"{axis}={value}", work, work, rounds, seconds, only))
    return Stage("growth", (Frequentist, *TRAINING, *PREDICTING), tuple(measures), start=15)


def network_stage(
    network: str,
    batch: int,
    rounds: int,
    seconds: float,
    start: float,
    *,
    samples: int = 10,
    single: bool = True,
    profiled: bool = False,
) -> Stage:
    measures = measures_of(network, batch, rounds, seconds, samples=samples, single=single)
    works = {measure.name: measure.work for measure in measures}
    profiles: list[tuple[type[System], Work]] = []
    if profiled:
        profiles += [(kind, works["step"]) for kind in (Frequentist, *TRAINING)]
        profiles += [(kind, works["predict"]) for kind in (Frequentist, WeightPrediction)]
        profiles += [(WeightPrediction, works["single"])] if single else []
        profiles += [(MomentPrediction, works["once"])]
    return Stage(network, SYSTEMS, tuple(measures), start, memory=True, profiles=tuple(profiles))


def training_stage(network: str, batch: int, rounds: int, seconds: float, start: float) -> Stage:
    """A training step and its memory alone, of every system that trains."""
    step = measures_of(network, batch, rounds, seconds)[:1]
    return Stage(network, tuple(kind for kind in SYSTEMS if kind.trains), tuple(step), start, memory=True)


def full_plan() -> list[Stage]:
    """Everything; some 20 minutes on two cores. VGG16's one image by 100 draws alone would take as long."""
    return [
        network_stage("lenet5", 128, 25, 25, start=22),
        network_stage("alexnet", 128, 15, 45, start=38, profiled=True),
        network_stage("vgg16", 128, 5, 120, start=220, single=False),
        training_stage("resnet20", 64, 9, 25, start=15),
        training_stage("resnet18", 16, 9, 40, start=30),
        growth(AXES, 9, 6),
    ]


def quick_plan() -> list[Stage]:
    """A little of everything, to see that it works; its figures mean nothing."""
    axes = {axis: values[:2] for axis, values in AXES.items()}
    return [network_stage("lenet5", 8, 2, 5, start=20, samples=2, profiled=True), growth(axes, 2, 1)]
