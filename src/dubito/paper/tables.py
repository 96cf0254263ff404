"""The experiments' tables as Markdown, for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dubito.paper.cells import TITLES

HEADINGS = {
    "table1": "Table 1: accuracy",
    "table2": "Table 2: aleatoric and epistemic uncertainty",
    "noise": "Noise: aleatoric uncertainty and the axis of normalisation",
    "regularisation": "Regularisation: AlexNet on CIFAR-100",
    "posterior": "The posterior of a weight over the epochs",
    "filters": "A filter with point estimates and with distributions",
}

NOTES = {
    "table1": "Measured on the test split, once, with the weights of the epoch of lowest validation NLL; in brackets "
    "95 % intervals. `validation` is the validation accuracy of the most accurate epoch, which comes nearer "
    "to how the paper chose. Published numbers are whole per cents. The paper has neither NLL nor calibration error. "
    "Temperature multiplies KL; 1 is the exact free energy. Except under the budget `paper`, a Bayesian VGG16 starts "
    "from its twin's weights, with a prior around them: its epochs come after the twin's, and the twin has no others.",
    "table2": "Mean over the classes of the diagonal of each matrix. The paper's way is the mean over the epochs, "
    "here of the validation part; `last` is the last epoch, `test` the test split at the best epoch, as mean and "
    "median of its images. r is the correlation of the uncertainty with being wrong (0 or 1) on the test split; AUROC "
    "is the probability that a wrong prediction has more of it than a right one, which no unit and no outlier "
    "changes. Softplus and softmax heads: variances of probabilities; Kendall & Gal: variances of logits, which have "
    "another unit. Where their mean is far above their median, a few images with huge outputs make the mean; where "
    "AUROC is below 0.5, the right predictions are those with large variances.",
    "noise": "Mean over the classes of p (1 - p), over the draws; p normalised over the classes, as the formula has "
    "it, or over a batch, as the paper's prose has it. `image` is the first test image, `mean` the mean of many. Over "
    "a batch of B images the p of every class sum to 1, so their mean is 1/B whatever the images are, and the mean of "
    "p (1 - p) is nearly (1/B)(1 - 1/B), as long as no image takes much of a class: 0.000999 at B = 1,000, the "
    "paper's constant. That B was 1,000 is inferred from this number alone; the appendix's batch of 128 would give "
    f"{(1 - 1 / 128) / 128:.6f}. One image among the others of its batch is not constant. Over the classes, aleatoric "
    "uncertainty is a property of the image.",
    "regularisation": "Training numbers are means over the epoch's steps, with augmentation and with drawn weights or "
    "dropped units (p = 0.5); validation numbers those of images held out, by draws.",
    "posterior": "One fixed weight in the middle of each layer. The budget `cpu` trains this network for 100 epochs, "
    "with half the preset's learning rate and clipped gradients, because with the preset's its loss exploded (see what "
    "was tried). It starts with a standard deviation of exp(-5) = 0.0067 for every weight.",
    "filters": "The output there is the sum of patch times filter plus bias: a number, or a Gaussian whose variance "
    "is the sum of squared pixels times variances of weights.",
}

NOT_RUN = "not run"
COVERS_BOTH = "images and draws"
"""What the intervals of a measured row cover; in rows that do not say so they cover the images alone."""


def note(content: dict[str, Any]) -> str:
    """What a reader must know about an experiment's table."""
    name = content["experiment"]
    return f"{NOTES[name]} {coverage(content['rows'])}".rstrip() if name == "table1" else NOTES[name]


def coverage(rows: Sequence[dict[str, Any]]) -> str:
    """What the intervals of rows cover: rows of earlier code have intervals over images alone.

    >>> coverage([{"model": "lenet5", "data": "mnist", "inference": "vi", "measured": {"accuracy": 99.0}}])[:46]
    'The intervals cover the test images alone: the'
    """
    drawn = [row for row in rows if row["measured"] is not None and row["inference"] != "frequentist"]
    old = [row for row in drawn if row["measured"].get("intervals_cover") != COVERS_BOTH]
    if not drawn:
        return ""
    if not old:
        return "The intervals cover the test images and the draws of the networks."
    warning = (
        "cover the test images alone: the draws were not resampled, and another seed of the draws can move the numbers "
        "of a network that draws by more than they say."
    )
    if len(old) == len(drawn):
        return f"The intervals {warning}"
    names = ", ".join(f"{TITLES[row['inference']]} {TITLES[row['model']]} on {TITLES[row['data']]}" for row in old)
    return f"The intervals cover the test images and the draws of the networks, but those of {names} {warning}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table.

    >>> print(markdown(("a", "b"), [("1", "2")]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float | None, digits: int, missing: str = "") -> str:
    """A number with `digits` decimals, or `missing` for None."""
    return missing if value is None else f"{value:.{digits}f}"


def table(content: dict[str, Any]) -> str:
    """The table of an experiment's content."""
    return _TABLES[content["experiment"]](content)


def _table1(content: dict[str, Any]) -> str:
    header = (
        "network",
        "inference",
        "data",
        "accuracy, %",
        "published",
        "NLL",
        "ECE",
        "validation, %",
        "epochs",
        "temperature",
    )
    rows = []
    for row in content["rows"]:
        names = [TITLES[row[key]] for key in ("model", "inference", "data")]
        prints, m = number(row["published"]["accuracy"], 0, "-"), row["measured"]
        if m is None:
            rows.append([*names, NOT_RUN, prints, "", "", "", "", ""])
            continue
        values = [_with_interval(m, "accuracy", 2), prints, _with_interval(m, "nll", 3), _with_interval(m, "ece", 3)]
        values.append(number(m.get("best_validation_accuracy"), 2))
        rows.append([*names, *values, str(m["epochs"]), number(m["temperature"], 2, "-")])
    return markdown(header, rows)


def _with_interval(measured: dict[str, Any], name: str, digits: int) -> str:
    low, high = measured[f"{name}_low"], measured[f"{name}_high"]
    return f"{measured[name]:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _table2(content: dict[str, Any]) -> str:
    parts = []
    for name in ("aleatoric", "epistemic"):
        header = (
            "head",
            "network",
            "data",
            f"{name}, mean over epochs",
            "published",
            "last",
            "test",
            "median",
            "r",
            "AUROC",
            "accuracy, %",
            "published, %",
        )
        rows = []
        for row in content["rows"]:
            names = [TITLES[row[key]] for key in ("head", "model", "data")]
            accurate = number(row["published"].get("accuracy"), 0, "-")
            prints, m = number(row["published"][name], 5 if name == "aleatoric" else 4, "-"), row["measured"]
            if m is None:
                rows.append([*names, NOT_RUN, prints, "", "", "", "", "", "", accurate])
                continue
            means = [
                number(m.get(f"{name}_{when}"), 5) for when in ("mean_over_epochs", "last_epoch", "test", "median")
            ]
            finds = [number(m[f"{name}_{how}"], 2, "-") for how in ("correlation", "auroc")]
            rows.append([*names, means[0], prints, *means[1:], *finds, number(m["accuracy"], 2), accurate])
        parts.append(markdown(header, rows))
    return "\n\n".join(parts)


def _noise(content: dict[str, Any]) -> str:
    header = ("network", "noise", "classes, image", "classes, mean", "batch, image", "batch, mean", "published, image")
    rows = []
    for row in content["rows"]:
        m, prints = row["measured"], number(row["published"]["image"], 8, "-")
        names = [TITLES[row["model"]], f"{row['gamma']:g}"]
        keys = ("classes_image", "classes_test", "batch_image", "batch_test")
        cells = [NOT_RUN, "", "", ""] if m is None else [number(m[key], 8) for key in keys]
        rows.append([*names, *cells, prints])
    text = markdown(header, rows)
    for name, about in content["about"].items():
        text += (
            f"\n\n{name}: {about['images']:,} test images in batches of B = {about['batch']:,}, for which "
            f"(1/B)(1 - 1/B) = {about['constant']:.8f}."
        )
    return text


def _regularisation(content: dict[str, Any]) -> str:
    header = (
        "AlexNet",
        "epochs",
        "training accuracy, %",
        "validation accuracy, %",
        "training NLL",
        "validation NLL",
        "lowest",
    )
    rows = []
    for inference in dict.fromkeys(row["inference"] for row in content["rows"]):
        curve = [r["measured"] for r in content["rows"] if r["inference"] == inference and r["measured"] is not None]
        title = "frequentist with dropout" if inference == "dropout" else TITLES[inference]
        if not curve:
            rows.append([title, "", NOT_RUN, "", "", "", ""])
            continue
        last = curve[-1]
        percents = [number(100 * last[name], 2) for name in ("train_accuracy", "val_accuracy")]
        nlls = [number(last[name], 3) for name in ("train_nll", "val_nll")]
        rows.append([title, str(len(curve)), *percents, *nlls, number(min(row["val_nll"] for row in curve), 3)])
    return markdown(header, rows)


def _posterior(content: dict[str, Any]) -> str:
    rows = [
        [NOT_RUN, "", "", ""]
        if row["measured"] is None
        else [
            row["measured"]["layer"],
            str(row["measured"]["epoch"]),
            number(row["measured"]["mean"], 5),
            number(row["measured"]["std"], 5),
        ]
        for row in content["rows"]
    ]
    return markdown(("layer", "epoch", "mean", "standard deviation"), sorted(rows, key=lambda row: row[0]))


def _filters(content: dict[str, Any]) -> str:
    row = content["rows"][0]["measured"]
    cells = [NOT_RUN, "", "", ""]
    if row is not None:
        place = f"{row['row']}, {row['column']}"
        cells = [str(row["filter"]), place, number(row["output_mean"], 4), number(row["output_std"], 4)]
    return markdown(("filter", "row, column", "output's mean", "its standard deviation"), [cells])


_TABLES = {
    "table1": _table1,
    "table2": _table2,
    "noise": _noise,
    "regularisation": _regularisation,
    "posterior": _posterior,
    "filters": _filters,
}
