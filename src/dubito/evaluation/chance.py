"""Which uncertainties find mistakes no better than chance, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def about_chance(errors: Mapping[str, Mapping[str, Any]]) -> str:
    """Names each uncertainty whose interval of AUROC does not lie above one half; empty if there is none.

    `errors` is what metrics hold of finding mistakes. An uncertainty without an interval, for want of mistakes, is not
    judged.

    >>> about_chance({"epistemic": {"auroc": 0.486, "auroc_interval": [0.441, 0.53]}})
    'No better than chance at finding mistakes: epistemic (AUROC 0.486, 95 % interval 0.441 to 0.530).'
    >>> about_chance({"entropy": {"auroc": 0.9, "auroc_interval": [0.8, 0.95]}})
    ''
    """
    named = []
    for name, found in errors.items():
        low, high = found["auroc_interval"]
        if found["auroc"] is not None and low is not None and high is not None and low <= 0.5:
            words = name.replace("_", " ")
            named.append(f"{words} (AUROC {found['auroc']:.3f}, 95 % interval {low:.3f} to {high:.3f})")
    return f"No better than chance at finding mistakes: {', '.join(named)}." if named else ""
