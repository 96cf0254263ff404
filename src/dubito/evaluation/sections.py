"""The sections of a report: their words, figures, tables and images; those without anything to show are left out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from markupsafe import Markup
from torch import nn

from dubito import __version__
from dubito.decisions import REVIEW, Rule
from dubito.decisions.words import percent as in_words
from dubito.evaluation.decisions import Decided, decided, finds_mistakes, review
from dubito.evaluation.evaluation import Evaluation
from dubito.evaluation.figures import likeliest, spoken
from dubito.evaluation.illustrations import (
    GALLERIES,
    chosen_images,
    has_epistemic,
    has_error_bars,
    has_images,
    other_names,
    points,
    posterior_layers,
    probability_std,
    useful_uncertainties,
)
from dubito.evaluation.metrics import percentile, uncertainties
from dubito.evaluation.thumbnails import PICTURE, data_uri, sheet
from dubito.prediction import Prediction
from dubito.runs.run import Run

MANY_CLASSES = 20
OTHER_COLORS = ("ood", "mutual-information", "entropy")
Figures = Mapping[str, Sequence[dict[str, Any]]]


@dataclass(frozen=True)
class Table:
    """Rows of text; the first cell of each is its heading."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    folded: bool = False
    kind: str = "numbers"


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    id: str
    title: str
    text: Sequence[str]
    figures: Sequence[dict[str, Any]] = ()
    tables: Sequence[Table] = ()
    scatter: dict[str, Any] | None = None
    galleries: Sequence[dict[str, Any]] = ()
    beside: bool = False
    """Whether the tables stand beside the figure, where there is room."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to look at."""
        return not (self.figures or self.tables or self.scatter or self.galleries)


def sections(evaluation: Evaluation, network: nn.Module | None, shown: Figures) -> list[Section]:
    """The sections that have anything to show; `shown` are the drawn figures of each."""
    first = " Shown is the first member of the ensemble." if len(evaluation.members) > 1 else ""
    every = [
        Section("training", "Training", [f"How the network learned, epoch by epoch.{first}"], shown["training"]),
        Section(
            "calibration",
            "Calibration",
            [
                "Does the network know how often it is right? And how many classes must a set contain to "
                "include the true one?"
            ],
            shown["calibration"],
            list(_calibration_tables(evaluation)),
        ),
        _decision_section(evaluation, shown["decisions"]),
        Section(
            "mistakes",
            "Finding mistakes",
            ["If a person reviews the most doubtful images, how many mistakes remain among the others?"],
            shown["mistakes"],
            [_review_table(evaluation), _uncertainty_table(evaluation)],
            beside=True,
        ),
        Section(
            "uncertainty",
            "Two kinds of doubt",
            [
                "Aleatoric uncertainty comes from the image: it is ambiguous, and more training would not "
                "help. Epistemic uncertainty comes from the network: it has seen too few images like this "
                "one."
            ],
            shown["uncertainty"],
            scatter=_scatter(evaluation),
        ),
        Section(
            "images",
            "The images themselves",
            [_bars_text(evaluation)],
            galleries=list(_galleries(evaluation)),
        ),
        Section("noise", "Noise", [_noise_text(evaluation)], shown["noise"]),
        Section(
            "classes",
            "Classes",
            ["Which classes the network confuses."],
            shown["classes"],
            [_class_table(evaluation)],
            beside=len(evaluation.class_names) <= MANY_CLASSES,
        ),
        Section(
            "posterior",
            "The posterior",
            [
                "Every weight has a distribution N(μ, σ²). Shown is what training has made of it, layer by "
                "layer." + first
            ],
            shown["posterior"],
            list(_posterior_tables(network)),
        ),
        Section("about", "About this report", _omitted(evaluation, shown), tables=_about_tables(evaluation)),
    ]
    return [section for section in every if not section.is_empty]


def _calibration_tables(evaluation: Evaluation) -> Iterable[Table]:
    scaling, conformal = evaluation.metrics["temperature_scaling"], evaluation.metrics["conformal"]
    if scaling:
        names = {"nll": "NLL", "brier": "Brier score", "ece": "ECE", "ece_equal_mass": "ECE, bins of equal mass"}
        rows = [
            (title, *(f"{scaling[when][name]:.4f}" for when in ("before", "after"))) for name, title in names.items()
        ]
        note = (
            f"The temperature is {scaling['temperature']:.3f}, fitted on {scaling['images']:,} validation "
            "images. Above 1 it makes all predictions less confident, below 1 more confident."
        )
        yield Table("Temperature scaling", ("on the test images", "before", "after"), rows, note)
    if conformal:
        rows = [
            (
                title,
                percent(conformal[name]["coverage"]),
                f"{conformal[name]['mean_size']:.2f}",
                percent(conformal[name]["empty"]),
            )
            for name, title in (("lac", "LAC"), ("aps", "APS"))
        ]
        note = (
            f"The requested coverage is {percent(conformal['requested'])}, calibrated on "
            f"{conformal['images']:,} validation images. LAC gives the smallest sets; APS gives larger "
            "sets for harder images."
        )
        yield Table("Conformal sets", ("method", "coverage", "classes", "empty sets"), rows, note)


def _review_table(evaluation: Evaluation) -> Table:
    """So many images are reviewed, so many of the rest are wrong."""
    test, name = evaluation.test, finds_mistakes(evaluation)
    rows = [
        (
            f"{100 * row.share:g} %",
            exact_percent(row.error),
            " to ".join(exact_percent(edge) for edge in row.interval()).replace(" % to", " to"),
            f"{row.mistakes:,} of {row.left:,}",
        )
        for row in review(uncertainties(test.prediction)[name], test.wrong)
    ]
    chosen = (
        "because it finds mistakes best on validation images" if len(evaluation.validation) else "which is the default"
    )
    note = (
        f"The images with the largest {spoken(name)} are reviewed, {chosen}. Intervals are 95 % "
        "intervals over images (Clopper & Pearson)."
    )
    return Table("What review buys", ("reviewed", "error of the rest", "interval", "mistakes left"), rows, note)


def _decision_section(evaluation: Evaluation, shown: Sequence[dict[str, Any]]) -> Section:
    """What the run's rule does with the test images; without a rule, how to get one."""
    found = decided(evaluation)
    if found is None:
        place = evaluation.runs[0].path.resolve().name if evaluation.runs else ""
        command = f"`dubito decide {place} --max-error 0.01`" if place else "`dubito.decisions.fit`"
        text = f"There is no rule yet for which predictions to accept. {command} fits one, with a guarantee."
        return Section("decisions", "Decisions", [text], shown, beside=True)
    rule, measured = found.rule, found.measured
    error = (
        "" if measured.error is None else f" Measured on these test images: {exact_percent(measured.error)} are wrong."
    )
    texts = [rule.describe() + error, _causes_text(rule)]
    return Section("decisions", "Decisions", texts, shown, [_decision_table(found)], beside=True)


def _causes_text(rule: Rule) -> str:
    """What leads to which decision and reason."""
    alarm = "" if rule.false_alarm is None else in_words(rule.false_alarm)
    refused = (
        f" It is unfamiliar if its novelty is above a limit that {alarm} of familiar images exceed." if alarm else ""
    )
    return (
        f"An image is reviewed if its {spoken(rule.score)} is above the threshold of the rule. The "
        "reason is the uncertainty that is more unusual compared with validation images: aleatoric "
        f"(ambiguous) or epistemic (undecided, the draws disagree).{refused}"
    )


def _decision_table(found: Decided) -> Table:
    prediction = found.prediction
    assert prediction.decision is not None
    assert prediction.reason is not None
    rows = []
    for name, (images, wrong) in found.counts.items():
        whole = exact_percent(images / max(len(prediction), 1))
        rows.append((name, f"{images:,}", whole, exact_percent(wrong / images) if images else "–"))  # noqa: RUF001
        reasons = prediction.reason[prediction.decision == name].tolist()
        if name == REVIEW:
            rows += [(f"… {why}", f"{reasons.count(why):,}", "", "") for why in sorted(set(reasons))]
    note = "Wrong: the share of these images whose predicted class is not the true one."
    return Table("What the rule does", ("decision", "images", "share", "wrong"), rows, note)


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


def _uncertainty_table(evaluation: Evaluation) -> Table:
    metrics, others = evaluation.metrics, other_names(evaluation)
    columns = ("", "mean", "mistakes: AUROC", "AURC", *(f"{shown}: AUROC" for shown in others.values()))
    rows = []
    for name in useful_uncertainties(evaluation):
        found = metrics["errors"][name]
        mean = metrics.get(name, 1 - float(evaluation.test.prediction.confidence.double().mean()))
        apart = (_number(metrics["ood"][other][name]["auroc"]) for other in others)
        rows.append((spoken(name), f"{mean:.2g}", _number(found["auroc"]), _number(found["aurc"], "{:.4f}"), *apart))
    note = (
        "AUROC: 1 is perfect, 0.5 is chance. AURC is the area under the risk-coverage curve: lower "
        "is better. The mean aleatoric and epistemic uncertainties are variances, averaged over "
        "classes; entropy and mutual information are in nats. With few draws, epistemic uncertainty "
        "and mutual information are too small (of T independent draws, the share 1/T is missing): "
        "compare them at equal numbers of draws."
    )
    return Table("Every uncertainty in numbers", columns, rows, note)


def _bars_text(evaluation: Evaluation) -> str:
    errors = ", error bars are plus and minus one epistemic standard deviation" if has_error_bars(evaluation) else ""
    text = f"Bars are mean probabilities{errors}. Green is the true class, orange a wrong prediction."
    if evaluation.test.prediction.novelty is None or evaluation.validation.prediction.novelty is None:
        return text
    found = decided(evaluation)
    limit = " Beyond the mark, the limit of the rule, it is unfamiliar." if found and found.rule.refuses else ""
    return f"{text} The bar below an image is its novelty: how many validation images have less.{limit}"


def _noise_text(evaluation: Evaluation) -> str:
    count = evaluation.metrics["settings"].get("noise_images", len(evaluation.test))
    return f"Gaussian noise of standard deviation γ is added to {count:,} test images with pixels from 0 to 1."  # noqa: RUF001


def _class_table(evaluation: Evaluation) -> Table:
    forms = {"support": "{:,}", "recall": "{:.1%}", "precision": "{:.1%}", "aleatoric": "{:.4f}", "epistemic": "{:.5f}"}
    if not has_epistemic(evaluation):
        del forms["epistemic"]
    titles = {"support": "images", "recall": "recall, %", "precision": "precision, %"}
    rows = [
        (str(row["class"]), *(_number(row[name], form).removesuffix("%") for name, form in forms.items()))
        for row in evaluation.metrics["per_class"]
    ]
    columns = ("class", *(titles.get(name, name) for name in forms))
    note = (
        "Recall: share of the images of a class that are recognised. Precision: share of the "
        "predictions of a class that are right."
    )
    return Table("Class by class", columns, rows, note, folded=len(rows) > MANY_CLASSES)


def _posterior_tables(network: nn.Module | None) -> Iterable[Table]:
    rows = []
    for name, layer in posterior_layers(network).items():
        mean, std = layer.weight_mean.detach(), layer.weight_std.detach()
        weak = float((mean.abs() < std).double().mean())
        kl = float(layer.kl_divergence())
        rows.append((name, f"{mean.numel():,}", f"{kl:,.0f}", f"{float(std.median()):.2g}", f"{100 * weak:.1f}"))
    if rows:
        columns = ("layer", "weights", "KL (nats)", "median σ", "|μ| < σ, %")  # noqa: RUF001
        yield Table(
            "Layer by layer",
            columns,
            rows,
            "KL includes the biases. The last column is the share of weights that are mostly noise.",
        )


def _omitted(evaluation: Evaluation, shown: Figures) -> list[str]:
    """Why parts of the report are not there."""
    run = evaluation.members[0] if evaluation.runs else None
    reasons = []
    if not evaluation.ood and run:
        reasons.append("No other data set was given (--ood NAME), so the report does not show images of other things.")
    if not has_epistemic(evaluation):
        reasons.append("The draws of the network do not differ, so there is no epistemic uncertainty to show.")
    if not shown["posterior"]:
        reasons.append(_no_posterior(evaluation))
    elif run and not run.posterior_trace():
        reasons.append("The run has no posterior.csv, so the report does not show how weights changed during training.")
    if not has_images(evaluation):
        reasons.append("The inputs are not images with one or three channels, so none are shown.")
    elif "confidently-wrong" not in chosen_images(evaluation):
        reasons.append("The network made no mistake on the test images, so none are shown.")
    if not evaluation.metrics["conformal"] and not run:
        reasons.append("No validation images were given, so there is no calibration and no comparison with them.")
    elif not evaluation.metrics["conformal"]:
        reasons.append("The members of the ensemble have no validation images in common, so there is no calibration.")
    if not shown["training"] and run:
        reasons.append("The run has no metrics.csv, so the report does not show how it learned.")
    return reasons


def _no_posterior(evaluation: Evaluation) -> str:
    if not evaluation.runs:
        return "No Bayesian layer was given, so there is no posterior to show."
    frequentist = evaluation.runs[0].config.inference == "frequentist"
    why = "A frequentist network" if frequentist else "A network with MC dropout"
    return f"{why} has point estimates, one number for each weight, so there is no posterior to show."


def _about_tables(evaluation: Evaluation) -> list[Table]:
    settings = {
        key: value
        for key, value in evaluation.metrics["settings"].items()
        if key not in ("runs", "images", "places") and value is not None
    }
    contents = {"Settings of the evaluation": _settings(settings)}
    if evaluation.runs:
        contents["Settings of the training"] = _settings(evaluation.runs[0].config.to_dict())
        contents["Environment of the training"] = _environment(evaluation.runs[0])
    return [Table(title, ("", ""), rows, folded=True, kind="settings") for title, rows in contents.items()]


def _settings(values: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), f"{v:g}" if isinstance(v, float) else str(v)) for name, v in values.items()]


def _environment(run: Run) -> list[tuple[str, str]]:
    try:
        content = run.environment()
        versions = ", ".join(f"{name} {version}" for name, version in content.pop("versions").items() if version)
        content["command"] = " ".join(content["command"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [("environment.json", "is missing or damaged")]
    return _settings({**content, "versions": versions})


def made(evaluation: Evaluation) -> str:
    """By which command and from which files the report was written."""
    if not evaluation.runs:
        return f"Written by dubito.report (dubito {__version__}) from a network and labelled images."
    names = ", ".join(run.path.resolve().name for run in evaluation.runs)
    weights = f"{evaluation.metrics['settings']['checkpoint']}.safetensors"
    return (
        f"Written by dubito report (dubito {__version__}) from {names}: metrics.csv, posterior.csv, {weights} and what "
        "dubito evaluate makes of them, evaluation.json."
    )


def _number(value: float | None, form: str = "{:.3f}") -> str:
    return "–" if value is None else form.format(value)  # noqa: RUF001 - a dash for nothing


def _scatter(evaluation: Evaluation) -> dict[str, Any] | None:
    """What the script needs to draw the scatter plot and its images."""
    if not (has_epistemic(evaluation) and has_images(evaluation)):
        return None
    shown = points(evaluation)
    names = ["right", "wrong", *other_names(evaluation).values()]
    colors = ["right", "wrong", *(OTHER_COLORS[i % len(OTHER_COLORS)] for i in range(len(evaluation.ood)))]
    thumbnails = sheet(shown.images)
    data = {
        "aleatoric": _rounded(shown.aleatoric),
        "epistemic": _rounded(shown.epistemic),
        "confidence": _rounded(shown.confidence),
        "predicted": shown.predicted.tolist(),
        "file": shown.names,
        "above": {kind: _above(evaluation, kind, getattr(shown, kind)) for kind in ("aleatoric", "epistemic")},
        "truth": shown.truth,
        "group": [names.index(group) for group in shown.groups],
        "names": names,
        "colors": colors,
        "order": [names.index(group) for group in shown.order],
        "classes": evaluation.class_names,
        "sheet": {"uri": thumbnails.uri, "columns": thumbnails.columns, "side": thumbnails.side},
    }
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return {
        "title": "Aleatoric against epistemic uncertainty",
        "caption": f"{len(shown.groups):,} of {shown.total:,} images, including the extremes of both. Values too "
        "small for an axis are drawn at its edge. Point at a dot, tap it, or use the arrow keys to "
        "see its image.",
        "groups": [{"name": name, "color": color} for name, color in zip(names, colors, strict=True)],
        "side": thumbnails.side,
        "data": Markup(text),
    }


def _above(evaluation: Evaluation, kind: str, values: torch.Tensor) -> list[str]:
    """For each uncertainty, of how many validation images it exceeds that, such as ``94 %``; nothing without these."""
    known = getattr(evaluation.validation.prediction, kind) if len(evaluation.validation) else None
    if known is None:
        return []
    usual = known.sort().values
    return [_most(share) for share in percentile(usual, values).tolist()]


def _most(share: float) -> str:
    """Rounded down, so that only the largest of all is above all.

    >>> _most(0.947), _most(0.9987), _most(1.0)
    ('94 %', '99.8 %', 'all')
    """
    if share == 1:
        return "all"
    return f"{math.floor(1000 * share) / 10} %" if share >= 0.99 else f"{math.floor(100 * share)} %"


def _rounded(values: torch.Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]


def _galleries(evaluation: Evaluation) -> Iterable[dict[str, Any]]:
    look = ": look at their error bars" if has_error_bars(evaluation) else ""
    captions = {
        "most-aleatoric": "Would a person be sure?",
        "most-epistemic": f"The draws of the weights disagree most about these{look}.",
        "most-novel": "Measured in the network's features. Answers mean little for images unlike the training images.",
        "confidently-wrong": "Wrong predictions with the highest confidence. Wrong labels show up here too.",
    }
    found = decided(evaluation)
    for name, index in chosen_images(evaluation).items():
        items = [_item(evaluation, number, found) for number in index.tolist()]
        side = min(evaluation.test.images.shape[-1], PICTURE)
        yield {"name": name, "title": GALLERIES[name], "caption": captions[name], "pictures": items, "side": side}


def _item(evaluation: Evaluation, number: int, found: Decided | None) -> dict[str, Any]:
    test, names = evaluation.test, evaluation.class_names
    prediction = test.prediction[number]
    truth, label = int(test.truth[number]), int(prediction.label)
    kinds = ["aleatoric", "epistemic"] if has_epistemic(evaluation) else ["aleatoric"]
    if prediction.novelty is not None:
        kinds.append("novelty")
    probs, spread = prediction.probs[0].tolist(), probability_std(evaluation, number).tolist()
    return {
        "uri": data_uri(test.images[number]),
        "truth": names[truth],
        "predicted": names[label],
        "correct": truth == label,
        "name": test.name_of(number),
        "novelty": _novelty_meter(evaluation, prediction, found),
        "doubts": [*_decided(found, number), *(_doubt(evaluation, kind, prediction) for kind in kinds)],
        "bars": [_bar(names[i], probs[i], spread[i], i == truth, i == label) for i in likeliest(probs, truth)],
    }


def _novelty_meter(evaluation: Evaluation, prediction: Prediction, found: Decided | None) -> dict[str, Any] | None:
    """Where an image's novelty is among that of validation images, and the limit of a rule that refuses; in percent."""
    usual = evaluation.validation.prediction.novelty if len(evaluation.validation) else None
    if usual is None or prediction.novelty is None:
        return None

    def place(value: torch.Tensor | float) -> float:
        return round(100 * float(percentile(usual.sort().values, usual.new_tensor(float(value)))), 2)

    limit = None if found is None else found.rule.novelty_threshold
    return {"at": place(prediction.novelty), "limit": None if limit is None else place(limit)}


def _decided(found: Decided | None, number: int) -> list[str]:
    if found is None or found.prediction.decision is None or found.prediction.reason is None:
        return []
    return [f"{found.prediction.decision[number]}: {found.prediction.reason[number]}"]


def _doubt(evaluation: Evaluation, kind: str, prediction: Prediction) -> str:
    """How an image's uncertainty compares with that of validation images, and its size."""
    values: torch.Tensor = getattr(prediction, kind).reshape(1)
    size = f"{float(values):.2g}"
    above = _above(evaluation, kind, values)
    return f"{kind} above {above[0]} of validation images ({size})" if above else f"{kind} {size}"


def _bar(name: str, chance: float, spread: float, is_true: bool, is_first: bool) -> dict[str, Any]:
    low, high = max(0.0, chance - spread), min(1.0, chance + spread)
    return {
        "name": name,
        "width": round(100 * chance, 2),
        "low": round(100 * low, 2),
        "reach": round(100 * (high - low), 2),
        "percent": f"{100 * chance:.0f} %",
        "kind": "right" if is_true else "wrong" if is_first else "other",
    }
