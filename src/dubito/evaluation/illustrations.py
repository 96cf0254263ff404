"""The figures of an evaluation, each with its title, caption and painter. Figures that do not apply are left out."""

# ruff: noqa: RUF001 - captions have Greek letters

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from dubito.data import in_memory, shrunk
from dubito.decisions.words import percent
from dubito.evaluation import figures
from dubito.evaluation.calibration import Conformal, ConformalMethod, temper
from dubito.evaluation.decisions import decided, doubt_of
from dubito.evaluation.evaluation import Evaluation
from dubito.evaluation.metrics import UNCERTAINTIES, uncertainties
from dubito.evaluation.predictions import Evaluated
from dubito.evaluation.style import COLUMN
from dubito.evaluation.thumbnails import THUMBNAIL, choose_points
from dubito.layers import BayesLayer

TEST_POINTS, OOD_POINTS = 1400, 600
GALLERY_SIZE = 12
GALLERIES = {
    "most-aleatoric": "The most aleatoric images",
    "most-epistemic": "The most epistemic images",
    "most-novel": "The images least like the training images",
    "confidently-wrong": "Most confidently wrong",
}


@dataclass(frozen=True)
class Illustration:
    """A figure: its file's name, what it shows, and what draws it."""

    name: str
    title: str
    caption: str
    paint: Callable[[Axes], object]
    size: tuple[float, float] = COLUMN


@dataclass(frozen=True, eq=False)
class Points:
    """The images of the scatter plot: some of the test images and of the other data sets, with the extreme ones."""

    images: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    confidence: Tensor
    predicted: Tensor
    names: list[str]
    truth: list[int | None]
    groups: list[str]
    order: list[str]
    total: int


def illustrations(evaluation: Evaluation, network: nn.Module | None) -> dict[str, list[Illustration]]:
    """The figures by section; `network` for those of its posterior."""
    return {
        "training": list(_training(evaluation)),
        "calibration": list(_calibration(evaluation)),
        "decisions": list(_decisions(evaluation)),
        "mistakes": list(_mistakes(evaluation)),
        "uncertainty": list(_uncertainty(evaluation)),
        "images": list(_galleries(evaluation)),
        "noise": list(_noise(evaluation)),
        "classes": list(_classes(evaluation)),
        "posterior": list(_posterior(evaluation, network)),
    }


def has_images(evaluation: Evaluation) -> bool:
    """Whether there are images to look at; what a network was given may be something else."""
    return len(evaluation.test.images) == len(evaluation.test)


def has_epistemic(evaluation: Evaluation) -> bool:
    """Whether the draws differ at all."""
    return bool((evaluation.test.prediction.epistemic > 0).any())


ERROR_BARS = "; error bars are one epistemic standard deviation"


def has_error_bars(evaluation: Evaluation) -> bool:
    """Whether the epistemic variances are those of probabilities; some heads have variances of logits."""
    return has_epistemic(evaluation) and evaluation.test.unit == "probability"


def probability_std(evaluation: Evaluation, index: Tensor | int) -> Tensor:
    """Epistemic standard deviations of the probabilities of some test images; 0 where these are not known."""
    variance = evaluation.test.prediction.epistemic_per_class[index]
    return variance.sqrt() if has_error_bars(evaluation) else torch.zeros_like(variance)


def useful_uncertainties(evaluation: Evaluation) -> tuple[str, ...]:
    """Uncertainties that are not 0 for every image."""
    useless = () if has_epistemic(evaluation) else ("epistemic", "mutual_information")
    return tuple(name for name in UNCERTAINTIES if name not in useless)


def other_names(evaluation: Evaluation) -> dict[str, str]:
    """What the other data sets are called in figures: a file or folder by its name, not by its path."""
    short = {name: Path(name).stem if Path(name).suffix == ".npz" else Path(name).name for name in evaluation.ood}
    short = {name: f"{shown} (data)" if shown in ("right", "wrong") else shown for name, shown in short.items()}
    return short if len(set(short.values())) == len(short) else {name: name for name in short}


def _training(evaluation: Evaluation) -> Iterator[Illustration]:
    rows = evaluation.members[0].metrics() if evaluation.runs else []
    if not rows:
        return
    captions = {
        "nll": ("Negative log-likelihood", "Training (with augmentation and noise) and validation. Lower is better."),
        "accuracy": ("Accuracy", "Share of images whose most probable class is the true one."),
        "kl": ("KL divergence", "How far the posterior is from its prior: what the network has learned, in nats."),
    }
    for quantity, (title, caption) in captions.items():
        if quantity == "kl" and not any(row.get("kl") for row in rows):
            continue  # point estimates have none
        paint = partial(figures.learning_curves, rows=rows, quantity=quantity)
        yield Illustration(f"learning-{quantity}", title, caption, paint)


def _calibration(evaluation: Evaluation) -> Iterator[Illustration]:
    probs, labels = evaluation.test.prediction.probs, evaluation.test.truth
    scaling, conformal = evaluation.metrics["temperature_scaling"], evaluation.metrics["conformal"]
    calibrated = temper(probs, scaling["temperature"]) if scaling else None
    yield Illustration(
        "reliability",
        "Reliability diagram",
        "Accuracy by confidence in 15 bins, with 95 % intervals. Below the diagonal the network is "
        "too sure, above it too modest.",
        partial(figures.reliability_diagram, probs=probs, labels=labels, calibrated=calibrated),
    )
    if conformal:
        yield Illustration(
            "conformal",
            "Conformal prediction sets",
            "How many classes a set contains, so that it includes the true one for "
            f"{percent(conformal['requested'])} of images.",
            partial(figures.conformal_set_sizes, sizes=_set_sizes(evaluation)),
        )


def _set_sizes(evaluation: Evaluation) -> dict[str, Tensor]:
    """(N,) the sizes of the test images' prediction sets, by method, as the evaluation calibrated them."""
    sizes = {}
    for method in ConformalMethod:
        found = evaluation.metrics["conformal"][method.value]
        threshold = math.inf if found["threshold"] is None else found["threshold"]
        seed = evaluation.metrics["settings"]["seed"]
        coverage = evaluation.metrics["conformal"]["requested"]
        conformal = Conformal(method, coverage, threshold, found["randomized"], seed)
        sizes[method.value] = conformal.sets(evaluation.test.prediction.probs).sum(1)
    return sizes


def _decisions(evaluation: Evaluation) -> Iterator[Illustration]:
    found = decided(evaluation)
    name, doubt = doubt_of(evaluation, found.rule if found else None)
    chosen, limit, where = None, None, ""
    if found is not None and found.measured.error is not None:
        chosen, limit = (1 - found.measured.coverage, found.measured.error), found.rule.error_bound
        where = (
            " The dot is the rule, which also refuses unfamiliar images."
            if found.rule.refuses
            else " The dot is the rule."
        )
    yield Illustration(
        "review-curve",
        "What review buys",
        "Share of errors among the other test images if a person reviews the most doubtful ones (by "
        f"{name.replace('_', ' ')}).{where}",
        partial(figures.review_curve, errors=evaluation.test.wrong, doubt=doubt, chosen=chosen, limit=limit),
    )


def _mistakes(evaluation: Evaluation) -> Iterator[Illustration]:
    test = evaluation.test
    values = {name: v for name, v in uncertainties(test.prediction).items() if name in useful_uncertainties(evaluation)}
    left, _ = figures.risk_window(test.wrong)
    zoomed = f" The axis begins at {left:.0%}.".replace("%", " %") if left else ""
    yield Illustration(
        "risk-coverage",
        "Risk against coverage",
        "Error rate among the images that remain when the most uncertain ones are set aside. The "
        f"faster a curve falls to the left, the better that uncertainty finds mistakes.{zoomed}",
        partial(figures.risk_coverage, errors=test.wrong, uncertainties=values),
    )


def _uncertainty(evaluation: Evaluation) -> Iterator[Illustration]:
    test, others = evaluation.test, other_names(evaluation)
    wrong = test.wrong
    for name in ("aleatoric", "epistemic"):
        if name not in useful_uncertainties(evaluation):
            continue
        values = getattr(test.prediction, name)
        groups = {"right": values[~wrong], "wrong": values[wrong]}
        groups |= {shown: getattr(evaluation.ood[other].prediction, name) for other, shown in others.items()}
        among = "right and wrong predictions" + (" and other data" if evaluation.ood else "")
        yield Illustration(
            f"histogram-{name}",
            f"{name.capitalize()} uncertainty",
            f"Among {among}; each group adds up to 100 %.",
            partial(figures.uncertainty_histogram, groups=groups, name=name),
        )
    if has_epistemic(evaluation):
        shown = points(evaluation)
        yield Illustration(
            "scatter",
            "Aleatoric against epistemic",
            f"{len(shown.groups):,} of {shown.total:,} images, including the extremes.",
            partial(
                figures.uncertainty_scatter,
                aleatoric=shown.aleatoric,
                epistemic=shown.epistemic,
                groups=shown.groups,
                order=shown.order,
            ),
            (3.4, 3.0),
        )


def points(evaluation: Evaluation) -> Points:
    """The images of the scatter plot."""
    test = evaluation.test
    wrong = test.wrong
    chosen = choose_points([*_scores(test), test.prediction.confidence * wrong], TEST_POINTS)
    parts = [(test, chosen)]
    truth: list[int | None] = test.truth[chosen].tolist()
    groups = ["wrong" if is_wrong else "right" for is_wrong in wrong[chosen].tolist()]
    for name, shown in other_names(evaluation).items():
        part = evaluation.ood[name]
        chosen = choose_points(_scores(part), OOD_POINTS // len(evaluation.ood))
        parts.append((part, chosen))
        truth += [None] * len(chosen)
        groups += [shown] * len(chosen)

    def joined(name: str) -> Tensor:
        return torch.cat([getattr(part.prediction, name)[index] for part, index in parts])

    return Points(
        images=torch.cat([shrunk(part.images[index], THUMBNAIL) for part, index in parts])
        if has_images(evaluation)
        else torch.zeros(0, dtype=torch.uint8),
        aleatoric=joined("aleatoric"),
        epistemic=joined("epistemic"),
        confidence=joined("confidence"),
        predicted=joined("label"),
        names=[part.name_of(number) for part, index in parts for number in index.tolist()],
        truth=truth,
        groups=groups,
        order=["right", *other_names(evaluation).values(), "wrong"],
        total=sum(len(part) for part, _ in parts),
    )


def _scores(part: Evaluated) -> list[Tensor]:
    return [part.prediction.aleatoric, part.prediction.epistemic]


def chosen_images(evaluation: Evaluation) -> dict[str, Tensor]:
    """For every gallery that has any, the numbers of its test images, the most extreme first."""
    if not has_images(evaluation):
        return {}
    prediction, wrong = evaluation.test.prediction, evaluation.test.wrong
    chosen = {"most-aleatoric": prediction.aleatoric.argsort(descending=True, stable=True)}
    if has_epistemic(evaluation):
        chosen["most-epistemic"] = prediction.epistemic.argsort(descending=True, stable=True)
    if prediction.novelty is not None:
        chosen["most-novel"] = prediction.novelty.argsort(descending=True, stable=True)
    surest = (prediction.confidence * wrong).argsort(descending=True, stable=True)
    chosen["confidently-wrong"] = surest[: int(wrong.sum())]
    return {name: index[:GALLERY_SIZE] for name, index in chosen.items() if len(index)}


def _galleries(evaluation: Evaluation) -> Iterator[Illustration]:
    test = evaluation.test
    for name, index in chosen_images(evaluation).items():
        rows = -(-len(index) // figures.GALLERY_COLUMNS)
        yield Illustration(
            name,
            GALLERIES[name],
            f"Mean probabilities of the likeliest classes{ERROR_BARS if has_error_bars(evaluation) else ''}.",
            partial(
                figures.gallery,
                images=in_memory(test.images[index]),
                probs=test.prediction.probs[index],
                spread=probability_std(evaluation, index),
                class_names=evaluation.class_names,
                labels=test.truth[index].tolist(),
                names=[test.name_of(number) for number in index.tolist()],
            ),
            (7.0, 1.12 * rows + 0.15),
        )


def _noise(evaluation: Evaluation) -> Iterator[Illustration]:
    levels = evaluation.noise
    if len(levels) < 2:
        return
    gammas = [level.gamma for level in levels]
    for name in ("aleatoric", "epistemic", "accuracy"):
        if name == "epistemic" and not has_epistemic(evaluation):
            continue
        given: dict[str, Any] = {}
        if name != "accuracy":
            given["intervals"] = [getattr(level, f"{name}_interval") for level in levels]
        values = [getattr(level, name) for level in levels]
        paint = partial(figures.noise_response, gammas=gammas, values=values, name=name, **given)
        title = "Accuracy" if name == "accuracy" else f"{name.capitalize()} uncertainty"
        form = "{:.1%}" if name == "accuracy" else "{:.3g}"
        first, last = (form.format(value).replace("%", " %") for value in (values[0], values[-1]))
        shaded = "; shaded are 95 % intervals" if given else ""
        caption = f"{first} at γ = {gammas[0]:g}, {last} at γ = {gammas[-1]:g}{shaded}."
        yield Illustration(f"noise-{name}", title, caption, paint)


def _classes(evaluation: Evaluation) -> Iterator[Illustration]:
    count = len(evaluation.class_names)
    matrix = evaluation.metrics["confusion"]
    side = 3.6 if count <= 10 else 4.8
    yield Illustration(
        "confusion",
        "Confusion matrix",
        "One row for each true class, one column for each predicted class. Colours show shares of the row.",
        partial(figures.confusion, matrix=matrix, class_names=evaluation.class_names),
        (side, side),
    )


def posterior_layers(network: nn.Module | None) -> dict[str, BayesLayer]:
    """The Bayesian layers of a network, by name."""
    modules = network.named_modules() if network is not None else ()
    return {name: module for name, module in modules if isinstance(module, BayesLayer)}


def _posterior(evaluation: Evaluation, network: nn.Module | None) -> Iterator[Illustration]:
    layers = posterior_layers(network)
    if not layers:
        return
    with torch.no_grad():
        means = {name: layer.weight_mean.detach() for name, layer in layers.items()}
        stds = {name: layer.weight_std.detach() for name, layer in layers.items()}
        ratios = {name: means[name].abs() / stds[name] for name in layers}
    height = max(COLUMN[1], 0.6 + 0.3 * len(layers))
    described: Mapping[str, tuple[dict[str, Tensor], str, str]] = {
        "mean": (means, "Means", "Mean of each weight."),
        "std": (stds, "Standard deviations", "Standard deviation of each weight."),
        "snr": (ratios, "Signal-to-noise ratio", "Left of the line a weight is mostly noise and could be pruned."),
    }
    for quantity, (values, title, caption) in described.items():
        paint = partial(figures.posterior_by_layer, layers=values, quantity=quantity)
        yield Illustration(f"posterior-{quantity}", title, caption, paint, (COLUMN[0], height))
    yield from _traces(evaluation)


def _traces(evaluation: Evaluation) -> Iterator[Illustration]:
    traces: dict[str, list[dict[str, Any]]] = {}
    for row in evaluation.members[0].posterior_trace() if evaluation.runs else []:
        traces.setdefault(row["layer"], []).append(row)
    if not traces:
        return
    for layer in dict.fromkeys((next(iter(traces)), next(reversed(traces)))):
        number = traces[layer][0]["index"]
        yield Illustration(
            f"weight-{layer}",
            f"One weight of {layer}",
            f"Distribution of weight {number:,} at a few epochs.",
            partial(figures.weight_over_epochs, rows=traces[layer]),
        )
    yield Illustration(
        "weight-std",
        "Standard deviation of one weight per layer",
        "Over the epochs.",
        partial(figures.std_over_epochs, traces=traces),
    )
