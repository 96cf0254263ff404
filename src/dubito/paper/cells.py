"""The grid: which trainings each experiment of the paper needs, and with which settings under each budget.

A cell is one training. Experiments share cells: the Bayesian LeNet-5 on CIFAR-10 of the first table is that of the
second one. Nothing in this file needs torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from dubito.errors import OptionError, unknown
from dubito.runs.config import TrainingConfig, configure

MODELS = ("lenet5", "alexnet", "vgg16")
DATA = ("cifar10", "cifar100", "mnist")
INFERENCES = ("vi", "frequentist", "dropout")
HEADS = ("softplus", "softmax", "kendall_gal")
TITLES = {
    "lenet5": "LeNet-5",
    "alexnet": "AlexNet",
    "vgg16": "VGG16",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "vi": "Bayesian (VI)",
    "frequentist": "frequentist",
    "dropout": "MC dropout",
    "softplus": "softplus",
    "softmax": "softmax (Kwon et al.)",
    "kendall_gal": "Kendall & Gal",
}
"""How the names of options are written for people."""


class Experiment(str, Enum):
    """The experiments of the paper that are reproduced."""

    TABLE1 = "table1"
    TABLE2 = "table2"
    NOISE = "noise"
    REGULARISATION = "regularisation"
    POSTERIOR = "posterior"
    FILTERS = "filters"


@dataclass(frozen=True)
class Cell:
    """One training of the grid; `epochs` is set if it is longer than the budget allows its network."""

    model: str
    data: str
    inference: str = "vi"
    head: str = "softplus"
    epochs: int | None = None

    @property
    def name(self) -> str:
        """The name of its run folder.

        >>> Cell("lenet5", "mnist").name, Cell("lenet5", "mnist", head="softmax").name
        ('lenet5-mnist-vi', 'lenet5-mnist-vi-softmax')
        """
        head = "" if self.head == "softplus" else f"-{self.head}"
        epochs = "" if self.epochs is None else f"-{self.epochs}-epochs"
        return f"{self.model}-{self.data}-{self.inference}{head}{epochs}"

    @property
    def title(self) -> str:
        """The name to show to people."""
        head = "" if self.head == "softplus" else f", {TITLES[self.head]} head"
        epochs = "" if self.epochs is None else f", {self.epochs} epochs"
        return f"{TITLES[self.inference]} {TITLES[self.model]} on {TITLES[self.data]}{head}{epochs}"

    @property
    def twin(self) -> Cell:
        """The same network with point estimates."""
        return Cell(self.model, self.data, "frequentist", self.head)


@dataclass(frozen=True)
class Budget:
    """How much a reproduction may cost.

    Attributes:
        name: of the budget.
        preset: the settings of `dubito train` that it starts from.
        says: what a reader must know of it.
        samples: draws of a network in every evaluation.
        bootstrap: resamples of the intervals.
        noise_images: test images that get noise, by model.
        batch: images over which the noise experiment normalises.
    """

    name: str
    preset: str
    says: str
    samples: int
    bootstrap: int
    noise_images: dict[str, int]
    batch: int


BUDGETS: dict[str, Budget] = {
    "smoke": Budget(
        "smoke",
        "default",
        "A toy: a few embedded digits stand in for every data set and nothing is trained to an end. It shows that the "
        "commands work; its numbers mean nothing.",
        samples=3,
        bootstrap=50,
        noise_images=dict.fromkeys(MODELS, 20),
        batch=10,
    ),
    "cpu": Budget(
        "cpu",
        "default",
        "What two CPU cores finish: the preset `default`, few epochs, AlexNet on CIFAR-100 at its own temperature, "
        "VGG16 started from its frequentist twin.",
        samples=10,
        bootstrap=1000,
        noise_images={"lenet5": 10_000, "alexnet": 2_000, "vgg16": 1_000},
        batch=1_000,
    ),
    "paper": Budget(
        "paper",
        "paper",
        "The preset `paper`: the settings of the paper's appendix, 100 epochs.",
        samples=10,
        bootstrap=1000,
        noise_images=dict.fromkeys(MODELS, 10_000),
        batch=1_000,
    ),
}

CPU_EPOCHS = {
    ("lenet5", "mnist"): 10,
    ("lenet5", "cifar10"): 30,
    ("lenet5", "cifar100"): 30,
    ("alexnet", "mnist"): 10,
    ("alexnet", "cifar10"): 20,
    ("alexnet", "cifar100"): 20,
    ("vgg16", "mnist"): 2,
    ("vgg16", "cifar10"): 5,
    ("vgg16", "cifar100"): 5,
}
"""Epochs of the budget ``cpu``; those of a frequentist VGG16, from which the Bayesian one starts."""

CPU_WARM_EPOCHS = {"mnist": 1, "cifar10": 2, "cifar100": 2}
"""Epochs of a Bayesian VGG16 of the budget ``cpu``."""

CPU_KL: dict[tuple[str, str], dict[str, Any]] = {("alexnet", "cifar100"): {"temperature": 0.1, "warmup_epochs": 10.0}}
"""Where the budget ``cpu`` weighs KL differently from the preset, which was tuned on CIFAR-10: on CIFAR-100 AlexNet
overfits at the preset's temperature, and 0.1 has a lower validation NLL than 0.05 and 0.2
(see docs/results/reproduction.md)."""

LONG = Cell("lenet5", "cifar10", epochs=100)
"""The one training of the budget ``cpu`` that is as long as the paper's: it shows a weight's posterior over time."""

LONG_SETTINGS = {"learning_rate": 1e-3, "clip": 3.0}
"""Its settings: at the preset's learning rate, which is that of short trainings, the loss explodes in 100 epochs."""

SECONDS_PER_EPOCH = {
    ("lenet5", "vi"): 17,
    ("lenet5", "frequentist"): 9,
    ("lenet5", "dropout"): 10,
    ("alexnet", "vi"): 120,
    ("alexnet", "frequentist"): 55,
    ("alexnet", "dropout"): 60,
    ("vgg16", "vi"): 2100,
    ("vgg16", "frequentist"): 900,
    ("vgg16", "dropout"): 950,
}
"""Rough times on one core, for planning and for the time left: 45,000 images, one draw."""


def warm(cell: Cell, budget: Budget) -> bool:
    """Whether the cell starts from its frequentist twin."""
    return budget.name != "paper" and cell.model == "vgg16" and cell.inference == "vi" and cell.head == "softplus"


def grid(budget: Budget) -> list[Cell]:
    """All cells of a budget, the most informative and cheapest first."""
    first = [
        Cell(model, data, inference)
        for model in MODELS[:2]
        for data in DATA
        for inference in INFERENCES
        if _in_a_table(model, data, inference)
    ]
    deep = [Cell("vgg16", data, inference) for data in DATA for inference in ("frequentist", "vi")]
    heads = [
        Cell(model, data, "vi", head)
        for model in MODELS
        for data in ("cifar10", "mnist")
        for head in HEADS[1:]
        if model != "vgg16"
        or budget.name == "paper"  # else each would need a frequentist twin of its own to start from
    ]
    long = [LONG] if budget.name == "cpu" else []
    return [*first, *(c for c in heads if c.model != "vgg16"), *long, *deep, *(c for c in heads if c.model == "vgg16")]


def _in_a_table(model: str, data: str, inference: str) -> bool:
    return inference != "dropout" or model == "lenet5" or data == "cifar100"


def cells_of(experiment: Experiment, budget: Budget) -> list[Cell]:
    """The cells that an experiment needs, in the order of the grid."""
    cells = grid(budget)
    traced = LONG if LONG in cells else Cell("lenet5", "cifar10")
    needed = {
        Experiment.TABLE1: lambda c: c.head == "softplus" and (c.inference != "dropout" or c.model == "lenet5"),
        Experiment.TABLE2: lambda c: c.inference == "vi" and c.data != "cifar100",
        Experiment.NOISE: lambda c: c in (Cell("lenet5", "mnist"), Cell("vgg16", "mnist")),
        Experiment.REGULARISATION: lambda c: (c.model, c.data) == ("alexnet", "cifar100"),
        Experiment.POSTERIOR: lambda c: c == traced,
        Experiment.FILTERS: lambda c: c == Cell("lenet5", "mnist"),
    }[experiment]
    return [cell for cell in cells if needed(cell) and (cell.epochs is None or experiment is Experiment.POSTERIOR)]


def chosen(experiments: Iterable[Experiment], budget: Budget, only: str = "") -> list[Cell]:
    """The cells of some experiments that `only` lets through, and those that they start from.

    >>> [cell.name for cell in chosen([Experiment.TABLE1], BUDGETS["cpu"], "model=lenet5,data=mnist")]
    ['lenet5-mnist-vi', 'lenet5-mnist-frequentist', 'lenet5-mnist-dropout']
    """
    allowed = parse_only(only)
    wanted = {cell for experiment in experiments for cell in cells_of(experiment, budget)}
    wanted = {cell for cell in wanted if all(getattr(cell, key) in values for key, values in allowed.items())}
    if not wanted:
        raise OptionError(f"--only is {only!r}, which leaves no cell of what is to be reproduced.")
    wanted |= {cell.twin for cell in wanted if warm(cell, budget)}
    return [cell for cell in grid(budget) if cell in wanted]


def parse_only(only: str) -> dict[str, list[str]]:
    """The values that --only allows, by name; a name that is given twice allows both values.

    >>> parse_only("model=lenet5,model=alexnet,data=mnist")
    {'model': ['lenet5', 'alexnet'], 'data': ['mnist']}
    """
    valid: dict[str, Sequence[str]] = {"model": MODELS, "data": DATA, "inference": INFERENCES, "head": HEADS}
    allowed: dict[str, list[str]] = {}
    for part in filter(None, (part.strip() for part in only.split(","))):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise OptionError(f"--only has {part!r}, but takes NAME=VALUE pairs such as model=lenet5,data=mnist.")
        if key not in valid:
            raise OptionError(unknown("The name in --only", key, valid))
        if value not in valid[key]:
            raise OptionError(unknown(f"{key} in --only", value, valid[key]))
        allowed.setdefault(key, []).append(value)
    return allowed


def settings(cell: Cell, budget: Budget, runs: Path) -> TrainingConfig:
    """How a cell is trained; `runs` is the folder of all run folders."""
    given: dict[str, Any] = {"model": cell.model, "data": cell.data, "inference": cell.inference, "head": cell.head}
    if budget.name == "smoke":
        small = cell.model == "lenet5"
        given |= {"data": str(runs / "data" / f"{cell.data}.npz"), "validation_samples": 2}
        given |= {"epochs": 2 if small else 1, "batch_size": 8 if small else 16}
    elif budget.name == "cpu":
        given["epochs"] = cell.epochs or CPU_EPOCHS[cell.model, cell.data]
        given |= CPU_KL.get((cell.model, cell.data), {})
        if warm(cell, budget):
            given["epochs"] = CPU_WARM_EPOCHS[cell.data]
        if cell == LONG:
            given |= LONG_SETTINGS
    if warm(cell, budget):
        given |= {"init": str(runs / cell.twin.name), "prior": "empirical", "warmup_epochs": 0.5}
    return configure(budget.preset, **given)


def estimated_seconds(cell: Cell, budget: Budget) -> float:
    """Roughly how many seconds a cell takes on one core."""
    if budget.name == "smoke":
        return {"lenet5": 0.5, "alexnet": 1.0, "vgg16": 5.0}[cell.model]
    config = settings(cell, budget, Path())
    draws = config.samples if cell.inference == "vi" else 1
    images = 54_000 if cell.data == "mnist" else 45_000
    epochs = draws * config.epochs * images / 45_000
    evaluation = 0.1 if cell.inference == "frequentist" else 0.1 * budget.samples  # in epochs of one draw
    return SECONDS_PER_EPOCH[cell.model, cell.inference] * (epochs + evaluation)
