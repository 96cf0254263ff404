"""The families of posteriors, by name. A new one is a file here and a line in `FAMILIES`."""

from __future__ import annotations

from dubito.errors import OptionError, unknown
from dubito.variational.families.alpha import AlphaPosterior
from dubito.variational.families.low_rank import LowRankPosterior
from dubito.variational.families.std import StdPosterior
from dubito.variational.posterior import Posterior

__all__ = ["FAMILIES", "AlphaPosterior", "LowRankPosterior", "StdPosterior", "family"]

FAMILIES: dict[str, type[Posterior]] = {kind.name: kind for kind in (StdPosterior, AlphaPosterior, LowRankPosterior)}


def family(given: str | type[Posterior]) -> type[Posterior]:
    """The family of that name, or the family itself.

    >>> family("alpha").__name__
    'AlphaPosterior'
    """
    if isinstance(given, type) and issubclass(given, Posterior):
        return given
    if not isinstance(given, str) or given not in FAMILIES:
        raise OptionError(unknown("posterior", given, FAMILIES))
    return FAMILIES[given]
