"""A rule: what to do with a prediction, what that promises, and why an image was not accepted; and that of a run."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dubito.class_names import check_class_names
from dubito.decisions.causes import Causes
from dubito.decisions.scores import Predicted, as_labels, as_prediction, has, score
from dubito.decisions.words import percent, promise
from dubito.errors import DataError, DubitoWarning, OptionError, ShapeError
from dubito.files import write_atomically
from dubito.foreign import FAULTS, parse_json, read_text, reason_of
from dubito.heads.split import Prediction
from dubito.scores import DRAWN, SCORES

if TYPE_CHECKING:
    from dubito.runs.run import Run

ACCEPT = "accept"
"""Take the prediction as it is."""
REVIEW = "review"
"""Show the image to a person."""
UNFAMILIAR = "unfamiliar"
"""Refuse the image: it is unlike the training images."""
DECISIONS = (ACCEPT, REVIEW, UNFAMILIAR)
"""What a rule can say of an image."""
FILE = "decision.json"
"""The name of a rule's file in a run folder."""
FORMAT = 1
METHOD = "weights"
"""How the validation images are predicted; other methods have other uncertainties, so the rule is not for them."""

CERTAIN = "certain enough"
UNPROMISED = "no promise can be kept for this class"
UNLIKE = "unlike the training images"

GOALS = ("max_error", "review", "min_coverage", "cost")


class Measured(NamedTuple):
    """What a rule did with labelled images.

    Attributes:
        images: how many there were.
        accepted, reviewed, refused: how many of them, the last as unfamiliar.
        wrong: how many of the accepted ones have a wrong label.
    """

    images: int
    accepted: int
    reviewed: int
    refused: int
    wrong: int

    @property
    def coverage(self) -> float:
        """The share of accepted images."""
        return self.accepted / max(self.images, 1)

    @property
    def error(self) -> float | None:
        """The share of wrong ones among accepted images; None without any."""
        return self.wrong / self.accepted if self.accepted else None


@dataclass(frozen=True)
class Rule:
    """Accepts a prediction whose score is at most a threshold, and refuses images that are too unfamiliar.

    Made by :func:`dubito.decisions.fit`. A promise holds for images that come from where the validation images came
    from, predicted in the same way.

    Attributes:
        goal: what the rule was fitted for: ``max_error``, ``review``, ``min_coverage`` or ``cost``.
        target: the value asked for; of ``cost``, how many reviews a wrong image costs.
        confidence: how sure the promise is.
        score: the name of the score, one of `SCORES`.
        thresholds: images with at most this score are accepted; one for all, or one for each predicted class.
        error_bounds: for each threshold, the error among accepted images is at most this; None without a promise.
        measured: what the rule did with those validation images that prove its promise.
        images: how many validation images there were.
        false_alarm: the share of familiar images that may be refused as unfamiliar; None if none is refused.
        novelty_threshold: images with more novelty are refused.
        causes: what tells an ambiguous image from one about which the draws disagree.
        class_names: of the classes, if known.
        origin: how the predictions were made, if known.
    """

    goal: str
    target: float
    confidence: float
    score: str
    thresholds: tuple[float, ...]
    error_bounds: tuple[float | None, ...]
    measured: Measured
    images: int
    false_alarm: float | None = None
    novelty_threshold: float | None = None
    causes: Causes | None = None
    class_names: tuple[str, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, predicted: Predicted) -> NDArray[np.str_]:
        """(N,) ``accept``, ``review`` or ``unfamiliar`` for each image."""
        prediction = as_prediction(predicted)
        accepted = score(prediction, self.score) <= self._threshold_of(prediction)  # NaN is not accepted
        decisions = np.where(accepted, ACCEPT, REVIEW).astype("<U10")
        decisions[self._unfamiliar(prediction)] = UNFAMILIAR
        return decisions

    @property
    def refuses(self) -> bool:
        """Whether it refuses images as unfamiliar."""
        return self.novelty_threshold is not None

    @property
    def needs_novelty(self) -> bool:
        """Whether it looks at the novelty of images."""
        return self.novelty_threshold is not None or self.score == "novelty"

    def suits(self, prediction: Prediction) -> bool:
        """Whether a prediction has the scores that the rule needs."""
        return (not self.needs_novelty or prediction.novelty is not None) and has(prediction, self.score)

    def can_decide(self, samples: int) -> bool:
        """Whether so many draws are enough for its score."""
        return samples > 1 or self.score not in DRAWN

    def warning(self, samples: int, exact: bool = False) -> str:
        """What to know about its decisions on predictions by so many draws; nothing if they are enough.

        Predictions that are `exact`, not random, have no number of draws that more would improve.
        """
        if not self.can_decide(samples):
            score = self.score.replace("_", " ")
            return f"There are no decisions: the rule goes by {score}, which takes at least 2 draws, not {samples}."
        fitted = self.origin.get("samples")
        if exact or not isinstance(fitted, int) or samples >= fitted:
            return ""
        return (
            f"The rule was fitted to predictions by {fitted} draws; by {samples}, more of the accepted images can be "
            "wrong than it promises."
        )

    def reasons(self, predicted: Predicted) -> NDArray[np.str_]:
        """(N,) why each image has its decision, in a few words."""
        prediction = as_prediction(predicted)
        return self._reasons(prediction, self(prediction))

    def apply(self, prediction: Prediction) -> Prediction:
        """The same prediction with `decision` and `reason`."""
        decisions = self(prediction)
        return replace(prediction, decision=decisions, reason=self._reasons(prediction, decisions))

    def measure(self, predicted: Predicted, labels: Any) -> Measured:
        """What the rule does with labelled images."""
        prediction = as_prediction(predicted)
        decisions = self(prediction)
        accepted = decisions == ACCEPT
        wrong = prediction.label.cpu().numpy() != as_labels(prediction, labels)
        counts = (len(decisions), accepted, decisions == REVIEW, decisions == UNFAMILIAR, accepted & wrong)
        return Measured(*(int(np.sum(count)) for count in counts))

    @property
    def per_class(self) -> bool:
        """Whether every predicted class has a threshold of its own."""
        return len(self.thresholds) > 1

    @property
    def coverage(self) -> float:
        """The share of images that the rule accepts, as measured on validation images."""
        return self.measured.coverage

    @property
    def error_bound(self) -> float | None:
        """The error among accepted images is at most this, with `confidence`; of several classes, the largest bound."""
        bounds = [bound for bound in self.error_bounds if bound is not None]
        return max(bounds, default=None)

    def describe(self) -> str:
        """What the rule does and promises, in one plain sentence."""
        images = max(self.measured.images, 1)
        review, refuse = percent(self.measured.reviewed / images), percent(self.measured.refused / images)
        if self.novelty_threshold is not None:
            begin = f"Refuse {refuse} of images as unfamiliar and review {review}; of the rest "
        else:
            begin = (
                f"Review {review} of images; of the rest " if self.measured.reviewed else "Accept every image; of them "
            )
        return begin + f"{self._promised()}{self._always_reviewed()}."

    def _promised(self) -> str:
        if self.goal == "cost":
            error = self.measured.error
            found = "none was accepted" if error is None else f"{percent(error)} were wrong on the validation images"
            return f"{found} (least cost if a mistake costs {self.target:g} reviews; without a promise)"
        if self.error_bound is None:
            return "nothing can be promised"
        least = ""
        if self.goal == "min_coverage":
            those = "the familiar images" if self.refuses else "images"
            least = f", and at least {percent(self.target)} of {those} are accepted"
        within = " within each class" if self.per_class else ""
        each = " for each class" if self.per_class else ""
        return f"{promise(self.error_bound)} wrong{least}{within} ({percent(self.confidence)} sure{each})"

    def _always_reviewed(self) -> str:
        if not self.per_class or self.goal != "max_error":
            return ""
        names = [self._class_name(index) for index, value in enumerate(self.thresholds) if value == -math.inf]
        listed = " or ".join(", ".join(names).rsplit(", ", 1))
        return f"; what is predicted as {listed} is always reviewed" if names else ""

    def _class_name(self, index: int) -> str:
        return self.class_names[index] if index < len(self.class_names) else f"class {index}"

    def _threshold_of(self, prediction: Prediction) -> NDArray[np.float64]:
        thresholds = np.asarray(self.thresholds)
        if not self.per_class:
            return thresholds
        if prediction.probs.shape[1] != len(thresholds):
            raise ShapeError(
                f"The prediction has {prediction.probs.shape[1]} classes, but the rule is for {len(thresholds)}."
            )
        return thresholds[prediction.label.cpu().numpy()]

    def _unfamiliar(self, prediction: Prediction) -> NDArray[np.bool_]:
        if self.novelty_threshold is None:
            return np.zeros(len(prediction), bool)
        if prediction.novelty is None:
            raise OptionError(
                "The rule refuses unfamiliar images, but the prediction has no novelty: use a predictor that has it, "
                "or fit a rule without false_alarm."
            )
        return prediction.novelty.detach().cpu().double().numpy() > self.novelty_threshold

    def _reasons(self, prediction: Prediction, decisions: NDArray[np.str_]) -> NDArray[np.str_]:
        doubts = self.causes.name(prediction) if self.causes else np.full(len(decisions), "uncertain")
        unpromised = np.broadcast_to(self._threshold_of(prediction) == -math.inf, decisions.shape)
        doubts = np.where(unpromised, UNPROMISED, doubts)
        return np.select([decisions == ACCEPT, decisions == UNFAMILIAR], [CERTAIN, UNLIKE], doubts)

    def to_json(self) -> str:
        """The rule as JSON; infinite thresholds are the strings "inf" and "-inf"."""
        content = {**asdict(self), "measured": self.measured._asdict()}
        content["thresholds"] = [value if math.isfinite(value) else str(value) for value in self.thresholds]
        described = {"format": FORMAT, "sentence": self.describe()}
        return json.dumps(described | content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Rule:
        """Read what `to_json` wrote; a DataError says what is wrong with it."""
        try:
            content = parse_json(text)
            if content["format"] != FORMAT:
                raise ValueError(f"its format is {content['format']!r}, but this dubito reads {FORMAT}")
            given = {one.name: content[one.name] for one in fields(cls)}
            given["measured"] = Measured(**{name: int(value) for name, value in given["measured"].items()})
            given["thresholds"] = tuple(float(value) for value in given["thresholds"])
            given["error_bounds"] = tuple(None if value is None else float(value) for value in given["error_bounds"])
            given["class_names"] = given["class_names"] and check_class_names(given["class_names"])
            given["class_names"] = tuple(given["class_names"])
            given["causes"] = given["causes"] and Causes.of(given["causes"])
            rule = cls(**given)
            rule._check()
            rule.describe()  # it reads what was measured
            return rule
        except FAULTS as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else reason_of(error)
            raise DataError(f"The rule is damaged: {reason}; fit it again.") from None

    def _check(self) -> None:
        """A ValueError if a field makes no sense."""
        shares = [self.confidence, self.false_alarm, *self.error_bounds]
        sound = {
            "goal": self.goal in GOALS,
            "score": self.score in SCORES,
            "thresholds": len(self.thresholds) > 0 and not any(map(math.isnan, self.thresholds)),
            "error_bounds": len(self.error_bounds) == len(self.thresholds),
            "confidence": all(value is None or 0 <= float(value) <= 1 for value in shares),
            "novelty_threshold": self.novelty_threshold is None or math.isfinite(self.novelty_threshold),
            "target": math.isfinite(self.target),
            "images": isinstance(self.images, int) and min(self.measured) >= 0,
            "origin": isinstance(self.origin, Mapping),
        }
        for name, holds in sound.items():
            if not holds:
                raise ValueError(f"its {name} makes no sense")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the rule as a JSON file, atomically."""
        write_atomically(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Rule:
        """Read a rule that `save` wrote."""
        try:
            return cls.from_json(read_text(Path(path)))
        except FileNotFoundError:
            raise DataError(f"There is no rule {path}; `dubito decide RUN` makes one.") from None
        except DataError as error:
            raise DataError(f"{path} cannot be used. {error}") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be used: {reason_of(error)}.") from None


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
