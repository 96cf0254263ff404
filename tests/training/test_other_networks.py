"""Trainings of networks that are not in the registry; their runs need nothing of what they began with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

import dubito
from dubito.errors import RunError
from dubito.exporting import export_bytes
from dubito.layers import BayesLayer
from dubito.training import Run, configure, resume, train

quiet = Console(quiet=True)
SMALL = {"data": "digits", "batch_size": 512, "epochs": 1, "validation_samples": 2, "head": "softmax"}
OWN = """
from torch import nn

def small(num_classes, in_channels):
    return nn.Sequential(
        nn.Conv2d(in_channels, 4, 3, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(16, num_classes),
    )
"""


def test_a_run_of_a_hugging_face_network_needs_its_folder_no_more(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.ViTConfig(image_size=32, patch_size=16, num_channels=1, num_labels=4, **sizes)
    model = transformers.AutoModelForImageClassification.from_config(config)
    model.save_pretrained(tmp_path / "vit")
    wanted = model.vit.embeddings.position_embeddings.detach()
    settings = configure(**SMALL, model=f"hf:{tmp_path / 'vit'}", freeze="vit.embeddings", bayesian="last")
    run = train(settings, tmp_path / "run", console=quiet)
    shutil.rmtree(tmp_path / "vit")
    network = Run.open(tmp_path / "run").load()
    assert torch.equal(network.model.vit.embeddings.position_embeddings, wanted)  # it was frozen
    assert [n for n, part in network.named_modules() if isinstance(part, BayesLayer)] == ["model.classifier"]
    images = torch.randn(4, 1, 32, 32)
    prediction = dubito.Predictor(tmp_path / "run", samples=4)(images)
    assert bool((prediction.epistemic > 0).all())
    assert len(export_bytes(network, run.data, "torch", samples=2)) > 1000
    dubito.save(network, tmp_path / "saved")
    again = dubito.Predictor(dubito.load(tmp_path / "saved"), samples=4)(images)
    torch.testing.assert_close(again.probs, prediction.probs)
    assert resume(tmp_path / "run", console=quiet).path == run.path


def test_a_network_of_an_own_function_is_trained_frozen_and_fine_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "functions_of_mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUBITO_CACHE", str(tmp_path / "cache"))
    first = train(
        configure(**SMALL, model="functions_of_mine:small", inference="frequentist"), tmp_path / "plain", console=quiet
    )
    begun = first.load()  # without a question: it was trained here
    monkeypatch.setenv("DUBITO_CACHE", str(tmp_path / "cache of somebody else"))
    with pytest.raises(
        RunError, match=r"plain cannot be opened: .*functions_of_mine:small, which builds its network: give --trust"
    ):
        dubito.load(tmp_path / "plain")
    assert torch.equal(dubito.load(tmp_path / "plain", trust=True)[0].weight, begun[0].weight)
    monkeypatch.setenv("DUBITO_CACHE", str(tmp_path / "cache"))
    settings = configure("finetune", init=str(tmp_path / "plain"), freeze="0,1", **{**SMALL, "head": None})
    assert (settings.model, settings.head, settings.inference) == ("functions_of_mine:small", "softmax", "vi")
    tuned = train(settings, tmp_path / "tuned", console=quiet).load("last")
    for name in ("0.weight", "1.weight", "1.running_mean", "1.running_var"):
        assert torch.equal(tuned.state_dict()[name], begun.state_dict()[name]), name
    assert isinstance(tuned[5], BayesLayer)
    assert not torch.equal(tuned[5].weight_mean, begun[5].weight)
    assert bool((dubito.predict(tuned, torch.randn(3, 1, 32, 32), samples=4).epistemic > 0).all())
    with pytest.raises(RunError, match="whose head is softmax, but this training's is softplus: leave --head out"):
        train(configure(**{**SMALL, "head": "softplus"}, init=str(tmp_path / "plain")), tmp_path / "no", console=quiet)
    assert not (tmp_path / "no").exists()
