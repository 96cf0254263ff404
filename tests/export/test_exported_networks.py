"""`dubito export` of residual networks and of one of Hugging Face: the file predicts what the Predictor does."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from PIL import Image

import dubito
from dubito import cli
from dubito.runs.config import TrainingConfig
from dubito.runs.description import DataDescription
from dubito.runs.run import NETWORK, Run

SAMPLES = 2


def new_run(folder: Path, model: str, size: int) -> Run:
    """A run of a network with fresh weights, and statistics of batch norm that a fresh one does not have."""
    data = DataDescription("some", 3, ("ant", "bee", "cat"), (0.5,) * 3, (0.25,) * 3, 0, 10, size)
    run = Run(folder, TrainingConfig(model=model, activation="own", head="softmax", initial_std=0.05), data)
    run.create()
    network = run.build()
    for name, buffer in network.named_buffers():
        if "running" in name:
            buffer.add_(torch.rand(buffer.shape))
    run.write_checkpoint("best", {NETWORK + name: tensor for name, tensor in network.state_dict().items()}, {})
    return run


def photographs(folder: Path) -> list[str]:
    """Files of images that are wider than high."""
    folder.mkdir()
    files = [str(folder / f"{number}.png") for number in range(3)]
    for file in files:
        Image.fromarray(torch.randint(256, (20, 30, 3), dtype=torch.uint8).numpy()).save(file)
    return files


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("hf", 8),
        pytest.param("resnet18", 72, marks=pytest.mark.slow),  # above 64 pixels: the stem for photographs
    ],
)
def test_an_exported_network_predicts_what_the_predictor_does(model: str, size: int, tmp_path: Path) -> None:
    if model == "hf":
        transformers = pytest.importorskip("transformers")
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        transformers.ViTConfig(image_size=8, patch_size=4, **sizes).save_pretrained(tmp_path / "vit")
    run = new_run(tmp_path / "run", f"hf:{tmp_path / 'vit'}" if model == "hf" else model, size)
    files = photographs(tmp_path / "photos")
    assert cli.run(["export", str(run.path), "--samples", str(SAMPLES), "--out", "model.onnx"]) == 0
    assert cli.run(["predict", "model.onnx", *files, "--sort", "given", "--out", "rows.csv"]) == 0
    expected = dubito.Predictor(run, SAMPLES)(files)
    with Path("rows.csv").open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 3
    for name in ("confidence", "aleatoric", "epistemic", "entropy"):
        found = torch.tensor([float(row[name]) for row in rows])
        torch.testing.assert_close(found, getattr(expected, name).float(), rtol=1e-3, atol=1e-5)
    assert bool((expected.epistemic > 0).all())
