"""What every engine does: predict many batches with one predictor.

A predictor is a pure function of the image, so an engine may cut, order and spread the batches as it likes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from torch import Tensor

from dubito.prediction import Prediction, Predictor

__all__ = ["Engine"]


class Engine(ABC):
    """Carries a predictor over many images.

    Attributes:
        name: what it is called on the command line.
    """

    name: ClassVar[str]

    @abstractmethod
    def predict(self, predictor: Predictor, batches: Iterable[Tensor]) -> Prediction | None:
        """The prediction of all batches, in their order, on the CPU; None if there are none."""
