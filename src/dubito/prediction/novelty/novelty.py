"""Novelty: how unlike the training images an image is, measured in the features of the mean network."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dubito.errors import OptionError
from dubito.foreign import parse_json, read_tensors, reading
from dubito.heads import Head
from dubito.prediction.novelty.layers import Layer, Observed
from dubito.prediction.novelty.scores import NEIGHBOURS, Entropy, Neighbours, NeighboursAndEnergy, Score, restored

FORMAT = 2
"""Of what a file holds; novelty that an earlier dubito fitted was measured in another way, and does not count."""
FALSE_ALARM = 0.01
"""Share of familiar images that may be called unlike the training images, unless asked otherwise."""


@dataclass(frozen=True, eq=False)
class Novelty:
    """A fitted score with its distribution over held-out images.

    Attributes:
        score: from what the mean network made of images to numbers; larger is less familiar.
        layers: where it reads features.
        held_out: (N,) the score of held-out images, in ascending order.
        trial: a row for each score that was tried, the best first: `score`, `layers`, `mark`, and the `marks` of each
            kind of outliers.
        notes: facts about how it was fitted.
    """

    score: Score
    layers: tuple[Layer, ...]
    held_out: Tensor
    trial: tuple[Mapping[str, Any], ...] = ()
    notes: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """What the score is called."""
        return self.score.name

    def __call__(self, seen: Observed) -> Tensor:
        """(N,) the novelty of images."""
        with reading("The novelty", "fit it again for this network"):
            found = self.score(seen)
            if found.shape != (len(seen.outputs),):
                raise ValueError(f"{len(seen.outputs)} images have novelties of shape {tuple(found.shape)}")
            return found

    def percentile(self, novelty: Tensor) -> Tensor:
        """The share of held-out images with a smaller novelty; those with an equal one count half."""
        values = novelty.to(self.held_out)
        below = torch.searchsorted(self.held_out, values)
        until = torch.searchsorted(self.held_out, values, right=True)
        return (below + until) / (2 * len(self.held_out))

    def threshold(self, false_alarm: float = FALSE_ALARM) -> float:
        """The novelty above which an image counts as unlike the training images.

        Of images like the held-out ones, at most the share `false_alarm` lies above it on average (a conformal
        quantile); with too few held-out images for that, it is the largest of theirs.
        """
        if not 0 < false_alarm < 1:
            raise OptionError(f"false_alarm is {false_alarm}, but must lie between 0 and 1.")
        count = len(self.held_out)
        rank = min(count, math.ceil(round((count + 1) * (1 - false_alarm), 9)))
        return float(self.held_out[rank - 1])

    def describe(self) -> str:
        """One sentence: what the score is, and how it did beside entropy.

        >>> Novelty(Entropy(None), (), torch.zeros(9)).describe()
        'Novelty is the entropy: in the trial on held-out images no other score was better.'
        """
        if isinstance(self.score, Entropy):
            return "Novelty is the entropy: in the trial on held-out images no other score was better."
        where = f" at {_listed([f'the {layer}' for layer in self.layers])}" if self.layers else ""
        what = f"the {self.name}"
        if isinstance(self.score, Neighbours):
            what = f"the distance to the {NEIGHBOURS}th nearest training image"
        more = ", or the energy if that is more unusual" if isinstance(self.score, NeighboursAndEnergy) else ""
        rows = {row["score"]: row["mark"] for row in reversed(self.trial)}
        marks = (
            f"; in the trial on held-out images its score was {rows[self.name]:.2f}, that of entropy "
            f"{rows['entropy']:.2f}"
            if rows
            else ""
        )
        return f"Novelty is {what}{where}{more}{marks}."

    def to_bytes(self) -> bytes:
        """The content of a safetensors file."""
        from safetensors.torch import save

        notes = {
            "format": FORMAT,
            "score": self.name,
            "layers": [asdict(layer) for layer in self.layers],
            "trial": list(self.trial),
            "notes": dict(self.notes or {}),
        }
        tensors = {f"score.{key}": tensor for key, tensor in self.score.tensors().items()}
        whole = {key: t.detach().cpu().contiguous() for key, t in {**tensors, "held_out": self.held_out}.items()}
        return save(whole, {"notes": json.dumps(notes)})

    def belongs_to(self, weights: str) -> bool:
        """Whether it was fitted to these weights."""
        return (self.notes or {}).get("weights") == weights

    @staticmethod
    def load(file: str | os.PathLike[str], head: Head) -> Novelty | None:
        """What :meth:`to_bytes` gave, from its file; `head` is that of the network. None of an earlier format."""
        with reading(file, "remove it, or fit the novelty again"):
            tensors, text = read_tensors(Path(file))
            notes = parse_json(text)
            if notes.get("format") != FORMAT:
                return None
            spoilt = [key for key, t in tensors.items() if not t.is_floating_point() or not bool(t.isfinite().all())]
            if spoilt or tensors["held_out"].dim() != 1 or not len(tensors["held_out"]):
                raise ValueError(f"{(*spoilt, 'held_out')[0]} has no finite values")
            own = {key.removeprefix("score."): t for key, t in tensors.items() if key.startswith("score.")}
            layers = tuple(Layer(**layer) for layer in notes["layers"])
            score = restored(notes["score"], own, head)
            held_out = tensors["held_out"].float().sort().values
            found = Novelty(score, layers, held_out, tuple(notes["trial"]), dict(notes["notes"]))
            found.describe()  # it reads the trial
            return found


def _listed(names: Sequence[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))


def rows(tried: Sequence[tuple[Score, tuple[Layer, ...], Mapping[str, float]]]) -> tuple[Mapping[str, Any], ...]:
    """The trial as a table, the best first."""
    ordered = sorted(tried, key=lambda entry: -sum(entry[2].values()))
    return tuple(
        {
            "score": score.name,
            "layers": [str(layer) for layer in layers],
            "mark": round(sum(marks.values()) / len(marks), 4),
            "marks": {kind: round(mark, 4) for kind, mark in marks.items()},
        }
        for score, layers, marks in ordered
    )
