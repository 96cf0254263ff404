"""The figures of each experiment, drawn from the numbers in its result file."""

# ruff: noqa: RUF001 - axes are labelled with Greek letters

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from dubito.evaluation.figures import std_over_epochs, weight_over_epochs
from dubito.evaluation.style import COLORS, STYLE, to_png
from dubito.paper.cells import TITLES
from dubito.runs.config import with_defaults

Content = dict[str, Any]
INFERENCE_COLORS = {"vi": COLORS["aleatoric"], "frequentist": COLORS["wrong"], "dropout": COLORS["right"]}
MARKERS = {"lenet5": "o", "alexnet": "s", "vgg16": "^"}
DATA_COLORS = {"mnist": COLORS["epistemic"], "cifar10": COLORS["aleatoric"]}
HEAD_COLORS = {"softplus": COLORS["aleatoric"], "softmax": COLORS["wrong"], "kendall_gal": COLORS["ood"]}
SHORT = {"vi": "Bayesian", "frequentist": "frequentist", "dropout": "dropout"}
INFERENCE_TITLES = {**TITLES, "dropout": "frequentist, 3 dropout layers"}


def figures(content: Content) -> dict[str, bytes]:
    """PNG files by name; none for what was not run."""
    name = content["experiment"]
    with rc_context(STYLE):
        drawn: dict[str, Figure] = _FIGURES[name](content)
        return {file: to_png(figure) for file, figure in drawn.items()}


def _empty(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _table1(content: Content) -> dict[str, Figure]:
    """The measured accuracies beside the published ones, and the course of every network that has been run."""
    if not any(row["measured"] is not None for row in content["rows"]):
        return {}
    return {"table1.png": _accuracies(content), "table1-curves.png": _courses(content)}


def _courses(content: Content) -> Figure:
    """The validation NLL of every network over the epochs; a dot is the lowest, whose weights are tested."""
    models, data = (list(dict.fromkeys(row[key] for row in content["rows"])) for key in ("model", "data"))
    figure = _empty(6.8, 5.4)
    grid = figure.subplots(len(models), len(data), squeeze=False)
    for row in (row for row in content["rows"] if row["measured"] is not None):
        axes = grid[models.index(row["model"])][data.index(row["data"])]
        curve, color = _curve(content, row["cell"]), INFERENCE_COLORS[row["inference"]]
        axes.plot(*_points(curve), color=color, label=TITLES[row["inference"]])
        axes.plot(*_points([min(curve, key=lambda epoch: epoch["val_nll"])]), "o", color=color, markersize=5)
    for axes, (model, name) in zip(grid.flat, ((m, d) for m in models for d in data), strict=True):
        axes.set_title(f"{TITLES[model]}, {TITLES[name]}")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    for axes in grid[-1]:
        axes.set_xlabel("epoch")
    for axes in grid[:, 0]:
        axes.set_ylabel("validation NLL")
    _legend(figure)
    return figure


def _legend(figure: Figure) -> None:
    """One legend above all axes."""
    known = {label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(known.values(), known.keys(), loc="outside upper center", ncols=len(known))


def _points(curve: list[dict[str, float]]) -> tuple[list[float], list[float]]:
    return [row["epoch"] for row in curve], [row["val_nll"] for row in curve]


def _curve(content: Content, cell: str) -> list[dict[str, float]]:
    """The epochs of a cell, counted from those of the network that it started from."""
    begun = content["curves"].get(with_defaults(content["cells"][cell]["settings"])["init"], [])
    return [{**row, "epoch": row["epoch"] + len(begun)} for row in content["curves"][cell]]


def _accuracies(content: Content) -> Figure:
    data = list(dict.fromkeys(row["data"] for row in content["rows"]))
    figure = _empty(6.8, 2.6)
    for axes, name in zip(figure.subplots(1, len(data)), data, strict=True):
        rows = [row for row in content["rows"] if row["data"] == name]
        for place, row in enumerate(rows):
            if row["published"]["accuracy"] is not None:
                axes.plot(row["published"]["accuracy"], place, "|", color=COLORS["ink"], markersize=11)
            m = row["measured"]
            if m is not None:
                reach = [[m["accuracy"] - m["accuracy_low"]], [m["accuracy_high"] - m["accuracy"]]]
                color = INFERENCE_COLORS[row["inference"]]
                axes.errorbar(m["accuracy"], place, xerr=reach, fmt="o", color=color, capsize=2)
        labels = [f"{TITLES[row['model']]}, {SHORT[row['inference']]}" for row in rows]
        axes.set_yticks(range(len(rows)), labels if axes is figure.axes[0] else [""] * len(rows))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_title(TITLES[name])
        axes.set_xlabel("accuracy, %")
    figure.suptitle("● measured on the test split, with 95 % interval    | published")
    return figure


def _curves(axes: Axes, curves: dict[str, list[dict[str, float]]], quantity: str, titles: dict[str, str]) -> None:
    factor = 100 if quantity == "accuracy" else 1
    for inference, rows in curves.items():
        epochs = [row["epoch"] for row in rows]
        color = INFERENCE_COLORS[inference]
        marker = "o" if len(rows) < 3 else ""
        validation = [factor * row[f"val_{quantity}"] for row in rows]
        training = [factor * row[f"train_{quantity}"] for row in rows]
        axes.plot(epochs, validation, color=color, marker=marker, label=titles[inference])
        hollow: dict[str, Any] = {"marker": marker, "markerfacecolor": "white"}  # a single epoch has no line
        axes.plot(epochs, training, color=color, linestyle=(0, (3, 1.5)), linewidth=1, **hollow)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch")
    axes.set_ylabel("accuracy, %" if quantity == "accuracy" else "NLL (nats)")
    axes.legend()


def _table2(content: Content) -> dict[str, Figure]:
    """Uncertainties with the softplus head beside the published ones, and all heads beside each other."""
    rows = [row for row in content["rows"] if row["measured"] is not None]
    softplus = [row for row in rows if row["head"] == "softplus"]
    drawn = {"table2.png": _uncertainties(softplus)} if softplus else {}
    return {**drawn, "table2-heads.png": _heads(rows)} if rows else drawn


def _uncertainties(rows: list[Content]) -> Figure:
    """Epistemic uncertainty against accuracy, and aleatoric uncertainty of each network."""
    models = sorted({row["model"] for row in rows}, key=list(MARKERS).index)
    figure = _empty(6.8, 2.8)
    left, right = figure.subplots(1, 2)
    for data in dict.fromkeys(row["data"] for row in rows):
        color = DATA_COLORS[data]
        for row in sorted((row for row in rows if row["data"] == data), key=lambda row: models.index(row["model"])):
            m, prints, marker = row["measured"], row["published"], MARKERS[row["model"]]
            hollow: Content = {"color": color, "markerfacecolor": "white", "markersize": 6}
            left.plot(m["accuracy"], m["epistemic_mean_over_epochs"], marker, color=color, markersize=6)
            right.plot(models.index(row["model"]), m["aleatoric_mean_over_epochs"], marker, color=color, markersize=6)
            if prints["epistemic"] is not None:
                left.plot(prints["accuracy"], prints["epistemic"], marker, **hollow)
                right.plot(models.index(row["model"]), prints["aleatoric"], marker, **hollow)
    left.set(yscale="log", xlabel="test accuracy, %", ylabel="epistemic uncertainty")
    right.set(yscale="log", ylabel="aleatoric uncertainty", xlim=(-0.5, len(models) - 0.5))
    right.set_xticks(range(len(models)), [TITLES[model] for model in models])
    colors = [Patch(color=color, label=TITLES[name]) for name, color in DATA_COLORS.items()]
    shapes = [
        Line2D([], [], marker=MARKERS[model], linestyle="", color=COLORS["muted"], markersize=6, label=TITLES[model])
        for model in models
    ]
    figure.legend(handles=[*shapes, *colors], loc="outside upper center", ncols=len(shapes) + len(colors))
    return figure


def _heads(rows: list[Content]) -> Figure:
    """Of each head the share of probabilities that are nearly zero, and how well its uncertainties find mistakes."""
    panels = {
        "nearly_zero": "probabilities below 0.001, %",
        "aleatoric_auroc": "AUROC of mistakes, aleatoric",
        "epistemic_auroc": "AUROC of mistakes, epistemic",
    }
    compared = {(row["model"], row["data"]) for row in rows if row["head"] != "softplus"}
    places = sorted(compared or {(row["model"], row["data"]) for row in rows})
    figure = _empty(6.8, 1.2 + 0.25 * len(places))
    for axes, (name, title) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for row in rows:
            value, where = row["measured"][name], (row["model"], row["data"])
            if where not in places or value is None or (name == "nearly_zero" and row["head"] == "kendall_gal"):
                continue
            face = "none" if row["head"] == "softmax" else HEAD_COLORS[row["head"]]
            size = 9 if row["head"] == "softmax" else 5  # a ring, for it often lies on softplus
            value *= 100 if name == "nearly_zero" else 1
            options: Content = {"color": HEAD_COLORS[row["head"]], "markerfacecolor": face, "markersize": size}
            axes.plot(value, places.index(where), "o", label=TITLES[row["head"]], **options)
        labels = [f"{TITLES[model]}, {TITLES[data]}" for model, data in places]
        axes.set_yticks(range(len(places)), labels if axes is figure.axes[0] else [""] * len(places))
        axes.set_ylim(len(places) - 0.5, -0.5)
        axes.set_xlim((0, 100) if name == "nearly_zero" else (0, 1.04))
        if name != "nearly_zero":
            axes.axvline(0.5, color=COLORS["muted"], linestyle=":", linewidth=1)
        axes.set_xlabel(title)
    _legend(figure)
    return figure


def _noise(content: Content) -> dict[str, Figure]:
    """The image at each noise level with its aleatoric uncertainty, as in the paper, normalised both ways."""
    found = [row for row in content["rows"] if row["measured"] is not None]
    if not found or content["image"] is None:
        return {}
    image = np.asarray(content["image"], dtype=float) / 255
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0)).numpy()
    first = found[0]["model"]
    rows = [row for row in found if row["model"] == first]
    figure = _empty(6.8, 2.4)
    for axes, row in zip(figure.subplots(1, len(rows)), rows, strict=True):
        axes.imshow(np.clip(image + row["gamma"] * noise, 0, 1), cmap="gray_r", vmin=0, vmax=1)
        m = row["measured"]
        axes.set_title(
            f"γ = {row['gamma']:g}\nover the classes {m['classes_image']:.2g}\nover the batch {m['batch_image']:.6f}"
        )
        axes.set_axis_off()
    figure.suptitle(f"Aleatoric uncertainty of one image, Bayesian {TITLES[first]}")
    return {"noise.png": figure, "noise-levels.png": _noise_levels(found)}


def _noise_levels(found: list[Content]) -> Figure:
    figure = _empty(6.8, 2.4)
    for axes, axis in zip(figure.subplots(1, 2), ("classes", "batch"), strict=True):
        for model, dashes in (("lenet5", "-"), ("vgg16", (0, (5, 1.5)))):
            rows = [row for row in found if row["model"] == model]
            for what, color in (("test", COLORS["aleatoric"]), ("image", COLORS["epistemic"])):
                if rows:
                    values = [row["measured"][f"{axis}_{what}"] for row in rows]
                    label = f"{TITLES[model]}, {'mean' if what == 'test' else 'one image'}"
                    axes.plot([row["gamma"] for row in rows], values, "o", color=color, linestyle=dashes, label=label)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("noise level γ")
        axes.set_ylabel("aleatoric uncertainty")
        axes.set_title(f"normalised over the {axis}")
    _legend(figure)
    return figure


def _regularisation(content: Content) -> dict[str, Figure]:
    """Training and validation over the epochs."""
    curves: dict[str, list[dict[str, float]]] = {}
    for row in content["rows"]:
        if row["measured"] is not None:
            curves.setdefault(row["inference"], []).append(row["measured"])
    if not curves:
        return {}
    figure = _empty(6.8, 2.8)
    for axes, quantity in zip(figure.subplots(1, 2), ("accuracy", "nll"), strict=True):
        _curves(axes, curves, quantity, INFERENCE_TITLES)
    figure.suptitle("AlexNet on CIFAR-100: solid validation, dashed training")
    return {"regularisation.png": figure}


def _posterior(content: Content) -> dict[str, Figure]:
    """The distribution of one weight at a few epochs, and the standard deviation of one weight per layer."""
    rows = [row["measured"] for row in content["rows"] if row["measured"] is not None]
    if not rows:
        return {}
    traces: dict[str, list[Content]] = {}
    for row in content["trace"]:
        traces.setdefault(row["layer"], []).append(row)
    layer = list(traces)[len(traces) // 2]
    figure = _empty(6.8, 2.6)
    left, right = figure.subplots(1, 2)
    at = [row for row in rows if row["layer"] == layer]
    weight_over_epochs(left, at, len(at))
    left.set_title(f"a weight of {layer}")
    std_over_epochs(right, traces)
    right.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))  # beside the curves, which fill the axes
    return {"posterior.png": figure}


def _filters(content: Content) -> dict[str, Figure]:
    """An image patch, a filter and its output: point estimates on the left, distributions on the right."""
    found = content["filter"]
    if found is None:
        return {}
    figure = _empty(7.2, 4.6)
    left, right = figure.subfigures(1, 2, wspace=0.04)  # type: ignore[misc]
    for part, title in ((left, "point estimates"), (right, "distributions")):
        part.suptitle(title)
        grid = part.add_gridspec(2, 2, height_ratios=(1, 1.1))
        _image(part.add_subplot(grid[0, 0]), found)
        _numbers(part.add_subplot(grid[0, 1]), np.asarray(found["patch"]), "patch (normalised pixels)", "gray_r")
        if title == "point estimates":
            _numbers(part.add_subplot(grid[1, 0]), np.asarray(found["weight_mean"]), "filter", "RdBu_r", centred=True)
            _point_output(part.add_subplot(grid[1, 1]), found)
        else:
            _weight_distributions(part, grid[1, 0], found)
            _output_distribution(part.add_subplot(grid[1, 1]), found)
    return {"filters.png": figure}


def _image(axes: Axes, found: Content) -> None:
    axes.imshow(np.asarray(found["image"]), cmap="gray_r", vmin=0, vmax=255)
    size = len(found["patch"])
    corner = (found["column"] - 0.5, found["row"] - 0.5)
    axes.add_patch(Rectangle(corner, size, size, fill=False, edgecolor=COLORS["wrong"], linewidth=1.2))
    axes.set_title("image")
    axes.set_axis_off()


def _numbers(axes: Axes, values: Any, title: str, colors: str, centred: bool = False) -> None:
    reach = float(np.abs(values).max()) or 1.0
    low, high = (-1.4 * reach, 1.4 * reach) if centred else (float(values.min()), 1.6 * float(values.max()) + 0.1)
    axes.imshow(values, cmap=colors, vmin=low, vmax=high)
    for (row, column), value in np.ndenumerate(values):
        dark = (value - low) / (high - low) > 0.55 if not centred else abs(value) > 0.9 * reach
        color = "white" if dark else COLORS["ink"]
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=5, color=color)
    axes.set_title(title)
    axes.set_axis_off()


def _point_output(axes: Axes, found: Content) -> None:
    axes.text(0.5, 0.5, f"{found['output_mean']:.3f}", ha="center", va="center", fontsize=16, transform=axes.transAxes)
    axes.set_box_aspect(1)
    axes.set_title("output")
    axes.set_axis_off()


def _weight_distributions(part: Any, place: Any, found: Content) -> None:
    """A small Gaussian for each weight around its own mean, all of one scale."""
    mean, std = np.asarray(found["weight_mean"]), np.asarray(found["weight_std"])
    size = len(mean)
    offsets = np.linspace(-3.5 * std.max(), 3.5 * std.max(), 100)
    cells = place.subgridspec(size, size, wspace=0.15, hspace=0.15)
    for (row, column), center in np.ndenumerate(mean):
        axes = part.add_subplot(cells[row, column])
        density = std.min() / std[row, column] * np.exp(-0.5 * (offsets / std[row, column]) ** 2)
        axes.fill_between(offsets, density, color=COLORS["aleatoric"], alpha=0.35, linewidth=0)
        axes.plot(offsets, density, color=COLORS["aleatoric"], linewidth=0.8)
        axes.set_ylim(0, 1.1)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"{center:.2f}", fontsize=5, labelpad=1)
        if (row, column) == (0, size // 2):
            axes.set_title(f"filter, σ {std.min():.4f} to {std.max():.4f}")


def _output_distribution(axes: Axes, found: Content) -> None:
    mean, std = found["output_mean"], found["output_std"]
    x = np.linspace(mean - 4 * std, mean + 4 * std, 200)
    density = np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    axes.fill_between(x, density, color=COLORS["epistemic"], alpha=0.35, linewidth=0)
    axes.plot(x, density, color=COLORS["epistemic"])
    axes.set_yticks([])
    axes.locator_params(axis="x", nbins=4)
    axes.set_box_aspect(1)
    axes.set_title(f"output {mean:.3f} ± {std:.3f}")


_FIGURES: dict[str, Callable[[Content], dict[str, Figure]]] = {
    "table1": _table1,
    "table2": _table2,
    "noise": _noise,
    "regularisation": _regularisation,
    "posterior": _posterior,
    "filters": _filters,
}
