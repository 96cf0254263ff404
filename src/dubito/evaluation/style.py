"""The look of all figures: colours, settings of matplotlib, and files.

`STYLE` suits a column of a paper. Each of the `COLORS` means the same thing in every figure, and people with any colour
vision can tell them apart. `draw` makes a Figure without pyplot and its global state; `to_svg` and `to_png` give files.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLORS = {
    "ink": "#1f2328",
    "muted": "#6e7781",
    "grid": "#e3e6ea",
    "aleatoric": "#0072b2",
    "epistemic": "#dd8500",
    "right": "#009e73",
    "wrong": "#d55e00",
    "ood": "#a8589c",
    "entropy": "#3f9ad6",
    "mutual_information": "#7a5c1e",
    "confidence": "#57606a",
}
"""What each colour stands for, after Okabe and Ito's palette."""

DARK = {
    "ink": "#e6edf3",
    "muted": "#9aa4af",
    "grid": "#30363d",
    "aleatoric": "#58a9ee",
    "epistemic": "#f5b042",
    "right": "#2fc79c",
    "wrong": "#ff8345",
    "ood": "#dd9ad2",
    "entropy": "#8fcbf5",
    "mutual_information": "#cfab62",
    "confidence": "#b8c0c8",
}
"""The same on a dark page."""

STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "text.color": COLORS["ink"],
    "axes.labelcolor": COLORS["ink"],
    "axes.edgecolor": COLORS["muted"],
    "xtick.color": COLORS["muted"],
    "ytick.color": COLORS["muted"],
    "xtick.labelcolor": COLORS["ink"],
    "ytick.labelcolor": COLORS["ink"],
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLORS["grid"],
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 3.5,
    "patch.linewidth": 0.8,
    "svg.fonttype": "none",
    "figure.dpi": 100,
    "savefig.dpi": 300,
}
"""Settings of matplotlib for a figure one column wide, with text that stays text in SVG."""

COLUMN = (3.4, 2.45)
"""Inches: the width of a column in most two-column papers."""


def draw(painter: Callable[[Axes], object], size: tuple[float, float] = COLUMN) -> Figure:
    """A figure of `size` inches with one Axes in `STYLE`, which `painter` has drawn on."""
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        painter(figure.add_subplot())
        return figure


def to_png(figure: Figure) -> bytes:
    """The figure at 300 dots per inch on white."""
    with rc_context(STYLE):
        content = io.BytesIO()
        figure.savefig(content, format="png")
        return content.getvalue()


def to_svg(figure: Figure, name: str) -> str:
    """The figure as SVG, the same for the same data; `name` keeps its ids apart from those of other figures."""
    with rc_context({**STYLE, "svg.hashsalt": name, "svg.id": name}):
        content = io.BytesIO()
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": "dubito"})
        return content.getvalue().decode()


def inline_svg(svg: str, name: str, title: str) -> str:
    """SVG of `to_svg` for the inside of a page: scaled to its place, in colours that follow the page's theme.

    Each colour of `COLORS` becomes a CSS variable, `--ink` for ``ink``; the ids get `name` in front.
    """
    import html

    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", body)
    box = re.search(r'viewBox="([^"]+)"', body)
    assert box is not None  # matplotlib always writes one
    label = html.escape(title, quote=True)
    head = f'<svg viewBox="{box[1]}" role="img" aria-label="{label}" xmlns:xlink="http://www.w3.org/1999/xlink">'
    body = head + body[body.index(">") + 1 :]
    # The page shows through instead of a white background.
    body = re.sub(r'<g id="[^"]*patch_1">.*?</g>', "", body, count=1, flags=re.DOTALL)
    body = re.sub(r'(<g id="[^"]*axes_\d+">\s*)<g id="[^"]*patch_\d+">.*?</g>', r"\1", body, flags=re.DOTALL)
    for meaning, color in COLORS.items():
        body = body.replace(color, f"var(--{meaning.replace('_', '-')})")
    return body
