"""The engine ``local``: this process, one batch after the other."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from dubito.engines.base import Engine
from dubito.prediction import Prediction, Predictor

__all__ = ["LocalEngine"]


class LocalEngine(Engine):
    """Predicts in this process."""

    name = "local"

    def predict(self, predictor: Predictor, batches: Iterable[Tensor]) -> Prediction | None:
        """One batch after the other."""
        parts: list[Prediction] = [predictor(batch).to("cpu") for batch in batches]
        return Prediction.cat(parts) if parts else None
