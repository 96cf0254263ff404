"""Evaluations to report on: small, with class names that a careless page would choke on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from evaluation_runs import make_run

from dubito.data import load
from dubito.evaluation import Evaluation, evaluate
from dubito.evaluation.report import write_report

NASTY = ("<b>zero</b>", "a & b", '"two"', "</script>", "$4$", "five", "_six", "{{ 7 }}", "ünicode", "nine " * 12)
QUICK = {"samples": 3, "bootstrap": 20, "noise": (0.0, 0.3), "noise_images": 50}


def nasty_digits(folder: Path) -> str:
    """The digits with other names for their classes, as an .npz."""
    parts = {split: load("digits", split) for split in ("train", "test")}
    arrays = {f"x_{split}": part.images.numpy()[:, 0] for split, part in parts.items()}
    labels = {f"y_{split}": part.labels.numpy() for split, part in parts.items()}
    path = folder / "digits & <co>.npz"
    np.savez(path, **arrays, **labels, class_names=np.array(NASTY))
    return str(path)


def strange(folder: Path) -> str:
    """Noise of three classes, as an .npz."""
    path = folder / "strange.npz"
    images = np.random.default_rng(0).integers(0, 256, (90, 32, 32), dtype=np.uint8)
    np.savez(path, x_train=images[:30], y_train=np.arange(30) % 3, x_test=images[30:], y_test=np.arange(60) % 3)
    return str(path)


def reported(folder: Path, *, ood: bool = True, history: bool = True, **settings: object) -> Evaluation:
    """A trained network and its evaluation, stored in its run folder."""
    data = settings.pop("data", None) or nasty_digits(folder)
    run = make_run(folder / "run", trained=True, data=data, **settings)
    if history:
        run.write_table("metrics.csv", learning(6, bayesian=run.config.inference == "vi"))
        run.write_table("posterior.csv", trace(6) if run.config.inference == "vi" else [])
    evaluation = evaluate(run, ood=[strange(folder)] if ood else [], **QUICK)
    evaluation.save(run.path)
    return evaluation


def shared(folders: pytest.TempPathFactory) -> tuple[Evaluation, Path]:
    """An evaluation and its report, with the figures beside it; made once for all tests that only read them."""
    if not _SHARED:
        folder = folders.mktemp("reported")
        evaluation = reported(folder)
        _SHARED.append((evaluation, write_report(evaluation, folder / "report.html", folder / "figures")))
    return _SHARED[0]


_SHARED: list[tuple[Evaluation, Path]] = []


def learning(epochs: int, bayesian: bool = True) -> list[dict[str, float]]:
    """Rows of a metrics.csv."""
    return [
        {
            "epoch": epoch,
            "train_nll": 2 / epoch,
            "train_accuracy": 1 - 0.5 / epoch,
            "kl": 1e5 / epoch if bayesian else 0.0,
            "val_accuracy": 1 - 0.6 / epoch,
            "val_nll": 2.2 / epoch,
        }
        for epoch in range(1, epochs + 1)
    ]


def trace(epochs: int) -> list[dict[str, float | str]]:
    """Rows of a posterior.csv."""
    return [
        {"epoch": epoch, "layer": layer, "index": 7, "mean": 0.1 * epoch, "std": 0.1 / epoch}
        for epoch in range(1, epochs + 1)
        for layer in ("convolution1", "linear7")
    ]
