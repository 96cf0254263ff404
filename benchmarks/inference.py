"""Ways of inference side by side: what each costs in accuracy, and what its uncertainties find.

    dubito evaluate RUN --ood SET            # of every run first; an ensemble: dubito evaluate RUN RUN RUN --ensemble
    python -m benchmarks.inference FOLDER... --out results/inference.json

Each folder holds an evaluation: a run folder, or the folder of an ensemble's evaluation. One table for each network and
data set. Trainings that differ in nothing but the seed share a row: the mean, and in brackets the range. Everything is
of the test images, with the weights of lowest validation NLL; the free energy is that of the last epoch's training
images under draws, in nats an image, and needs no temperature to be compared. AUROC is that of finding mistakes, and of
telling other images from test images, by each score.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dubito.evaluation.storage import read
from dubito.files import write_atomically
from dubito.runs.run import Run

SCORES = ("entropy", "epistemic", "mutual_information")
SHORT = {"entropy": "entropy", "epistemic": "epistemic", "mutual_information": "MI"}
PLAIN = ("accuracy", "nll", "ece")


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    options = _options(arguments)
    rows = grouped([measured(folder) for folder in options.folders])
    table = markdown(rows)
    if options.out:
        write_atomically(options.out, json.dumps(rows, indent=1) + "\n")
        write_atomically(options.out.with_suffix(".md"), table + "\n")
    print(table)
    return rows


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", type=Path, nargs="+", help="folders with an evaluation")
    parser.add_argument("--out", type=Path, help="also write the results as JSON, and the tables beside it")
    return parser.parse_args(arguments)


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
        heads += ["KL/N", "NLL + KL/N"]
        lines += [f"**{model} on {data}**", "", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
        lines += ["| " + " | ".join(_cells(row, sets)) + " |" for row in own] + [""]
    return "\n".join(lines).rstrip()


def _cells(row: dict[str, Any], sets: Sequence[str]) -> list[str]:
    found = row["figures"]
    cells = [row["way"], _number(found["accuracy"], 2, 100), _number(found["nll"], 3), _number(found["ece"], 4)]
    cells += [" / ".join(_number(found.get(f"{name}_{score}", []), 3) for score in SCORES) for name in sets]
    return cells + [_number(found.get(name, []), 3) for name in ("kl_per_image", "free_energy")]


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
