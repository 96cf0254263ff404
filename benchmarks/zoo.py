"""Makes the trained networks that come with dubito: trains, measures and packs them, and writes their cards.

    python -m benchmarks.zoo [NAME ...] [--work runs/zoo] [--again] [--cards]

Trainings are run folders in --work: one that is there is gone on with, or used as it is. What is packed into
src/dubito/zoo/NAME already stays, unless --again. All choices (the best epoch, the score of novelty, the decision rule)
are made on images that the training held out; test images are only measured. Figures and cards are written from one
evaluation of the packed network, by 10 draws of seed 0. --cards only writes the cards again from the figures.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.pages import with_table

from dubito.data import Batches, Dataset, images_at_once
from dubito.evaluation import Evaluation, evaluate
from dubito.evaluation.decisions import decide
from dubito.evaluation.metrics import calibration_error, nll, separation
from dubito.evaluation.predictions import Evaluated
from dubito.evaluation.validation import record, validate
from dubito.files import new_folder, write_atomically
from dubito.prediction import Predictor
from dubito.prediction.novelty import FALSE_ALARM, FILE
from dubito.runs.run import Run
from dubito.runs.validation import Validation
from dubito.saving.hub import front_matter
from dubito.zoo import CARD, FIGURES, FOLDER, names
from dubito.zoo import figures as figures_of

BAYES_BY_BACKPROP, NATURAL_GRADIENT = "Bayes by Backprop", "natural gradient"
VALIDATION_IMAGES = 500
"""Of the validation record, so many predictions are packed, for a server to compare with; what was fitted is of all."""
HALVED = (".rho", ".prior.mean")
"""What a network that is too large has in half precision: how wide its posteriors are, and where they began."""
FRONT = Path(__file__).parents[1] / "README.md"
BEGIN = "<!-- trained networks: made by make zoo -->"
TAKEN = ("config.yaml", "best.safetensors", "metrics.csv", "posterior.csv")


@dataclass(frozen=True)
class Entry:
    """A network of the zoo.

    Attributes:
        name, data, method: what it is.
        training: the options of `dubito train`.
        ood: data sets whose images it should find unfamiliar; the first one is in the list that `dubito zoo` prints.
        max_error: what its decision rule promises of accepted images.
        references: training images whose features are packed, to measure novelty by.
        layers: of so many of the last layers; None for all.
        halved: whether some tensors are packed in half precision; everything is measured with these.
        packed: False for one that others only start from.
    """

    name: str
    data: str
    method: str
    training: str
    ood: tuple[str, ...] = ()
    max_error: float = 0.0
    references: int = 500
    layers: int | None = None
    halved: bool = False
    packed: bool = True


def _lenets(data: str, epochs: int, ood: tuple[str, ...], max_error: float) -> list[Entry]:
    name, training = f"lenet5-{data}", f"--data {data} --model lenet5"
    return [
        Entry(name, data, BAYES_BY_BACKPROP, f"{training} --epochs {epochs} --seed 0", ood, max_error),
        Entry(
            f"{name}-natural",
            data,
            NATURAL_GRADIENT,
            f"{training} --optimizer natural --epochs {epochs} --seed 0",
            ood,
            max_error,
        ),
    ]


def _resnets(start: str = "resnet20-cifar10-frequentist") -> list[Entry]:
    data, split = "--data cifar10", "--validation-fraction 0.05 --seed 0"
    tuned = f"{data} --preset finetune --init {{work}}/{start}"
    rest: dict[str, Any] = {"ood": ("cifar100",), "max_error": 0.03, "references": 2000, "layers": 1, "halved": True}
    return [
        Entry(
            start,
            "cifar10",
            "frequentist",
            f"{data} --model resnet20 --inference frequentist --epochs 20 {split}",
            packed=False,
        ),
        Entry("resnet20-cifar10", "cifar10", BAYES_BY_BACKPROP, f"{tuned} --optimizer adam --epochs 5 {split}", **rest),
        Entry("resnet20-cifar10-natural", "cifar10", NATURAL_GRADIENT, f"{tuned} --epochs 2 {split}", **rest),
    ]


ENTRIES = [
    *_lenets("mnist", 10, ("fashion-mnist", "cifar10"), 0.005),
    *_lenets("fashion-mnist", 10, ("mnist", "cifar10"), 0.03),
    *_lenets("cifar10", 20, ("cifar100", "fashion-mnist"), 0.1),
    *_resnets(),
]

DATASETS = {"mnist": "ylecun/mnist", "fashion-mnist": "zalando-datasets/fashion_mnist", "cifar10": "uoft-cs/cifar10"}
"""What the hub calls them."""

IMAGES = {
    "mnist": "single white digits on black, 28 x 28 pixels, centred as in MNIST; photographs are not like that",
    "fashion-mnist": "single pieces of clothing, pale on black, 28 x 28 pixels, as in Fashion-MNIST",
    "cifar10": "one object of CIFAR-10's ten classes that fills a colour picture of 32 x 32 pixels",
}


def main() -> None:
    """Make the networks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; all unless given")
    parser.add_argument("--work", type=Path, default=Path("runs/zoo"), help="where they are trained")
    parser.add_argument("--again", action="store_true", help="pack again what is packed already")
    parser.add_argument("--cards", action="store_true", help="only write the cards again")
    given = parser.parse_args()
    if unknown := set(given.names) - {entry.name for entry in ENTRIES}:
        parser.error(f"there is no {', '.join(sorted(unknown))} among {', '.join(entry.name for entry in ENTRIES)}")
    if given.cards:
        for name in given.names or names():
            write_atomically(FOLDER / name / CARD, card(figures_of(name)))
        write_atomically(FRONT, with_overview(FRONT.read_text(encoding="utf-8")))
        return
    torch.set_flush_denormal(True)
    for entry in ENTRIES:
        wanted = not given.names or entry.name in given.names
        if not wanted or (entry.packed and (FOLDER / entry.name).exists() and not given.again):
            continue
        train(entry, given.work)
        if entry.packed:
            pack(entry, given.work)
            print(f"{entry.name}: {sum(file.stat().st_size for file in (FOLDER / entry.name).iterdir()) / 1e6:.2f} MB")
            write_atomically(FRONT, with_overview(FRONT.read_text(encoding="utf-8")))


def train(entry: Entry, work: Path) -> None:
    """Train the network, or go on where its training stopped."""
    run = work / entry.name
    if (run / "config.yaml").exists() and Run.open(run).find_validation() is not None:
        return
    options = ["--resume", str(run)] if (run / "config.yaml").exists() else [*arguments(entry, work), "--out", str(run)]
    subprocess.run([sys.executable, "-m", "dubito", "train", *options], check=True)


def arguments(entry: Entry, work: Path) -> list[str]:
    """The options of `dubito train`."""
    return shlex.split(entry.training.format(work=work))


def pack(entry: Entry, work: Path) -> None:
    """Fit, measure and pack a trained network, and write its card."""
    trained = Run.open(work / entry.name)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / entry.name
        place.mkdir()
        for name in TAKEN:
            if (trained.path / name).exists():
                shutil.copyfile(trained.path / name, place / name)
        _without_places(place / "config.yaml", trained.config.init, work)
        run = Run.open(place)
        if entry.halved:
            tensors, notes = run.read_checkpoint("best")
            halved = {key: tensor.half() for key, tensor in tensors.items() if key.endswith(HALVED)}
            run.write_checkpoint("best", tensors | halved, notes)
        held_out = fit_novelty(run, entry.references, entry.layers)
        validation = validate(run, held_out, progress=True)
        rule = decide(run, validation, max_error=entry.max_error, false_alarm=FALSE_ALARM)
        found = evaluate(run, ood=entry.ood, noise=(), progress=True)
        figures = {**_origin(entry, trained, work), **_measured(found, validation), "rule": rule.describe()}
        test = rule.measure(found.test.prediction, found.test.labels)
        figures["decided"] = {**test._asdict(), "error": test.error, "coverage": test.coverage}
        for name, part in found.ood.items():
            decisions = rule(part.prediction)
            figures["ood"][name] |= {"accepted": float((decisions == "accept").mean())}
        run.write_validation(some_of(validation, held_out))
        write_atomically(place / FIGURES, json.dumps(figures, indent=1, allow_nan=False) + "\n")
        write_atomically(place / CARD, card(figures))
        shutil.rmtree(FOLDER / entry.name, ignore_errors=True)
        with new_folder(FOLDER / entry.name) as packed:
            shutil.copytree(place, packed, dirs_exist_ok=True)


def with_overview(page: str) -> str:
    """A page with today's table of all networks between its marks."""
    header = ["network", "trained by", "accuracy", "NLL", "ECE", "accepted by its rule", "of them wrong", "novelty"]
    rows = [header, ["---"] * len(header), *(_overview(figures_of(name)) for name in names())]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return with_table(page, BEGIN, table)


def _overview(found: dict[str, Any]) -> list[str]:
    test, decided, (other, scores) = found["test"], found["decided"], next(iter(found["ood"].items()))
    wrong = "-" if decided["error"] is None else f"{decided['error']:.2%}"
    shares = [f"{test['accuracy']:.2%}", f"{decided['accepted'] / decided['images']:.1%}", wrong]
    accuracy, accepted, wrong = (share.replace("%", " %") for share in shares)
    numbers = [accuracy, f"{test['nll']:.3f}", f"{test['ece']:.3f}", accepted, wrong]
    return [f"`zoo:{found['name']}`", found["method"], *numbers, f"{scores['novelty']:.3f} {other}"]


def _without_places(config: Path, init: str, work: Path) -> None:
    """Where the weights at the start were, without the folders of this machine."""
    if init != "none":
        text = config.read_text(encoding="utf-8")
        write_atomically(config, text.replace(init, f"{work}/{Path(init).name}"))


def fit_novelty(run: Run, references: int, layers: int | None) -> Dataset:
    """Fit novelty on fewer images than a training does, whose features are packed; the images that were held out."""
    training, held_out = run.parts()
    chosen = torch.randperm(len(training), generator=torch.Generator().manual_seed(0))[:references].sort().values
    predictor = Predictor(run, 1, "mean")
    novelty = predictor.fit_novelty(
        _batches(run, training, chosen),
        _batches(run, held_out, torch.arange(len(held_out))),
        weights=run.fingerprint(),
        last=layers,
    )
    run.write(FILE, novelty.to_bytes())
    return held_out


def _batches(run: Run, part: Dataset, chosen: torch.Tensor) -> Batches:
    images, labels = part.images[chosen], part.labels[chosen]
    return Batches(images, labels, images_at_once(run.data.size), shuffle=False, mean=run.data.mean, std=run.data.std)


def some_of(validation: Validation, held_out: Dataset) -> Validation:
    """A validation record of some of the images, chosen at random, with what was fitted to all of them."""
    chosen = (
        torch.randperm(len(validation), generator=torch.Generator().manual_seed(0))[:VALIDATION_IMAGES].sort().values
    )
    images, labels = held_out.images[chosen], validation.labels[chosen]
    part = Evaluated("validation", images, labels, validation.prediction[chosen], None, (1,), "probability")
    return replace(record(part), calibration=validation.calibration)


def _origin(entry: Entry, trained: Run, work: Path) -> dict[str, Any]:
    """What the network is, and how it was made."""
    machine = trained.environment()
    network = {"resnet20": "ResNet-20", "lenet5": "LeNet-5"}[trained.config.model]
    commands = [f"dubito train {entry.training.format(work=work)} --out {work / entry.name}"]
    if trained.config.init != "none":
        start = next(other for other in ENTRIES if not other.packed)
        commands.insert(0, f"dubito train {start.training} --out {work / start.name}")
    return {
        "name": entry.name,
        "network": network,
        "data": entry.data,
        "method": entry.method,
        "commands": [*commands, f"python -m benchmarks.zoo {entry.name} --work {work}"],
        "commit": machine["commit"],
        "torch": machine["versions"]["torch"],
        "epochs": trained.config.epochs,
        "seconds": round(sum(row["seconds"] for row in trained.metrics())),
        "training_images": trained.data.num_data,
        "references": entry.references,
    }


def _measured(found: Evaluation, validation: Validation) -> dict[str, Any]:
    """The figures on validation images, test images and those of other data sets."""
    kinds = ("accuracy", "nll", "brier", "ece")
    probs, labels = validation.prediction.probs, validation.labels
    own, metrics = found.test.prediction, found.metrics
    assert own.novelty is not None
    others: dict[str, Any] = {}
    for name, part in found.ood.items():
        assert part.prediction.novelty is not None
        scores = {kind: metrics["ood"][name][kind]["auroc"] for kind in ("entropy", "epistemic")}
        others[name] = {**scores, "novelty": separation(own.novelty, part.prediction.novelty).auroc}
    return {
        "validation": {
            "images": len(validation),
            "accuracy": validation.calibration.accuracy,
            "nll": nll(probs, labels),
            "ece": calibration_error(probs, labels),
        },
        "test": {
            "images": len(found.test),
            **{kind: metrics[kind] for kind in kinds},
            "intervals": {kind: metrics["intervals"][kind] for kind in kinds},
        },
        "ood": others,
    }


def card(figures: dict[str, Any]) -> str:
    """The card of a network, from its figures alone."""
    name, data, test, kept = (figures[key] for key in ("name", "data", "test", "validation"))
    return f"""{_front_matter(figures)}
# {name}

A Bayesian {figures["network"]}, trained on {data} by {figures["method"]}. It says what an image shows, how far to
trust that, and whether the image is like those that it was trained on. It comes with dubito:

```
dubito serve zoo:{name}
```

```python
predictor = dubito.Predictor("zoo:{name}")
prediction = predictor("image.png")
print(prediction.label, prediction.confidence, prediction.epistemic, prediction.novelty, prediction.decision)
```

## Figures

By 10 draws of the weights, with seed 0. Intervals are of 95 % and cover test images and draws, not other trainings.

| | test images ({test["images"]:,}) | interval | validation images ({kept["images"]:,}) |
| --- | --- | --- | --- |
{_rows(figures)}

Area under the ROC curve for telling test images from those of other data sets, and what the decision rule does with the
latter:

| other images | novelty | entropy | epistemic | accepted all the same |
| --- | --- | --- | --- | --- |
{_others(figures)}

## Decision rule

{figures["rule"]}

On the test images: {_decided(figures)}

## How it was made

```
{chr(10).join(figures["commands"])}
```

Commit {figures["commit"]}, torch {figures["torch"]}, {figures["training_images"]:,} training images,
{figures["epochs"]} epochs, {figures["seconds"] / 60:.0f} minutes on one thread of a busy machine{_start(figures)}.
Weights, calibration, novelty and rule were chosen on the {kept["images"]:,} images that the training held out; test
images were only measured. Novelty compares with the features of at most {figures["references"]:,} training images.
{_halved(figures)}
## Limits

- It knows {IMAGES[data]}.
- It was trained once: another seed gives other figures.
- The rule's promise is about images like those of {data}. The table above says how many of other kinds it accepts.
"""


def _halved(figures: dict[str, Any]) -> str:
    entry = next(entry for entry in ENTRIES if entry.name == figures["name"])
    if not entry.halved:
        return ""
    return (
        "The widths of its posteriors are kept in half precision, and all figures are those of the network so kept.\n"
    )


def _front_matter(figures: dict[str, Any]) -> str:
    values = [("accuracy", "Accuracy"), ("nll", "Negative log-likelihood"), ("ece", "Expected calibration error")]
    metrics = [
        {"type": kind, "name": title, "value": round(figures["test"][kind], 4), "verified": False}
        for kind, title in values
    ]
    dataset = {"name": figures["data"], "type": DATASETS[figures["data"]], "split": "test"}
    task = {"type": "image-classification", "name": "Image classification"}
    return front_matter(
        license="mit",
        datasets=[DATASETS[figures["data"]]],
        metrics=["accuracy"],
        **{
            "model-index": [
                {"name": figures["name"], "results": [{"task": task, "dataset": dataset, "metrics": metrics}]}
            ]
        },
    )


def _rows(figures: dict[str, Any]) -> str:
    test, kept = figures["test"], figures["validation"]
    titles = {"accuracy": "accuracy", "nll": "negative log-likelihood", "ece": "calibration error, 15 bins"}
    rows = []
    for kind, title in titles.items():
        form = "{:.2%}" if kind == "accuracy" else "{:.4f}"
        value, low, high, held = (form.format(one) for one in (test[kind], *test["intervals"][kind], kept[kind]))
        rows.append(f"| {title} | {value} | {low} to {high} | {held} |".replace("%", " %"))
    return "\n".join(rows)


def _others(figures: dict[str, Any]) -> str:
    rows = []
    for name, found in figures["ood"].items():
        scores = " | ".join(f"{found[kind]:.3f}" for kind in ("novelty", "entropy", "epistemic"))
        rows.append(f"| {name} | {scores} | {100 * found['accepted']:.1f} % |")
    return "\n".join(rows)


def _decided(figures: dict[str, Any]) -> str:
    found = figures["decided"]
    shares = {name: f"{100 * found[name] / found['images']:.1f} %" for name in ("accepted", "reviewed", "refused")}
    wrong = "" if found["error"] is None else f" ({100 * found['error']:.2f} % of them wrong)"
    return f"{shares['accepted']} accepted{wrong}, {shares['reviewed']} to review, {shares['refused']} refused."


def _start(figures: dict[str, Any]) -> str:
    return ", after those of the frequentist network that it started from" if len(figures["commands"]) > 2 else ""


if __name__ == "__main__":
    main()
