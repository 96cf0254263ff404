"""Estimators by name, and switching a whole network to one. A new estimator is a file and a line in `ESTIMATORS`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from dubito.errors import OptionError, unknown
from dubito.estimators.base import Estimator
from dubito.estimators.flipout import Flipout
from dubito.estimators.in_force import forced
from dubito.estimators.local import Local
from dubito.estimators.mean import Mean
from dubito.estimators.weight import Weight

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


@contextmanager
def estimator(module: nn.Module, given: str | Estimator | None, **options: Any) -> Iterator[None]:
    """A context in which all Bayesian layers inside `module` use this estimator, in training and in evaluation mode.

    None means each module's own estimator, so a network in evaluation mode draws too. At the end, also after an
    exception, the previous estimator is back.

    >>> import torch
    >>> import dubito
    >>> layer, x = dubito.BayesLinear(3, 2), torch.ones(1, 3)
    >>> with dubito.estimator(layer, "mean"):
    ...     torch.equal(layer(x), layer(x))
    True
    """
    with forced(module, None if given is None else make_estimator(given, **options)):
        yield
