"""Why an image is in doubt: it is ambiguous itself, or the draws of the network disagree about it.

Aleatoric and epistemic uncertainty have different scales, so each is compared with what validation images have: the
cause is the one that is rarer among them, the one whose value fewer validation images exceed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dubito.heads.split import Prediction

AMBIGUOUS = "ambiguous"
UNDECIDED = "undecided: the draws disagree"
POINTS = 64


@dataclass(frozen=True)
class Causes:
    """How large both uncertainties are on validation images.

    Attributes:
        tails: shares of validation images, descending from 1.
        aleatoric, epistemic: the value that such a share of them exceeds or has; both ascend.
    """

    tails: tuple[float, ...]
    aleatoric: tuple[float, ...]
    epistemic: tuple[float, ...]

    @classmethod
    def fit(cls, prediction: Prediction) -> Causes | None:
        """From validation images; None for a prediction of one draw, which has no epistemic uncertainty."""
        if prediction.samples < 2:
            return None
        tails = np.geomspace(1.0, 1.0 / len(prediction), POINTS)
        both = (value.detach().cpu().double().numpy() for value in (prediction.aleatoric, prediction.epistemic))
        aleatoric, epistemic = (tuple(np.quantile(values, 1 - tails).tolist()) for values in both)
        return cls(tuple(tails.tolist()), aleatoric, epistemic)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Causes:
        """From what JSON holds."""
        tails, aleatoric, epistemic = (
            tuple(float(value) for value in content[name]) for name in ("tails", "aleatoric", "epistemic")
        )
        if not 0 < len(tails) == len(aleatoric) == len(epistemic):
            raise ValueError("its causes have different lengths")
        return cls(tails, aleatoric, epistemic)

    def name(self, prediction: Prediction) -> NDArray[np.str_]:
        """(N,) the likelier cause of each image's doubt."""
        aleatoric, epistemic = (
            self._rarity(value.detach().cpu().double().numpy(), known)
            for value, known in ((prediction.aleatoric, self.aleatoric), (prediction.epistemic, self.epistemic))
        )
        return np.where(epistemic > aleatoric, UNDECIDED, AMBIGUOUS)

    def _rarity(self, values: NDArray[np.float64], known: tuple[float, ...]) -> NDArray[np.float64]:
        """-log of the share of validation images with at least this value; beyond them, in proportion."""
        inside = np.interp(values, known, -np.log(self.tails))
        return inside + np.maximum(values / max(known[-1], 1e-300) - 1, 0)
