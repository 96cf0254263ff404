"""The figure of how cost grows: a panel each for draws, batch, width and depth."""

from __future__ import annotations

import io
from typing import Any

from benchmarks.peers.document import axes as axes_of
from benchmarks.peers.document import measured_systems
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from dubito.evaluation.style import COLORS, STYLE

LOOKS = tuple(zip((COLORS["aleatoric"], COLORS["epistemic"], COLORS["right"], COLORS["muted"]), "os^D", strict=True))
"""The colour and the marker of one system after the other."""
LABELS = {
    "draws": "draws of a prediction",
    "batch": "batch of a training step",
    "width": "width of the network",
    "depth": "depth of the network",
}


def growth_figure(stage: dict[str, Any]) -> bytes:
    """A PNG."""
    with rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.6), dpi=160, layout="constrained")
        FigureCanvasAgg(figure)
        for ax, (axis, values) in zip(figure.subplots(2, 2).flat, axes_of(stage).items(), strict=True):
            panel(ax, axis, values, stage)
        file = io.BytesIO()
        figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def panel(ax: Axes, axis: str, values: list[int], stage: dict[str, Any]) -> None:
    for system, (color, marker) in zip(measured_systems(stage, f"{axis}={values[0]}"), LOOKS, strict=False):
        found = [(value, stage["ratios"][system].get(f"{axis}={value}")) for value in values]
        points = [(value, ratio) for value, ratio in found if ratio is not None]
        x, middle = [value for value, _ in points], [ratio["median"] for _, ratio in points]
        ax.fill_between(x, [r["low"] for _, r in points], [r["high"] for _, r in points], color=color, alpha=0.2, lw=0)
        ax.plot(x, middle, color=color, marker=marker, markersize=3, label=system)
    ax.axhline(1, color=COLORS["muted"], linewidth=0.7, linestyle="--")
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(values))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.set_ylim(bottom=0)
    ax.set_xlabel(LABELS[axis])
    ax.set_ylabel("multiple of the twin's time")
    ax.legend()
