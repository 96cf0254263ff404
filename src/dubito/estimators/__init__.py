"""Estimators: how a posterior and an input become an output in training. Each is a page.

A new estimator is a file here and a line in `ESTIMATORS`.
"""

from __future__ import annotations

from typing import Any

from dubito.errors import OptionError, unknown
from dubito.estimators.base import Estimator
from dubito.estimators.flipout import Flipout
from dubito.estimators.local import Local
from dubito.estimators.mean import Mean
from dubito.estimators.weight import Weight

__all__ = ["ESTIMATORS", "Estimator", "Flipout", "Local", "Mean", "Weight", "make_estimator"]

ESTIMATORS: dict[str, type[Estimator]] = {kind.name: kind for kind in (Local, Weight, Flipout, Mean)}


def make_estimator(given: str | Estimator, **options: Any) -> Estimator:
    """The estimator of that name with these options, or the estimator itself.

    >>> make_estimator("weight", draws=4, antithetic=True)
    Weight(draws=4, antithetic=True)
    """
    if isinstance(given, Estimator):
        if options:
            raise OptionError(
                f"The estimator {given} is already complete, so {', '.join(options)} cannot be given with it."
            )
        return given
    if not isinstance(given, str) or given not in ESTIMATORS:
        raise OptionError(unknown("estimator", given, ESTIMATORS))
    try:
        return ESTIMATORS[given](**options)
    except TypeError:
        raise OptionError(f"The {given} estimator has no option {options}.") from None
