"""From a prediction to JSON: probabilities, uncertainties, their percentiles, and a verdict in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from dubito.decisions import REVIEW
from dubito.evaluation.calibration import NO_CLASS
from dubito.prediction import Prediction
from dubito.prediction.calibrated import calibrate
from dubito.serving.batching import Predicted
from dubito.serving.model import ServedModel
from dubito.serving.request import Options
from dubito.serving.validation import Usual

SENTENCES = {
    "sure": "Neither uncertainty is unusual. The answer can still be wrong.",
    "reviewed": "Neither uncertainty is unusual, but the answer is not certain enough for the rule.",
    "ambiguous": "The image itself is ambiguous.",
    "undecided": "The model is unsure: its draws disagree about this image.",
    "both": "The image itself is ambiguous, and the draws of the model disagree about it.",
    "unfamiliar": "The image is unlike the training images, so the answer means little.",
    "undrawn": "The image is not unusually ambiguous. With a single draw it is not known whether draws would disagree.",
    "unknown": "There are no validation images to compare with, so it is not known whether this uncertainty "
    "is unusual.",
}
_MEASURES = ("confidence", "aleatoric", "epistemic", "entropy", "mutual_information")
_DIGITS = 7
"""What single precision holds."""


def predictions(
    model: ServedModel, usual: Usual | None, options: Options, predicted: Predicted
) -> list[dict[str, Any]]:
    """An answer for each image."""
    prediction, names = predicted.prediction, model.class_names
    sets = _conformal(usual, options, prediction, names)
    if usual is not None and options.calibrated:
        prediction = calibrate(prediction, usual.calibration.temperature)
    of_probabilities = model.head.unit == "probability"
    probs = [_rounded(row) for row in prediction.probs.tolist()]
    labels = prediction.label.tolist()
    measures = {name: _rounded(getattr(prediction, name).tolist()) for name in _MEASURES}
    familiar = model.novelty
    answers: list[dict[str, Any]] = []
    for number, label in enumerate(labels):
        answer: dict[str, Any] = {
            "label": names[label],
            "index": label,
            "confidence": measures["confidence"][number],
            "probabilities": dict(zip(names, probs[number], strict=True)),
        }
        answer |= {name: measures[name][number] for name in _MEASURES[1:]}
        aleatoric, epistemic = answer["aleatoric"], answer["epistemic"]
        answer["percentile"] = usual and {
            "aleatoric": usual.percentile("aleatoric", aleatoric),
            "epistemic": usual.percentile("epistemic", epistemic),
        }
        strange = False
        if familiar is not None and prediction.novelty is not None:
            novelty = prediction.novelty[number]
            strange = bool(novelty > model.novelty_limit)
            answer["novelty"] = {
                "value": _row(novelty.reshape(1))[0],
                "percentile": float(familiar.percentile(novelty)),
                "score": familiar.name,
            }
        answer["verdict"] = verdict(usual, aleatoric, epistemic, strange)
        if prediction.decision is not None and prediction.reason is not None:
            if prediction.decision[number] == REVIEW and answer["verdict"]["level"] == "sure":
                answer["verdict"]["sentence"] = SENTENCES["reviewed"]
            answer |= {"decision": str(prediction.decision[number]), "reason": str(prediction.reason[number])}
        if options.per_class:
            answer["per_class"] = {
                "aleatoric": _row(prediction.aleatoric_per_class[number]),
                "epistemic": _row(prediction.epistemic_per_class[number]),
                # Only where the variances are those of probabilities.
                "std": _row(prediction.epistemic_per_class[number].sqrt()) if of_probabilities else None,
            }
        if sets is not None:
            answer["conformal"] = sets[number]
        if options.draws and predicted.draws is not None:
            answer["draws"] = [_row(draw) for draw in predicted.draws[:, number]]
        answers.append(answer)
    return answers


def _conformal(
    usual: Usual | None, options: Options, prediction: Prediction, names: Sequence[str]
) -> list[dict[str, Any]] | None:
    """The conformal set of each image, in words too; None if none is asked for."""
    if usual is None or not (options.calibrated or options.conformal is not None):
        return None
    coverage = options.conformal or usual.calibration.coverage
    chosen = usual.conformal(coverage).named(prediction.probs, names)
    return [{"coverage": coverage, "set": inside, "text": ", ".join(inside) or NO_CLASS} for inside in chosen]


def verdict(usual: Usual | None, aleatoric: float, epistemic: float, unfamiliar: bool = False) -> dict[str, str]:
    """Whether the doubt is unusual, and its cause; of an image that is unlike the training images, that alone."""
    if unfamiliar:
        return {"level": "unfamiliar", "sentence": SENTENCES["unfamiliar"]}
    if usual is None:
        level = "unknown"
    else:
        ambiguous = usual.is_unusual("aleatoric", aleatoric)
        undecided = usual.is_unusual("epistemic", epistemic)
        level = {(False, False): "sure", (True, False): "ambiguous", (False, True): "undecided"}.get(
            (ambiguous, undecided), "both"
        )
    # Without a spread over draws (a frequentist network, or samples = 1) nothing is known of disagreement.
    sentence = SENTENCES["undrawn" if level == "sure" and epistemic == 0 else level]
    return {"level": level, "sentence": sentence}


def _row(values: Tensor) -> list[float]:
    return _rounded(values.tolist())


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]
