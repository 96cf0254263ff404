from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dubito
from dubito import cli
from dubito.heads import KendallGalHead
from dubito.runs.description import DataDescription

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

DATA = DataDescription("three", 1, ("ant", "bee", "cat"), (0.3,), (0.4,), padding=2, num_data=100)
"""What tiny networks were supposedly trained on."""


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DUBITO_MIRROR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DUBITO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def digits_onnx(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network of a run, exported as the command does by default."""
    file = tmp_path_factory.mktemp("export") / "digits.onnx"
    assert cli.run(["export", str(digits_run), "--out", str(file)]) == 0
    return file


@pytest.fixture
def data() -> DataDescription:
    return DATA


@pytest.fixture
def tiny() -> Callable[..., nn.Module]:
    """Small networks for the images of `data`."""

    def build(*extra: nn.Module, bayesian: bool = True, head: str = "softplus", std: float = 0.1) -> nn.Module:
        torch.manual_seed(0)
        outputs = 6 if head == "kendall_gal" else 3
        last = [nn.Flatten(), *extra, nn.Linear(32, outputs)]
        plain = nn.Sequential(nn.Conv2d(1, 2, 4, 4), nn.ReLU(), nn.MaxPool2d(2), *last)
        network = dubito.to_bayesian(plain, initial_std=std) if bayesian else plain
        return dubito.attach_head(network, KendallGalHead(2) if head == "kendall_gal" else head).eval()

    return build


@pytest.fixture
def images() -> Callable[[int], Tensor]:
    """Images of bytes, always the same."""

    def draw(count: int, channels: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.randint(256, (count, channels, 32, 32), dtype=torch.uint8, generator=generator)

    return draw
