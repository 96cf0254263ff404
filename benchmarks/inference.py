"""Ways of inference side by side: what each costs in accuracy, and what its uncertainties find.

    python -m benchmarks.inference train lenet5 --runs runs/inference [--ways twin,natural] [--seeds 0,1]
    python -m benchmarks.inference table FOLDER... --out results/inference.json --docs docs/results/inference.md

`train` trains and evaluates a network in every way of `WAYS`: one that is there is gone on with, or left as it is.
Some start from the twin's weights, and the ensemble is made of twins. `table` compares evaluations, which lie in run
folders or in those of ensembles; without folders it takes all of --runs. One table for each network and data set;
those of others in --out stay. Trainings that differ in nothing but the seed share a row: the mean, and in brackets
the range. Everything is of the test images, with the weights of lowest validation NLL; the free energy is that of the
last epoch's training images under draws, in nats an image, and needs no temperature to be compared. AUROC is that of
finding mistakes, and of telling other images from test images, by each score. What a training step costs comes from
`make bench`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import with_table

from dubito.evaluation.storage import FILE, read
from dubito.files import write_atomically
from dubito.runs.run import Run

BENCHMARK = Path(__file__).parents[1] / "results" / "benchmark.json"
BEGIN = "<!-- tables: made by python -m benchmarks.inference table -->"
SCORES = ("entropy", "epistemic", "mutual_information")
SHORT = {"entropy": "entropy", "epistemic": "epistemic", "mutual_information": "MI"}
PLAIN = ("accuracy", "nll", "ece")


NETWORKS = {
    "lenet5": ("--data mnist --model lenet5 --epochs 10", "fashion-mnist"),
    "alexnet": ("--data cifar10 --model alexnet --epochs 10 --precision bf16", "cifar100"),
    "resnet20": (
        "--data cifar10 --model resnet20 --epochs 20 --validation-fraction 0.05 --precision bf16",
        "cifar100",
    ),
}
"""The settings of each network, and images of other things."""
TWIN, ENSEMBLE = "twin", "ensemble"
TWIN_SYSTEM = "frequentist twin"
"""What the benchmark calls the twin."""
TUNED = "--preset finetune --epochs 2 --init {twin}"
WAYS = {
    TWIN: "--inference frequentist",
    "dropout": "--inference dropout",
    "backprop": "--estimator local",
    "natural": "--optimizer natural",
    "natural-local": "--optimizer natural --estimator local",
    "tuned-backprop": f"{TUNED} --optimizer adam --estimator local",
    "tuned-natural": TUNED,
    "tuned-natural-local": f"{TUNED} --estimator local",
}
"""The settings of each way; what comes later replaces what a network says."""
MEMBERS = 3


def main(arguments: list[str] | None = None) -> None:
    given = _options(arguments)
    if given.do == "train":
        for seed in given.seeds:
            for way in given.ways:
                train(given.network, way, seed, given.runs)
        if ENSEMBLE in given.ways:
            ensemble(given.network, given.runs)
        return
    folders = given.folders or [path.parent for path in sorted(given.runs.glob(f"*/{FILE}.json"))]
    rows = grouped([measured(folder) for folder in folders])
    if given.out:
        rows = with_others(rows, given.out)
        write_atomically(given.out, json.dumps(rows, indent=1) + "\n")
    if given.docs:
        write_atomically(given.docs, with_tables(given.docs.read_text(encoding="utf-8"), rows))
    print(markdown(rows))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    todo = parser.add_subparsers(dest="do", required=True)
    trainings = todo.add_parser("train", help="train and evaluate a network in several ways")
    trainings.add_argument("network", choices=list(NETWORKS))
    trainings.add_argument("--ways", type=lambda text: text.split(","), default=[*WAYS, ENSEMBLE])
    trainings.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0])
    comparison = todo.add_parser("table", help="compare evaluations")
    comparison.add_argument("folders", type=Path, nargs="*", help="folders with an evaluation; all of --runs if none")
    comparison.add_argument("--out", type=Path, help="also write the results as JSON")
    comparison.add_argument("--docs", type=Path, help="page whose tables to renew")
    for one in (trainings, comparison):
        one.add_argument("--runs", type=Path, default=Path("runs/inference"), help="where the trainings are")
    given = parser.parse_args(arguments)
    if given.do == "train" and (unknown := set(given.ways) - {*WAYS, ENSEMBLE}):
        parser.error(f"there is no way {', '.join(sorted(unknown))} among {', '.join([*WAYS, ENSEMBLE])}")
    return given


def train(network: str, way: str, seed: int, runs: Path) -> None:
    """Train the network in this way, or go on with it, and evaluate it; an ensemble's members are twins."""
    if way == ENSEMBLE:
        for other in range(seed, seed + MEMBERS):
            train(network, TWIN, other, runs)
        return
    settings, others = NETWORKS[network]
    run, twin = runs / f"{network}-{way}-{seed}", runs / f"{network}-{TWIN}-{seed}"
    words = shlex.split(f"{settings} {WAYS[way]}".format(twin=twin))
    if not (run / "config.yaml").exists():
        dubito("train", *words, "--seed", str(seed), "--no-novelty", "--out", str(run))
    elif Run.open(run).find_validation() is None:
        dubito("train", "--resume", str(run))
    evaluate([run], others, run)


def ensemble(network: str, runs: Path) -> None:
    """Evaluate the mixture of the first twins."""
    members = [runs / f"{network}-{TWIN}-{seed}" for seed in range(MEMBERS)]
    evaluate(members, NETWORKS[network][1], runs / f"{network}-{ENSEMBLE}", "--ensemble")


def evaluate(members: Sequence[Path], others: str, folder: Path, *more: str) -> None:
    """Measure it on the test images, unless that was done."""
    if not (folder / f"{FILE}.json").exists():
        runs = [str(member) for member in members]
        dubito("evaluate", *runs, "--ood", others, "--noise", "none", "--folder", str(folder), *more)


def dubito(*words: str) -> None:
    """Call a command."""
    print("dubito", shlex.join(words), flush=True)
    subprocess.run([sys.executable, "-m", "dubito", *words], check=True)


def measured(folder: Path) -> dict[str, Any]:
    """The figures of one evaluation."""
    evaluation = read(folder, images=False)
    runs: Sequence[Run] = evaluation["runs"]
    metrics = evaluation["metrics"]
    config, last = runs[0].config, runs[0].metrics()[-1]
    figures = {name: metrics[name] for name in PLAIN}
    figures |= {f"mistakes_{score}": metrics["errors"][score]["auroc"] for score in SCORES}
    for other, found in metrics["ood"].items():
        figures |= {f"{other}_{score}": found[score]["auroc"] for score in SCORES}
    if config.inference == "vi" and len(runs) == 1:
        figures["kl_per_image"] = last["kl"] / runs[0].data.num_data
        figures["free_energy"] = last["train_nll"] + figures["kl_per_image"]
    return {
        "model": config.model,
        "data": config.data,
        "way": described(runs),
        "seeds": [run.config.seed for run in runs],
        "epochs": config.epochs,
        "figures": figures,
    }


def described(runs: Sequence[Run]) -> str:
    """How these runs were trained, in a few words.

    >>> from types import SimpleNamespace as Some
    >>> from dubito.runs.config import TrainingConfig
    >>> described([Some(config=TrainingConfig(inference="frequentist"))] * 3)
    'ensemble of 3: frequentist, adam'
    """
    config = runs[0].config
    words = [f"{config.inference}, {config.optimizer}"]
    if config.inference == "vi":
        words += [config.estimator, f"temperature {config.temperature:g}"]
    if config.init != "none":
        words.append(f"fine-tuned, {config.epochs} epochs")
    return (f"ensemble of {len(runs)}: " if len(runs) > 1 else "") + ", ".join(words)


def grouped(evaluations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Evaluations of the same way in one row: lists of figures."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for one in evaluations:
        key = one["model"], one["data"], one["way"]
        row = rows.setdefault(key, {**one, "seeds": [], "figures": {name: [] for name in one["figures"]}})
        row["seeds"].append(one["seeds"])
        for name, value in one["figures"].items():
            row["figures"].setdefault(name, []).append(value)
    return list(rows.values())


def with_others(rows: list[dict[str, Any]], file: Path) -> list[dict[str, Any]]:
    """These rows behind those that the file has of other networks and data sets."""
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    measured_now = {(row["model"], row["data"]) for row in rows}
    return [row for row in before if (row["model"], row["data"]) not in measured_now] + rows


def with_tables(page: str, rows: Sequence[dict[str, Any]]) -> str:
    """A page with today's tables between its marks."""
    return with_table(page, BEGIN, markdown(rows))


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A table for each network and data set."""
    lines: list[str] = []
    for model, data in dict.fromkeys((row["model"], row["data"]) for row in rows):
        own = [row for row in rows if (row["model"], row["data"]) == (model, data)]
        sets = list(
            dict.fromkeys(
                key.rpartition("_entropy")[0] for row in own for key in row["figures"] if key.endswith("_entropy")
            )
        )
        names = " / ".join(SHORT[score] for score in SCORES)
        heads = [
            "way",
            "accuracy, %",
            "NLL",
            "ECE",
            *(f"{'mistakes' if s == 'mistakes' else s}: {names}" for s in sets),
        ]
        heads += ["KL/N", "NLL + KL/N", "step", "memory"]
        lines += [f"**{model} on {data}**", "", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
        lines += ["| " + " | ".join(_cells(row, sets)) + " |" for row in own] + [""]
    return "\n".join(lines).rstrip()


def _cells(row: dict[str, Any], sets: Sequence[str]) -> list[str]:
    found = row["figures"]
    cells = [row["way"], _number(found["accuracy"], 2, 100), _number(found["nll"], 3), _number(found["ece"], 4)]
    cells += [" / ".join(_number(found.get(f"{name}_{score}", []), 3) for score in SCORES) for name in sets]
    cells += [_number(found.get(name, []), 3) for name in ("kl_per_image", "free_energy")]
    return [*cells, *cost(row["model"], row["way"])]


def cost(model: str, way: str) -> tuple[str, str]:
    """Time of a training step and peak memory, as multiples of the frequentist twin's under Adam.

    >>> cost("lenet5", "frequentist, adam"), cost("lenet5", "ensemble of 3: frequentist, adam")
    (('1.00', '1.00'), ('3.00', '1.00'))
    >>> cost("no such network", "frequentist, adam")
    ('-', '-')
    """
    stage = json.loads(BENCHMARK.read_text(encoding="utf-8"))["stages"].get(model)
    system = _system(way)
    if stage is None or system not in stage["ratios"]:
        return "-", "-"
    members = MEMBERS if way.startswith(ENSEMBLE) else 1
    step = members * stage["ratios"][system]["step"]["median"]
    memory = stage["memory"][system] / stage["memory"][TWIN_SYSTEM]
    return f"{step:.2f}", f"{memory:.2f}"


def _system(way: str) -> str:
    """What the benchmark calls a way of training; it does not measure all of them."""
    kind, optimizer, *estimator = way.removeprefix(f"{ENSEMBLE} of {MEMBERS}: ").split(", ")[:3]
    if kind != "vi":
        return TWIN_SYSTEM if (kind, optimizer) == ("frequentist", "adam") else f"{kind}, {optimizer}"
    known = [optimizer] if optimizer == "natural" else []
    known += [name for name in estimator if (optimizer, name) != ("natural", "weight")]
    return f"dubito {', '.join(known)}"


def _number(values: Sequence[float], digits: int, factor: float = 1) -> str:
    """The mean, and the range if there are several.

    >>> _number([0.5], 2), _number([0.5, 0.75], 2), _number([], 2)
    ('0.50', '0.62 (0.50-0.75)', '-')
    """
    if not values:
        return "-"
    mean = f"{factor * sum(values) / len(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({factor * min(values):.{digits}f}-{factor * max(values):.{digits}f})"


if __name__ == "__main__":
    main()
