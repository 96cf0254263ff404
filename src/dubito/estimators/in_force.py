"""Which estimator is in force in a module that draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from dubito.estimators.base import Estimator
from dubito.estimators.mean import Mean

_EVALUATION = Mean()


class DrawingModule(nn.Module):
    """A module with posteriors and an estimator; what all modules that draw have in common.

    Attributes:
        estimator: in force in training mode; evaluation mode uses the mean.
        forced_estimator: in force in both modes while it is set.
    """

    estimator: Estimator
    forced_estimator: Estimator | None = None

    def active_estimator(self) -> Estimator:
        """The estimator in force."""
        if self.forced_estimator is not None:
            return self.forced_estimator
        return self.estimator if self.training else _EVALUATION

    def __getstate__(self) -> dict[str, object]:
        """For copies and files, which have no part in what is in force only for now."""
        return {name: value for name, value in self.__dict__.items() if name != "forced_estimator"}


def drawing_modules(module: nn.Module) -> list[DrawingModule]:
    """The modules below `module` that draw."""
    return [part for part in module.modules() if isinstance(part, DrawingModule)]


@contextmanager
def forced(module: nn.Module, chosen: Estimator | None) -> Iterator[None]:
    """Inside, everything below `module` that draws uses this estimator; None stands for each module's own."""
    parts = drawing_modules(module)
    before = [part.forced_estimator for part in parts]
    try:
        for part in parts:
            part.forced_estimator = part.estimator if chosen is None else chosen
        yield
    finally:
        for part, previous in zip(parts, before, strict=True):
            part.forced_estimator = previous
