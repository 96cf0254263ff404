"""The page of a report: its head with the few numbers that matter, and its sections with everything inside."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files as files_of
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from torch import nn

from dubito import __version__
from dubito.evaluation import style
from dubito.evaluation.evaluation import Evaluation
from dubito.evaluation.illustrations import has_images, illustrations, other_names
from dubito.evaluation.sections import Figures, made, percent, sections
from dubito.evaluation.summary import about_chance

TEMPLATES = "templates"
MODELS = {"lenet5": "LeNet-5", "alexnet": "AlexNet", "vgg16": "VGG16"}
KINDS = {"vi": "Bayesian", "frequentist": "Frequentist", "dropout": "MC dropout"}


def draw(evaluation: Evaluation, network: nn.Module | None, *, files: bool) -> tuple[Figures, dict[str, bytes]]:
    """Every figure once: what of it goes into each section of the page, and its PNG and SVG files, if wanted."""
    sections: dict[str, list[dict[str, Any]]] = {}
    written: dict[str, bytes] = {}
    for section, found in illustrations(evaluation, network).items():
        shown = sections.setdefault(section, [])
        for illustration in found:
            name, title = illustration.name, illustration.title
            # On the page a script draws the scatter plot with its images, and galleries adapt to the screen.
            is_inline = section != "images" and (name != "scatter" or not has_images(evaluation))
            if not (files or is_inline):
                continue
            figure = style.draw(illustration.paint, illustration.size)
            svg = style.to_svg(figure, name)
            if files:
                written |= {f"{name}.png": style.to_png(figure), f"{name}.svg": svg.encode()}
            if is_inline:
                inline = Markup(style.inline_svg(svg, name, title))
                shown.append({"name": name, "title": title, "caption": illustration.caption, "svg": inline})
    return sections, written


def compose(evaluation: Evaluation, network: nn.Module | None, shown: Figures) -> str:
    """The page with these figures in its sections."""
    loader = PackageLoader("dubito.evaluation", TEMPLATES)
    templates = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    title, lead = title_and_lead(evaluation, network)
    bootstrap = evaluation.metrics["settings"]["bootstrap"]
    covers = evaluation.test.intervals_cover
    return templates.get_template("report.html").render(
        version=__version__,
        title=title,
        lead=lead,
        cards=cards(evaluation),
        interval_note=f"Intervals are of 95 % and cover the test {covers} ({bootstrap:,} resamples).",
        sections=sections(evaluation, network, shown),
        made=made(evaluation),
        palette=Markup(_palette()),
        css=Markup(_source("report.css")),
        js=Markup(_source("report.js")),
    )


def _source(name: str) -> str:
    return (files_of("dubito.evaluation") / TEMPLATES / name).read_text(encoding="utf-8")


def _palette() -> str:
    """The figures' colours as CSS variables, for both themes."""

    def block(colors: dict[str, str], page: str, card: str, scheme: str) -> str:
        named = {**{name.replace("_", "-"): color for name, color in colors.items()}, "page": page, "card": card}
        return "".join(f"--{name}: {color}; " for name, color in named.items()) + f"color-scheme: {scheme}"

    light = block(style.COLORS, "#ffffff", "#fbfcfd", "light")
    dark = block(style.DARK, "#0d1117", "#151b23", "dark")
    return (
        f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        f':root[data-theme="light"] {{ {light} }}\n:root[data-theme="dark"] {{ {dark} }}'
    )


# ---- the head ------------------------------------------------------------------------------------------------------


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
