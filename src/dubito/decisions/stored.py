"""The rule of a run folder: decision.json, which belongs to the weights and the method that it was fitted to."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from dubito.decisions.rule import FILE, Rule
from dubito.errors import DubitoWarning

if TYPE_CHECKING:
    from dubito.runs.run import Run

METHOD = "weights"
"""How the validation images are predicted; other methods have other uncertainties, so the rule is not for them."""


def find_rule(run: Run, method: str = METHOD, checkpoint: str = "best") -> Rule | None:
    """The rule that a run has for these weights and this method; None if there is none.

    A rule for other weights (the run was trained further) or for another novelty is ignored, with a warning.
    """
    file = run.path / FILE
    if method != METHOD or checkpoint != "best" or not file.exists():
        return None
    rule = Rule.load(file)
    changed = run.changed_since({"weights": None, **rule.origin}, checkpoint)
    if not changed:
        return rule
    what = "other weights" if "weights" in changed else "another novelty"
    warnings.warn(
        f"{file} was fitted to {what}, so there are no decisions; run `dubito decide {run.path}` again.",
        DubitoWarning,
        stacklevel=2,
    )
    return None
