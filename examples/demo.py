"""Train a Bayesian LeNet-5 on embedded digits, and look at what it doubts.

    make demo

Takes half a minute, or about a minute on a busy machine, and needs no download. Everything goes into the folder `demo`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.table import Table

import dubito
from dubito.data import load, normalize
from dubito.evaluation import evaluate
from dubito.evaluation.report import write_report
from dubito.training import configure, train

FOLDER = Path("demo")
EPOCHS = 20
ROWS = 6


def main() -> None:
    console = Console()
    torch.set_num_threads(1)  # LeNet-5 is too small for more: on a busy machine they wait for each other
    shutil.rmtree(FOLDER / "run", ignore_errors=True)
    console.print("Training a Bayesian LeNet-5 on 1,294 handwritten digits (8x8 pixels, scaled to 32x32) ...")
    config = configure(data="digits", epochs=EPOCHS, warmup_epochs=EPOCHS // 3)
    run = train(config, FOLDER / "run", console=console, report_every=5)

    model = dubito.load(run.path)
    test = load("digits", "test")
    images = normalize(test.images, run.data.mean, run.data.std)
    prediction = dubito.Predictor(model, samples=50)(images)
    right = prediction.label == test.labels
    console.print(f"\nTest accuracy {right.float().mean():.2%} on {len(test)} images that training never saw.")
    for kind, where in (("right", right), ("wrong", ~right)):
        if where.any():
            console.print(f"Mean epistemic uncertainty where it is {kind}: {prediction.epistemic[where].mean():.5f}.")
    console.print()
    order = prediction.epistemic.argsort(descending=True)
    chosen = torch.cat([order[:ROWS], order[-ROWS:]])
    console.print(table(prediction, test, chosen))
    picture = FOLDER / "digits.png"
    draw(prediction, test, chosen, picture)
    console.print("\nEvaluating for the report ...")
    report = write_report(evaluate([run], samples=10, progress=True), FOLDER / "report.html", run.path / "figures")
    console.print(f"\nPicture: {picture}\nReport:  {report} (open it in a browser)\nRun:     {run.path}")
    command = Path(sys.executable).parent / "dubito"
    command = command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command
    console.print(f"Play:    {command} serve {run.path}, then draw digits at http://127.0.0.1:8000", soft_wrap=True)


def table(prediction: dubito.Prediction, test: dubito.data.Dataset, chosen: torch.Tensor) -> Table:
    """The most and the least certain images."""
    shown = Table(title="The images it doubts most, and least")
    for name in ("image", "truth", "label", "confidence", "aleatoric", "epistemic"):
        shown.add_column(name, justify="right")
    for place, i in enumerate(chosen.tolist()):
        truth, label = int(test.labels[i]), int(prediction.label[i])
        values = (prediction.aleatoric[i], prediction.epistemic[i])
        shown.add_row(
            str(i),
            str(truth),
            str(label) if truth == label else f"[bold red]{label}[/]",
            f"{prediction.confidence[i]:.1%}",
            *(f"{value:.2e}" for value in values),
            end_section=place == ROWS - 1,
        )
    return shown


def draw(prediction: dubito.Prediction, test: dubito.data.Dataset, chosen: torch.Tensor, picture: Path) -> None:
    """Each chosen image above its class probabilities with one standard deviation of the draws."""
    figure, axes = plt.subplots(4, ROWS, figsize=(1.8 * ROWS, 7.2), height_ratios=(3, 2, 3, 2), layout="constrained")
    classes = range(len(test.class_names))
    for place, i in enumerate(chosen.tolist()):
        block, column = 2 * (place // ROWS), place % ROWS
        image, bars = axes[block, column], axes[block + 1, column]
        truth, label = int(test.labels[i]), int(prediction.label[i])
        image.imshow(test.images[i, 0], cmap="gray_r")
        image.set_title(f"says {label}, is {truth}", color="black" if truth == label else "tab:red", fontsize=10)
        image.set_xticks([])
        image.set_yticks([])
        image.set_xlabel(
            f"aleatoric {prediction.aleatoric[i]:.1e}\nepistemic {prediction.epistemic[i]:.1e}", fontsize=8
        )
        spread = prediction.epistemic_per_class[i].sqrt()
        bars.bar(classes, prediction.probs[i], yerr=spread, color="tab:blue", error_kw={"elinewidth": 0.8})
        bars.set_ylim(0, 1.15)
        bars.set_xticks(list(classes), test.class_names, fontsize=7)
        bars.set_yticks([0, 1], ["0", "1"], fontsize=7)
    axes[0, 0].set_ylabel("most epistemic", fontsize=11)
    axes[2, 0].set_ylabel("least epistemic", fontsize=11)
    figure.suptitle("What a Bayesian LeNet-5 doubts: probabilities and their spread over 50 draws")
    figure.savefig(picture, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
