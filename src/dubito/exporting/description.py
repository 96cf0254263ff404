"""What an exported file says about itself: JSON, which is checked when it is read, as anybody may have written it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from typing import Any

from dubito import __version__
from dubito.decisions import DECISIONS, Rule
from dubito.errors import DataError
from dubito.foreign import FAULTS, parse_json, reason_of
from dubito.heads import HEADS
from dubito.runs.description import DataDescription

KEY = "dubito"
"""The name of the JSON in an ONNX file's metadata; in a .pt2 it is the file KEY.json."""
FORMAT = 1
FITTED = ("novelty", "decision", "conformal")
"""The outputs that a graph has where they were fitted, after those of every graph, in this order."""


class What(str, Enum):
    """Which prediction of a network is exported."""

    DRAWS = "draws"
    MOMENTS = "moments"
    MEAN = "mean"


@dataclass(frozen=True)
class Description:
    """What an exported file says about itself.

    Attributes:
        what: ``draws``, ``moments`` or ``mean``.
        head: how outputs became probabilities; the graph does it.
        data: class names, and how to read an image file: as (channels, size, size) bytes. The graph normalises them.
        samples: draws in the graph, with ``draws``.
        rule: the decision rule, if one was fitted.
        temperature: by which the probabilities are calibrated; None if they are not.
        fitted: which outputs the graph has besides those of every graph: novelty, decision, conformal.
        novelty: how novelty is measured, in a sentence.
        coverage: how often a conformal set is to hold the true class.
        version: of dubito.
    """

    what: What
    head: str
    data: DataDescription
    samples: int | None = None
    rule: Rule | None = None
    temperature: float | None = None
    fitted: tuple[str, ...] = ()
    novelty: str | None = None
    coverage: float | None = None
    version: str = __version__

    def to_json(self) -> str:
        """The description as JSON."""
        rule = None if self.rule is None else json.loads(self.rule.to_json())
        own = {"format": FORMAT, **asdict(replace(self, rule=None)), "rule": rule, "decisions": DECISIONS}
        return json.dumps(own, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Description:
        """Read a description; a DataError says what is wrong with it."""
        try:
            content = parse_json(text)
            if content["format"] != FORMAT:
                raise DataError(
                    f"its description has format {content['format']!r}, but this dubito reads {FORMAT}: export it again"
                )
            # Earlier files do not have these.
            content = {"temperature": None, "fitted": (), "novelty": None, "coverage": None} | content
            own = {field.name: content[field.name] for field in fields(cls) if field.name != "rule"}
            if content.get("rule") is not None:
                own["rule"] = Rule.from_json(json.dumps(content["rule"]))
            own |= {"what": What(own["what"]), "data": DataDescription.of(own["data"]), "fitted": tuple(own["fitted"])}
            description = cls(**own)
        except DataError:
            raise
        except FAULTS as error:
            raise DataError(f"its description is damaged ({reason_of(error)})") from None
        wrong = description.mistake()
        if wrong:
            raise DataError(f"its description is damaged ({wrong} makes no sense)")
        return description

    def mistake(self) -> str | None:
        """The name of the first field that is not valid, or None."""
        sound: dict[str, bool] = {
            "version": isinstance(self.version, str),
            "head": isinstance(self.head, str) and self.head in HEADS,
            "samples": self.samples is None or _is_count(self.samples),
            "temperature": self.temperature is None or _is_positive(self.temperature),
            "fitted": self.fitted == tuple(name for name in FITTED if name in self.fitted),
            "coverage": self.coverage is None or _is_positive(self.coverage),
            "novelty": self.novelty is None or isinstance(self.novelty, str),
        }
        return next((name for name, holds in sound.items() if not holds), None)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0
