"""Figures: one function for each, which draws on a matplotlib Axes from tensors or arrays.

They share the look and the files of :mod:`dubito.evaluation.style`.

>>> from dubito.evaluation.style import draw
>>> figure = draw(lambda ax: risk_coverage(ax, [False, True, False], {"entropy": [0.1, 0.9, 0.2]}))
>>> figure.axes[0].get_xlabel()
'share of images kept'
"""

# ruff: noqa: RUF001 - axes are labelled with Greek letters

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dubito.evaluation.metrics import reliability, risk_at
from dubito.evaluation.metrics import risk_coverage as selective_risk
from dubito.evaluation.style import COLORS

Array = NDArray[np.float64]

_DASHES = {
    "aleatoric": "-",
    "epistemic": (0, (5, 1.5)),
    "entropy": (0, (1, 1)),
    "mutual_information": (0, (4, 1, 1, 1)),
    "confidence": (0, (2, 1)),
}
_SEEN_POINTS = 400  # of a curve; nobody sees more across a column


# ---- training ------------------------------------------------------------------------------------------------------


def learning_curves(ax: Axes, rows: Sequence[Mapping[str, float]], quantity: str = "nll") -> None:
    """A quantity over the epochs: ``nll``, ``accuracy``, ``kl`` or ``ece``; `rows` are those of a run's metrics.csv."""
    epochs = [row["epoch"] for row in rows]
    labels = {"nll": "NLL (nats)", "accuracy": "accuracy", "kl": "KL divergence (nats)", "ece": "calibration error"}
    series = {
        "training": (f"train_{quantity}", "muted", (0, (5, 1.5))),
        "validation": (f"val_{quantity}", "aleatoric", "-"),
    }
    if rows and quantity in rows[0]:
        series = {"": (quantity, "epistemic", "-")}
    for label, (column, color, dashes) in series.items():
        if rows and column in rows[0]:
            values = [row[column] for row in rows]
            marker = "o" if len(rows) <= 30 else ""
            ax.plot(epochs, values, color=COLORS[color], linestyle=dashes, marker=marker, label=label or None)
    ax.set_xlabel("epoch")
    ax.set_ylabel(labels.get(quantity, quantity))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if quantity == "accuracy":
        _in_percent(ax.yaxis)
    if quantity == "kl":
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if len(ax.get_lines()) > 1:
        ax.legend()


# ---- calibration and selection -------------------------------------------------------------------------------------


def reliability_diagram(
    ax: Axes, probs: ArrayLike, labels: ArrayLike, bins: int = 15, calibrated: ArrayLike | None = None
) -> None:
    """Accuracy of images by the network's confidence in them, with 95 % intervals (Wilson).

    On the diagonal the network is as often right as it says. `calibrated` are other probabilities of the same images,
    e.g. after temperature scaling.
    """
    table = _filled_bins(probs, labels, bins)
    ax.bar(table["lower"], table["share"], 1 / bins, align="edge", color=COLORS["grid"], label="share of images")
    ax.plot([0, 1], [0, 1], color=COLORS["muted"], linewidth=0.8, linestyle=(0, (3, 2)))
    line: dict[str, Any] = {
        "color": COLORS["aleatoric"],
        "marker": "o",
        "capsize": 1.5,
        "elinewidth": 0.9,
        "label": "accuracy",
    }
    ax.errorbar(table["confidence"], table["accuracy"], _wilson_errors(table["accuracy"], table["count"]), **line)
    if calibrated is not None:
        table = _filled_bins(calibrated, labels, bins)
        line = {"color": COLORS["epistemic"], "marker": "s", "linestyle": ":", "label": "with temperature"}
        ax.plot(table["confidence"], table["accuracy"], **line)
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("confidence")
    ax.set_ylabel("accuracy")
    ax.legend(loc="upper left")


def _filled_bins(probs: ArrayLike, labels: ArrayLike, bins: int) -> dict[str, Array]:
    """The reliability of every bin that holds an image, and its share of all images."""
    table = reliability(_tensor(probs), _tensor(labels).long(), bins)
    filled = (table.count > 0).numpy()
    names = ("lower", "confidence", "accuracy", "count")
    parts = {name: _array(getattr(table, name))[filled] for name in names}
    return {**parts, "share": parts["count"] / parts["count"].sum()}


def _wilson_errors(share: Array, count: Array, z: float = 1.96) -> Array:
    """(2, N) how far Wilson's 95 % interval of a share reaches down and up from it."""
    center = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
    return np.clip([share - center + half, center + half - share], 0, None)


def risk_coverage(ax: Axes, errors: ArrayLike, uncertainties: Mapping[str, ArrayLike]) -> None:
    """Error rate among the images that are kept when the most uncertain ones are left out.

    `errors` says which predictions are wrong. The dotted line is an oracle that leaves out wrong ones alone. The axes
    show what matters for a network as good as this one; see `risk_window`.
    """
    wrong = _tensor(errors).bool()
    left, top = risk_window(wrong)
    for name, uncertainty in uncertainties.items():
        line: dict[str, Any] = {"color": COLORS.get(name, COLORS["ink"]), "linestyle": _DASHES.get(name, "-")}
        ax.plot(*_risk_curve(_tensor(uncertainty), wrong, left), label=spoken(name), **line)
    ideal: dict[str, Any] = {"color": COLORS["muted"], "linewidth": 0.8, "linestyle": (0, (1, 2)), "label": "oracle"}
    ax.plot(*_risk_curve(wrong.double() + torch.linspace(0, 0.5, len(wrong)), wrong, left), **ideal)
    ax.set_xlim(left, 1)
    ax.set_ylim(0, top)
    _in_percent(ax.xaxis, ax.yaxis)
    ax.set_xlabel("share of images kept")
    ax.set_ylabel("error rate among them")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, columnspacing=1.2)


def review_curve(
    ax: Axes,
    errors: ArrayLike,
    doubt: ArrayLike,
    chosen: tuple[float, float] | None = None,
    limit: float | None = None,
) -> None:
    """The error of the rest against the share of images that are reviewed, the most doubtful ones.

    `chosen` is where a rule is (share of images that it does not accept, error of the rest), `limit` what it promises.
    """
    wrong = _tensor(errors).bool()
    rate = max(float(wrong.double().mean()), 1 / len(wrong))
    right = min(max(10 * rate, 1.5 * (chosen[0] if chosen else 0.0), 0.1), 1.0)
    coverage, risk = _risk_curve(_tensor(doubt), wrong, 1 - right)
    ax.plot(1 - coverage, risk, color=COLORS["aleatoric"])
    if limit is not None and limit < 4 / 3 * rate:
        ax.axhline(limit, color=COLORS["muted"], linewidth=0.8, linestyle=(0, (5, 2)))
        ax.annotate("promised", (right, limit), (-2, 3), textcoords="offset points", ha="right", color=COLORS["muted"])
    if chosen is not None:
        ax.plot(*chosen, "o", color=COLORS["wrong"])
        ax.annotate("the rule", chosen, (6, 6), textcoords="offset points", color=COLORS["wrong"])
    ax.set_xlim(0, right)
    ax.set_ylim(0, rate * 4 / 3)
    _in_percent(ax.xaxis, ax.yaxis)
    ax.set_xlabel("share of images reviewed")
    ax.set_ylabel("error of the rest")


def risk_window(errors: ArrayLike) -> tuple[float, float]:
    """Where the axes of `risk_coverage` begin (coverage) and end (risk).

    Of a network that errs in 1 % of the images, the best that can be seen happens in the last few per cent of coverage.
    The window is ten times as wide as the error rate, and a third higher.

    >>> risk_window([True] + [False] * 99), risk_window([True, False])
    ((0.9, 0.0133...), (0.0, 0.666...))
    """
    wrong = _tensor(errors).bool()
    rate = max(float(wrong.double().mean()), 1 / len(wrong))
    return round(max(1 - 10 * rate, 0.0), 2), min(rate * 4 / 3, 1.02)


def _risk_curve(uncertainty: Tensor, wrong: Tensor, left: float) -> tuple[Tensor, Tensor]:
    """Coverage from `left` on, and risk, thinned out to what can be seen."""
    curve = selective_risk(uncertainty, wrong)
    coverage = torch.linspace(max(left, 1 / len(wrong)), 1, min(len(wrong), _SEEN_POINTS), dtype=torch.float64)
    return coverage, risk_at(curve, coverage)


# ---- uncertainty ---------------------------------------------------------------------------------------------------


def uncertainty_histogram(ax: Axes, groups: Mapping[str, ArrayLike], name: str = "uncertainty") -> None:
    """How an uncertainty is spread in groups of images, e.g. ``right``, ``wrong`` and others (out of distribution).

    Each group adds up to 1 whatever its size. The axis is logarithmic.
    """
    values = {group: _array(v) for group, v in groups.items() if len(_array(v))}
    floor, top = _log_range(np.concatenate(list(values.values())))
    edges = np.geomspace(floor, top, 41)
    colors = _group_colors(values)
    for group, numbers in values.items():
        shares = np.histogram(np.clip(numbers, floor, top), edges)[0] / len(numbers)
        color = colors[group]
        ax.stairs(shares, edges, fill=True, color=color, alpha=0.22, linewidth=0)
        ax.stairs(shares, edges, color=color, linewidth=1.2, label=spoken(group))
    _logarithmic(ax, "x", floor, top)
    ax.set_ylim(bottom=0)
    _in_percent(ax.yaxis)
    ax.set_xlabel(f"{spoken(name)} uncertainty" if name in ("aleatoric", "epistemic") else spoken(name))
    ax.set_ylabel("share of the group")
    ax.legend()


def uncertainty_scatter(
    ax: Axes, aleatoric: ArrayLike, epistemic: ArrayLike, groups: Sequence[str], order: Sequence[str] = ()
) -> None:
    """Aleatoric against epistemic uncertainty, a point for each image, coloured by its group (``right``, ...).

    The axes are logarithmic and span at most seven decades; what is below them is drawn at their edge.
    """
    across, up = _array(aleatoric), _array(epistemic)
    given = np.asarray(groups)
    ranges = _log_range(across, decades=7), _log_range(up, decades=7)
    for group, color in _group_colors(order or groups).items():
        chosen = given == group
        x, y = (np.clip(v[chosen], *limits) for v, limits in zip((across, up), ranges, strict=True))
        ax.scatter(x, y, s=4, color=color, alpha=0.55, linewidth=0, label=spoken(group))
    _logarithmic(ax, "x", *ranges[0])
    _logarithmic(ax, "y", *ranges[1])
    ax.set_xlabel("aleatoric uncertainty")
    ax.set_ylabel("epistemic uncertainty")
    ax.legend(markerscale=2, handletextpad=0.2)


def _group_colors(groups: Iterable[str]) -> dict[str, str]:
    """The colour of each group: right and wrong have their own, others one after the other."""
    others = iter(("ood", "mutual_information", "entropy"))
    names = dict.fromkeys(groups)
    return {name: COLORS[name if name in ("right", "wrong") else next(others, "muted")] for name in names}


def noise_response(
    ax: Axes,
    gammas: Sequence[float],
    values: Sequence[float],
    name: str = "aleatoric",
    intervals: Sequence[tuple[float, float]] | None = None,
) -> None:
    """A mean over the images (an uncertainty, or ``accuracy``) against the noise that was added to them."""
    color = COLORS.get(name, COLORS["right"])
    if intervals is not None:
        low, high = zip(*intervals, strict=True)
        ax.fill_between(gammas, low, high, color=color, alpha=0.2, linewidth=0)
    ax.plot(gammas, values, color=color, marker="o")
    ax.set_xlabel("noise γ")
    if name == "accuracy":
        _in_percent(ax.yaxis)
    else:
        ax.set_ylim(bottom=0)
    ax.set_ylabel(f"mean {spoken(name)}" + (" uncertainty" if name in ("aleatoric", "epistemic") else ""))


# ---- classes -------------------------------------------------------------------------------------------------------


def confusion(ax: Axes, matrix: ArrayLike, class_names: Sequence[str]) -> None:
    """The confusion matrix: a row for each true class, a column for each predicted one.

    Colours are shares of the row. Names and counts are written if there are at most 20 classes.
    """
    counts = _array(matrix)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    size = len(counts)
    # From nothing to blue, so that it lies well on a light and on a dark page.
    shades = LinearSegmentedColormap.from_list("shade", [(0, 0.45, 0.7, 0), (0, 0.45, 0.7, 1)])
    ax.imshow(shares, cmap=shades, vmin=0, vmax=1, interpolation="nearest")
    ax.grid(False)
    ax.set_xlabel("predicted class")
    ax.set_ylabel("true class")
    if size <= 20:
        names = [_shortened(name, 12) for name in class_names]
        long = max(map(len, names)) > 2
        ax.set_xticks(range(size), names, rotation=90 if long else 0, fontsize=6 if size > 10 else 7)
        ax.set_yticks(range(size), names, fontsize=6 if size > 10 else 7)
        for row, column in np.argwhere(counts > 0):
            color = "#ffffff" if shares[row, column] > 0.5 else COLORS["ink"]
            text = f"{counts[row, column]:.0f}"
            ax.text(column, row, text, ha="center", va="center", fontsize=min(6, 60 / size), color=color)


def conformal_set_sizes(ax: Axes, sizes: Mapping[str, ArrayLike]) -> None:
    """How many classes the prediction sets of images hold, for each method."""
    names = list(sizes)
    largest = max(int(_array(values).max()) for values in sizes.values())
    colors = ("aleatoric", "epistemic", "right", "ood")
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        shares = np.bincount(_array(sizes[name]).astype(int), minlength=largest + 1) / len(_array(sizes[name]))
        places = np.arange(largest + 1) + (index - (len(names) - 1) / 2) * width
        ax.bar(places, shares, width, color=COLORS[colors[index % 4]], label=name.upper())
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _in_percent(ax.yaxis)
    ax.set_xlabel("classes in the prediction set")
    ax.set_ylabel("share of images")
    ax.legend()


# ---- images --------------------------------------------------------------------------------------------------------


GALLERY_COLUMNS = 3
"""Images side by side in a gallery."""


def gallery(
    ax: Axes,
    images: ArrayLike,
    probs: ArrayLike,
    spread: ArrayLike,
    class_names: Sequence[str],
    labels: Sequence[int] | None = None,
    names: Sequence[str] = (),
) -> None:
    """Images (N, C, H, W) of bytes, each with its most probable classes as bars.

    `spread` (N, C) are the error bars: the square root of `epistemic_per_class`. `labels` are the true classes, `names`
    what the images are called.
    """
    pixels, chances, bars = np.asarray(images), _array(probs), _array(spread)
    width, height = 2.75, 1.3
    for index in range(len(pixels)):
        left, bottom = (index % GALLERY_COLUMNS) * width, -(index // GALLERY_COLUMNS) * height
        _gallery_image(ax, pixels[index], left, bottom)
        truth = None if labels is None else int(labels[index])
        for place, number in enumerate(likeliest(chances[index], truth)):
            y = bottom + 0.88 - place * 0.18
            color = "right" if number == truth else ("wrong" if place == 0 and truth is not None else "muted")
            length, error = float(chances[index, number]), float(bars[index, number])
            for share, shade in ((1.0, "grid"), (length, color)):
                ax.add_patch(Rectangle((left + 1.72, y - 0.05), 0.8 * share, 0.1, color=COLORS[shade], linewidth=0))
            ends = np.clip([length - error, length + error], 0, 1) * 0.8 + left + 1.72
            ax.plot(ends, [y, y], color=COLORS["ink"], linewidth=0.7)
            name = _shortened(class_names[number], 10)
            ax.text(left + 1.68, y, name, ha="right", va="center", fontsize=5.5)
        if truth is not None:
            title = f"true: {_shortened(class_names[truth], 14)}"
            ax.text(left + 0.5, bottom - 0.04, title, ha="center", va="top", fontsize=5.5)
        if names:
            ax.text(left, bottom - 0.15, _shortened(names[index], 40), va="top", fontsize=4.5, color=COLORS["muted"])
    ax.set_xlim(0, GALLERY_COLUMNS * width)
    ax.set_ylim(-(max(len(pixels) - 1, 0) // GALLERY_COLUMNS) * height - 0.27, 1.02)
    ax.set_aspect("equal")
    ax.axis("off")


def likeliest(probs: ArrayLike, truth: int | None = None, count: int = 5) -> list[int]:
    """The most probable classes, the true one in the last place if it were left out.

    >>> likeliest([0.1, 0.5, 0.0, 0.4], truth=2, count=3)
    [1, 3, 2]
    """
    order: list[int] = np.argsort(-_array(probs), kind="stable")[:count].tolist()
    return order if truth is None or truth in order else [*order[:-1], truth]


def _gallery_image(ax: Axes, pixels: NDArray[Any], left: float, bottom: float) -> None:
    shown = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    extent = (left, left + 1, bottom, bottom + 1)
    ax.imshow(shown, cmap="gray", vmin=0, vmax=255, extent=extent, interpolation="nearest")


# ---- posterior -----------------------------------------------------------------------------------------------------


def posterior_by_layer(ax: Axes, layers: Mapping[str, ArrayLike], quantity: str = "mean") -> None:
    """The distribution of a quantity of the posterior over the weights of each layer, first layer on top.

    `quantity` is ``mean``, ``std`` or ``snr``, the signal-to-noise ratio: absolute mean over standard deviation.
    """
    values = {name: _array(v).ravel() for name, v in layers.items()}
    if quantity != "mean":
        ranges = [_log_range(numbers, decades=6) for numbers in values.values()]
        floor, top = min(low for low, _ in ranges), max(high for _, high in ranges)
        edges = np.geomspace(floor, top, 81)
        _logarithmic(ax, "x", floor, top)
    else:
        limit = max(float(np.quantile(np.abs(numbers), 0.998)) for numbers in values.values()) or 1.0
        floor, top = -limit, limit
        edges = np.linspace(floor, top, 81)
        ax.set_xlim(floor, top)
    color = COLORS[{"mean": "aleatoric", "std": "epistemic"}.get(quantity, "right")]
    for row, numbers in enumerate(values.values()):
        counts = np.histogram(np.clip(numbers, floor, top), edges)[0]
        base = len(values) - 1 - row
        heights = base + 0.92 * counts / max(counts.max(), 1)
        ax.stairs(heights, edges, baseline=base, fill=True, color=color, alpha=0.35, linewidth=0)
        ax.stairs(heights, edges, baseline=None, color=color, linewidth=0.9)
    if quantity == "snr" and floor < 1 < top:
        ax.axvline(1, color=COLORS["muted"], linewidth=0.8, linestyle=(0, (3, 2)))
    ax.set_yticks(range(len(values)), [_shortened(name, 14) for name in reversed(values)], va="bottom")
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(0, len(values))
    labels = {"mean": "mean μ of a weight", "std": "standard deviation σ", "snr": "signal-to-noise ratio |μ|/σ"}
    ax.set_xlabel(labels.get(quantity, quantity))


def weight_over_epochs(ax: Axes, rows: Sequence[Mapping[str, Any]], curves: int = 5) -> None:
    """The distribution of one weight at a few epochs, the later the darker; `rows` have epoch, mean and std."""
    chosen = [rows[index] for index in _few(len(rows), curves)]
    reach = [(row["mean"] - 3.2 * row["std"], row["mean"] + 3.2 * row["std"]) for row in chosen]
    x = np.linspace(min(low for low, _ in reach), max(high for _, high in reach), 300)
    for place, row in enumerate(chosen):
        density = np.exp(-0.5 * ((x - row["mean"]) / row["std"]) ** 2) / (row["std"] * np.sqrt(2 * np.pi))
        alpha = 0.25 + 0.75 * (place + 1) / len(chosen)
        ax.plot(x, density, color=COLORS["aleatoric"], alpha=alpha, label=f"epoch {int(row['epoch'])}")
        ax.fill_between(x, density, color=COLORS["aleatoric"], alpha=0.08 * alpha, linewidth=0)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("weight w")
    ax.set_ylabel("density q(w)")
    ax.legend()


def std_over_epochs(ax: Axes, traces: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """The standard deviation of one weight of each layer over the epochs."""
    colors = [
        COLORS[name] for name in ("aleatoric", "epistemic", "right", "ood", "entropy", "wrong", "mutual_information")
    ]
    dashes: list[Any] = ["-", (0, (5, 1.5)), (0, (1, 1))]
    for index, (layer, rows) in enumerate(traces.items()):
        line = {"color": colors[index % len(colors)], "linestyle": dashes[(index // len(colors)) % len(dashes)]}
        ax.plot([row["epoch"] for row in rows], [row["std"] for row in rows], label=_shortened(layer, 14), **line)
    ax.set_yscale("log")
    _plain_log_ticks(ax, "y")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set_xlabel("epoch")
    ax.set_ylabel("standard deviation σ")
    ax.legend(ncols=1 + (len(traces) > 5))


# ---- parts ---------------------------------------------------------------------------------------------------------


def _array(values: ArrayLike) -> Array:
    """Tensors, lists and arrays alike as float64."""
    detached: Any = values.detach().cpu() if hasattr(values, "detach") else values
    return np.asarray(detached, dtype=np.float64)


def _tensor(values: ArrayLike) -> Tensor:
    return torch.from_numpy(_array(values))


def spoken(name: str) -> str:
    """What an uncertainty or a group of images is called in a figure."""
    return "1 − confidence" if name == "confidence" else _shortened(name.replace("_", " "), 24)


def _shortened(name: str, length: int) -> str:
    # A dollar sign would begin a formula.
    text = str(name).replace("$", r"\$")
    return text if len(text) <= length else text[: length - 1] + "…"


def _few(count: int, wanted: int) -> list[int]:
    """At most `wanted` of the numbers 0 ... count - 1, about evenly spaced on a logarithmic scale."""
    if count <= wanted:
        return list(range(count))
    return sorted({round(number) - 1 for number in np.geomspace(1, count, wanted)})


def _log_range(values: Array, decades: float = 12) -> tuple[float, float]:
    """Limits of a logarithmic axis: those of the values, but at most `decades` powers of ten."""
    positive = values[values > 0]
    if not len(positive):
        return 1e-6, 1e-5
    top = float(positive.max()) * 1.1
    floor = max(float(np.quantile(positive, 0.004)), top / 10**decades)
    return min(floor, top / 10), top


def _logarithmic(ax: Axes, axis: str, low: float, high: float) -> None:
    (ax.set_xscale if axis == "x" else ax.set_yscale)("log")
    (ax.set_xlim if axis == "x" else ax.set_ylim)(low, high)
    _plain_log_ticks(ax, axis)


def _plain_log_ticks(ax: Axes, axis: str) -> None:
    """Powers of ten in plain characters: mathematical text would bring fonts of its own into the SVG."""
    chosen = ax.xaxis if axis == "x" else ax.yaxis
    low, high = sorted(chosen.get_view_interval())
    chosen.set_minor_formatter(NullFormatter())
    if high / low >= 100:
        chosen.set_major_formatter(FuncFormatter(_power))
    else:  # too few powers of ten to read anything off
        chosen.set_major_locator(LogLocator(subs=(1, 2, 5)))
        chosen.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))


def _power(value: float, _: object = None) -> str:
    exponent = round(float(np.log10(value)))
    if 0 <= exponent <= 3:
        return f"{10**exponent}"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _percent(value: float, _: object = None) -> str:
    return f"{100 * value:.3g} %"


def _in_percent(*axes: Axis) -> None:
    for axis in axes:
        axis.set_major_formatter(FuncFormatter(_percent))
