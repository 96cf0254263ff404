from __future__ import annotations

import csv
import json
from pathlib import Path

import torch

import dubito as package
from dubito.convert import sparsity


def test_a_pruned_run_is_a_smaller_run_with_exact_zeros(dubito, digits_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "pruned"
    result = dubito("prune", digits_run, "--sparsity", 0.9, "--out", out, "--samples", 2)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].split() == ["sparsity", "weights", "left", "accuracy", "NLL"]
    assert [line.split()[:2] for line in lines[1:3]] == [["0.0%", "61,470"], ["90.0%", "6,147"]]
    facts = json.loads((out / "pruning.json").read_text())
    assert facts["weights"] == 6147
    assert facts["bytes"] == (out / "best.safetensors").stat().st_size
    assert facts["bytes"] < (digits_run / "best.safetensors").stat().st_size / 7

    model = package.load(out)
    assert round(sparsity(model), 4) == 0.9
    gone = model.linear5.weight_mean == 0
    for drawn in package.Predictor(model, 3).networks():
        assert bool((drawn.linear5.weight[gone] == 0).all())
    whole = package.load(digits_run)
    left = torch.cat([m.weight_mean[m.weight_mean != 0] for m in model.modules() if hasattr(m, "weight_mean")])
    values = torch.cat([m.weight_mean.flatten() for m in whole.modules() if hasattr(m, "weight_mean")])
    assert torch.isin(left, values).all()

    assert dubito("predict", out, "digits", "--top", 1).code == 0
    assert dubito("prune", out, "--sparsity", 0.95, "--out", tmp_path / "again", "--samples", 1).code == 0
    assert round(sparsity(package.load(tmp_path / "again")), 4) == 0.95


def test_a_sparsity_that_makes_the_network_worse_is_told_with_the_largest_that_does_not(
    dubito, digits_run: Path, tmp_path: Path
) -> None:
    result = dubito("prune", digits_run, "--sparsity", 0.99, "--out", tmp_path / "ruined", "--samples", 2)
    assert (result.code, (tmp_path / "ruined").is_dir()) == (0, True)
    assert "Warning: a sparsity of 0.99 makes the network worse: on 144 validation images accuracy" in result.err
    offered = float(result.err.split("without harm is ")[1].split(":")[0])
    assert 0.1 <= offered < 0.99
    again = dubito("prune", digits_run, "--sparsity", offered, "--out", tmp_path / "good", "--samples", 2)
    assert (again.code, again.err) == (0, "")


def test_the_curve_is_a_table_and_a_figure(dubito, digits_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "pruned"
    result = dubito("prune", digits_run, "--curve", "--sparsity", 0.33, "--out", out, "--samples", 1)
    assert result.code == 0, result.err
    with (out / "pruning.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    levels = [float(row["sparsity"]) for row in rows]
    assert levels == sorted(levels)
    assert {0.0, 0.33, 0.9} <= set(levels)
    assert float(rows[0]["accuracy"]) > float(rows[-1]["accuracy"])
    assert (out / "pruning.png").read_bytes().startswith(b"\x89PNG")
    assert not (digits_run / "pruning.csv").exists()


def test_a_curve_alone_goes_where_it_should(dubito, digits_run: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("dubito.cli.prune.LEVELS", (0.0, 0.9))
    assert dubito("prune", digits_run, "--curve", "--out", tmp_path / "curve", "--samples", 1).code == 0
    assert {path.name for path in (tmp_path / "curve").iterdir()} == {"pruning.csv", "pruning.png"}


def test_mistakes_end_in_a_sentence(dubito, digits_run: Path, tmp_path: Path) -> None:
    assert "give --sparsity SHARE, --curve or both" in dubito("prune", digits_run).err
    assert "sparsity is 1.5, but must be a share" in dubito("prune", digits_run, "--sparsity", 1.5).err
    assert "There is no run folder" in dubito("prune", tmp_path / "none", "--curve").err
    assert "--checkpoint is 'worst'" in dubito("prune", digits_run, "--curve", "--checkpoint", "worst").err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "exists already" in dubito("prune", digits_run, "--sparsity", 0.5, "--out", tmp_path / "full").err
    inside = tmp_path / "full" / "file" / "inside"
    result = dubito("prune", digits_run, "--curve", "--out", inside)
    assert (result.code, result.out, result.err) == (1, "", f"{inside} cannot be made: Not a directory.\n")


def test_a_frequentist_run_has_no_signal_to_noise(dubito, frequentist_run: Path) -> None:
    result = dubito("prune", frequentist_run, "--sparsity", 0.5)
    assert result.code == 1
    assert "has no Bayesian layers" in result.err
