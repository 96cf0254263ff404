"""Trainings with other settings than the preset's: what was tried, judged on validation images alone."""

from __future__ import annotations

from pathlib import Path

from dubito.paper.cells import TITLES
from dubito.paper.tables import markdown
from dubito.runs.config import configure
from dubito.runs.run import Run

TEXT = (
    "Trainings that led to the settings of the preset `default` and of the budget `cpu`, or away from others. Each is "
    "judged by the validation split, at its epoch of lowest NLL, and by the NLL of its last epoch; many were stopped "
    "when they fell behind. A setting that is not named is the preset's."
)


def trials(folder: Path) -> str:
    """A table of the run folders, which need no weights."""
    rows = []
    for path in sorted(folder.glob("*/config.yaml")):
        run = Run.open(path.parent)
        config, metrics = run.config, run.metrics()
        usual = configure("default", model=config.model, data=config.data, inference=config.inference).to_dict()
        other = {name: value for name, value in config.to_dict().items() if value != usual[name] and name != "epochs"}
        if "init" in other:
            other["init"] = Path(config.init).name  # a run folder
        best, last = min(metrics, key=lambda row: row["val_nll"]), metrics[-1]
        rows.append(
            (
                f"{TITLES[config.inference]} {TITLES[config.model]}, {TITLES[config.data]}",
                ", ".join(f"{name} {value}" for name, value in other.items()) or "none",
                f"{len(metrics)} of {config.epochs}",
                f"{100 * best['val_accuracy']:.2f} %",
                f"{best['val_nll']:.3f}",
                f"{best['val_ece']:.3f}",
                f"{last['val_nll']:.3f}",
            )
        )
    return markdown(("network", "other settings", "epochs", "accuracy", "NLL", "ECE", "last NLL"), rows)
