"""The examples run, and what they show is true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from example_files import example


def test_regression_finds_the_noise_and_doubts_where_there_are_no_data(tmp_path: Path) -> None:
    regression = example("regression")
    bands = regression.main(["--steps", "600", "--out", str(tmp_path / "bands.png")])
    inside = bands.x.abs() <= 2
    noise = regression.noise(bands.x)[inside]
    assert torch.corrcoef(torch.stack([bands.aleatoric[inside], noise]))[0, 1] > 0.9
    assert (bands.aleatoric[inside] - noise).abs().mean() < 0.1
    assert (bands.mean - regression.function(bands.x))[inside].abs().mean() < 0.15
    for edge, beyond in ((bands.x == -2, bands.x == -4), (bands.x == 2, bands.x == 4)):
        assert bands.epistemic[beyond] > 2 * bands.epistemic[edge]
    assert (tmp_path / "bands.png").read_bytes().startswith(b"\x89PNG")


def test_segmentation_draws_the_rims_and_doubts_what_it_never_saw(tmp_path: Path) -> None:
    rows = example("segmentation").main(
        ["--steps", "150", "--scenes", "300", "--samples", "10", "--out", str(tmp_path / "maps.png")]
    )
    (known, prediction), (strange, doubted) = rows.values()
    assert prediction.aleatoric.shape == known.labels.shape
    assert (prediction.label == known.labels)[~known.rim].float().mean() > 0.95
    # A coin toss between two of three classes has an aleatoric uncertainty of (0.25 + 0.25) / 3.
    assert prediction.aleatoric[known.rim].mean().item() == pytest.approx(0.5 / 3, abs=0.05)
    assert prediction.aleatoric[known.rim].mean() > 4 * prediction.aleatoric[~known.rim].mean()
    assert doubted.epistemic[strange.inside].mean() > 3 * prediction.epistemic[known.inside].mean()
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")


def test_recipe_compares_three_networks(tmp_path: Path) -> None:
    arguments = ["--epochs", "3", "--fine-tune", "1", "--initial-std", "0.01", "--last-initial-std", "0.01"]
    arguments += ["--out", str(tmp_path / "run"), "--json", str(tmp_path / "recipe.json"), "--samples", "3"]
    result = example("recipe").main(arguments)
    assert json.loads((tmp_path / "recipe.json").read_text()) == result
    for split in ("validation", "test"):
        accuracies = {name: row["accuracy"] for name, row in result[split].items()}
        assert list(accuracies) == ["frequentist", "Bayesian, all layers", "Bayesian, last layer"]
        assert min(accuracies.values()) > accuracies["frequentist"] - 0.05
    assert set(result["seconds"]) == set(result["test"])
