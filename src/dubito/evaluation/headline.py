"""The head of a report: what was trained, and the few numbers that matter with a plain sentence on each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dubito.decisions.words import percent as in_words
from dubito.evaluation.chance import about_chance
from dubito.evaluation.evaluation import Evaluation

MODELS = {"lenet5": "LeNet-5", "alexnet": "AlexNet", "vgg16": "VGG16"}
KINDS = {"vi": "Bayesian", "frequentist": "Frequentist", "dropout": "MC dropout"}


@dataclass(frozen=True)
class Card:
    """A number that matters, with a sentence on what it means."""

    label: str
    value: str
    interval: str
    meaning: str


def title_and_lead(evaluation: Evaluation, network: nn.Module | None = None) -> tuple[str, str]:
    """What was trained and tested: a title, and a line below it."""
    draws = evaluation.test.prediction.samples
    once = "one pass" if draws == 1 else f"{draws} draws"
    tested = (
        f"Tested on {len(evaluation.test):,} images that were not used in training, with {once} of "
        "the weights for each."
    )
    if not evaluation.runs:
        title = "A predictor" if network is None else type(network).__name__
        return f"{title} for {len(evaluation.class_names)} classes", tested
    run = evaluation.members[0]
    config, rows = run.config, run.metrics()
    data = Path(config.data).stem if config.data.endswith(".npz") else Path(config.data).name
    kind, model = KINDS[config.inference], MODELS.get(config.model, config.model)
    title = f"{kind} {model} on {data}"
    if len(evaluation.members) > 1:
        title = f"Ensemble of {len(evaluation.members)}: {title}"
    facts = [
        f"Trained on {run.data.num_data:,} images of {len(evaluation.class_names)} classes",
        f"{len(rows)} of {config.epochs} epochs" if len(rows) != config.epochs else f"{config.epochs} epochs",
    ]
    if config.inference == "vi":
        facts += [f"prior {config.prior}", f"temperature {config.temperature:g} of the KL term"]
    facts.append(f"seed {config.seed}")
    return title, f"{', '.join(facts)}. {tested}"


def leaning(confidence: float, accuracy: tuple[float, float]) -> str:
    """What mean confidence says beside the interval of accuracy.

    >>> leaning(0.98, (0.95, 0.97)), leaning(0.96, (0.95, 0.97)), leaning(0.9, (0.95, 0.97))
    ('too sure', 'as sure as it should be', 'too modest')
    """
    low, high = accuracy
    return "as sure as it should be" if low <= confidence <= high else "too sure" if confidence > high else "too modest"


def cards(evaluation: Evaluation) -> list[Card]:
    """The numbers that matter."""
    metrics = evaluation.metrics
    intervals = metrics["intervals"]
    accuracy, nll, ece = metrics["accuracy"], metrics["nll"], metrics["ece"]
    confidence = float(evaluation.test.prediction.confidence.double().mean())
    first = [
        Card(
            "Accuracy",
            percent(accuracy),
            _between(intervals["accuracy"], percent),
            f"The network names the right class for about {100 * accuracy:.0f} of 100 test images.",
        ),
        Card(
            "Negative log-likelihood",
            f"{nll:.3f}",
            _between(intervals["nll"], "{:.3f}".format),
            f"The true class typically gets a probability of {math.exp(-nll):.2f} (geometric mean).",
        ),
        Card(
            "Calibration error",
            percent(ece),
            _between(intervals["ece"], percent),
            f"The confidence is off by {100 * ece:.1f} percentage points on average. Overall the network "
            f"is {leaning(confidence, intervals['accuracy'])} ({percent(confidence)} sure, "
            f"{percent(accuracy)} right).",
        ),
    ]
    return [*first, *_doubt_cards(evaluation), *_conformal_card(evaluation)]


def _doubt_cards(evaluation: Evaluation) -> Iterable[Card]:
    from dubito.evaluation.illustrations import other_names

    metrics = evaluation.metrics
    name, found = _best(metrics["errors"])
    if name:
        yield Card(
            "Finding mistakes (AUROC)",
            f"{found['auroc']:.3f}",
            _between(found["auroc_interval"], "{:.3f}".format),
            f"Given a wrong and a right prediction, {_spoken(name)} picks out the wrong one {100 * found['auroc']:.0f} "
            f"times in 100; chance would be 50. {about_chance(metrics['errors'])}".strip(),
        )
    for other, shown in other_names(evaluation).items():
        name, found = _best(metrics["ood"][other])
        if name:
            yield Card(
                f"Recognising {shown} as other images (AUROC)",
                f"{found['auroc']:.3f}",
                _between(found["auroc_interval"], "{:.3f}".format),
                f"Given an image of {shown} and a test image, {_spoken(name)} picks out the one of {shown} "
                f"{100 * found['auroc']:.0f} times in 100.",
            )


def _conformal_card(evaluation: Evaluation) -> Iterable[Card]:
    found = evaluation.metrics["conformal"]
    if found:
        lac = found["lac"]
        empty = f"; {percent(lac['empty'])} of them are empty" if lac["empty"] > 0 else ""
        yield Card(
            "Conformal coverage",
            percent(lac["coverage"]),
            f"{percent(found['requested'])} requested",
            f"Sets of {lac['mean_size']:.2f} classes on average contain the true class this often{empty}.",
        )


def _best(scores: dict[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """The uncertainty with the highest AUROC; none if there was nothing to find."""
    known = {name: found for name, found in scores.items() if found["auroc"] is not None}
    name = max(known, key=lambda key: known[key]["auroc"], default="")
    return name, known.get(name, {})


def percent(value: float) -> str:
    """A share as people read it; nothing below 1 is rounded to 100 %.

    >>> percent(0.987), percent(0.9996), percent(1.0)
    ('98.7 %', '99.96 %', '100.0 %')
    """
    return in_words(value) if 0.9995 <= value < 1 else f"{100 * value:.1f} %"


def exact_percent(value: float) -> str:
    """A share that may be small, with two digits that count, but no more than three after the point.

    >>> exact_percent(0.123), exact_percent(0.00987), exact_percent(0.00004), exact_percent(0.0)
    ('12.3 %', '0.99 %', '0.004 %', '0 %')
    """
    if value == 0:
        return "0 %"
    digits = 1 if value >= 0.1 else 2 if value >= 0.001 else 3
    return f"{100 * value:.{digits}f} %"


def _between(interval: Sequence[float | None] | None, form: Any) -> str:
    if interval is None or None in interval:
        return ""
    low, high = interval
    return f"{form(low).removesuffix(' %')} to {form(high)}"


def _spoken(name: str) -> str:
    return {
        "aleatoric": "aleatoric uncertainty",
        "epistemic": "epistemic uncertainty",
        "entropy": "the entropy",
        "mutual_information": "mutual information",
        "confidence": "lack of confidence",
    }.get(name, name)
