"""Saved networks on Hugging Face's hub, whose two functions are replaced by folders here: no network is used."""

from __future__ import annotations

import shutil
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import dubito
from dubito.errors import OptionError, RunError

huggingface_hub = pytest.importorskip("huggingface_hub")


class Hub:
    """Repositories as folders: what huggingface_hub does with its server."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[dict[str, Any]] = []

    def api(self, token: str | None = None) -> Hub:
        self.asked.append({"token": token})
        return self

    def create_repo(self, *, repo_id: str, private: bool | None, exist_ok: bool) -> SimpleNamespace:
        (self.root / repo_id).mkdir(parents=True, exist_ok=exist_ok)
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, *, repo_id: str, folder_path: Path, **options: Any) -> str:
        self.asked.append(options)
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        return f"https://hub/{repo_id}/commit/1"

    def snapshot_download(self, name: str, *, allow_patterns: list[str], **options: Any) -> str:
        """A folder of links, as in the real cache."""
        huggingface_hub.utils.validate_repo_id(name)
        self.asked.append(options)
        if not (self.root / name).exists():
            raise huggingface_hub.errors.LocalEntryNotFoundError("neither here nor there")
        snapshot = self.root / "snapshots" / name
        for file in (path for path in (self.root / name).rglob("*") if path.is_file()):
            relative = file.relative_to(self.root / name)
            if any(fnmatch(str(relative), pattern) for pattern in allow_patterns):
                (snapshot / relative).parent.mkdir(parents=True, exist_ok=True)
                (snapshot / relative).symlink_to(file)
        return str(snapshot)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", made.api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made.snapshot_download)
    return made


def same(first: nn.Module, second: nn.Module) -> bool:
    one, other = first.state_dict(), second.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def network() -> nn.Module:
    return dubito.models.build("lenet5", in_channels=1)


def test_a_folder_has_a_card_and_gives_the_network_back(network: nn.Module, tmp_path: Path) -> None:
    place = dubito.save_pretrained(network, tmp_path / "mine", class_names=[str(n) for n in range(10)], channels=1)
    assert same(dubito.from_pretrained(place), network)
    card = huggingface_hub.ModelCard.load(place / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("dubito", "image-classification")
    assert "Classes: 0, 1, 2" in card.text
    assert 'from_pretrained("mine")' in card.text


def test_a_card_of_ones_own_stays(network: nn.Module, tmp_path: Path) -> None:
    place = dubito.save_pretrained(network, tmp_path / "mine")
    (place / "README.md").write_text("mine")
    dubito.save_pretrained(network, place, overwrite=True)
    assert (place / "README.md").read_text() == "mine"


def test_a_network_goes_to_the_hub_and_comes_back(hub: Hub, network: nn.Module) -> None:
    url = dubito.push_to_hub(network, "me/lenet", token="mine", revision="next", commit_message="First")
    assert url == "https://hub/me/lenet/commit/1"
    assert hub.asked[0] == {"token": "mine"}
    assert (hub.asked[1]["revision"], hub.asked[1]["commit_message"]) == ("next", "First")
    assert {path.name for path in (hub.root / "me/lenet").iterdir()} == {
        "network.json",
        "network.safetensors",
        "README.md",
    }
    assert same(dubito.from_pretrained("me/lenet", revision="next"), network)
    assert hub.asked[2]["revision"] == "next"


def test_a_run_goes_without_its_training(hub: Hub, digits_run: Path) -> None:
    dubito.push_to_hub(digits_run, "me/digits")
    sent = {path.name for path in (hub.root / "me/digits").iterdir()}
    assert sent >= {"config.yaml", "best.safetensors", "novelty.safetensors", "calibration.json", "README.md"}
    assert not sent & {"last.safetensors", "environment.json", "evaluation.json", "evaluation.safetensors"}
    assert same(dubito.from_pretrained("me/digits"), dubito.load(digits_run))


def test_an_ensemble_comes_back_with_its_members(hub: Hub) -> None:
    both = dubito.ensemble([dubito.models.build("lenet5", in_channels=1) for _ in range(2)])
    dubito.push_to_hub(both, "me/both")
    assert same(dubito.from_pretrained("me/both"), both)


def test_a_network_of_the_zoo_goes_to_the_hub_with_its_card(hub: Hub) -> None:
    dubito.push_to_hub("zoo:lenet5-mnist", "me/mnist")
    assert (hub.root / "me/mnist/README.md").read_text() == dubito.zoo.card("lenet5-mnist")
    snapshot = hub.snapshot_download("me/mnist", allow_patterns=["*"])
    assert dubito.Predictor(snapshot, 1).rule is not None


def test_only_what_dubito_reads_is_downloaded(hub: Hub, network: nn.Module) -> None:
    dubito.push_to_hub(network, "me/lenet")
    for name in ("pytorch_model.bin", "code.py", "weights.pkl"):
        (hub.root / "me/lenet" / name).write_bytes(b"danger")
    dubito.from_pretrained("me/lenet")
    there = {path.name for path in (hub.root / "snapshots/me/lenet").iterdir()}
    assert there == {"network.json", "network.safetensors", "README.md"}


def test_a_function_of_a_stranger_is_not_run(hub: Hub, network: nn.Module) -> None:
    dubito.push_to_hub(network, "me/lenet")
    file = hub.root / "me/lenet/network.json"
    file.write_text(file.read_text().replace('"lenet5"', '"os.path:join"'))
    with pytest.raises(RunError, match="give --trust"):
        dubito.from_pretrained("me/lenet")


def test_what_goes_wrong_is_one_sentence(hub: Hub, network: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="neither in the cache nor reachable"):
        dubito.from_pretrained("me/nothing")
    with pytest.raises(OptionError, match="nor the name of a repository"):
        dubito.from_pretrained("no//name")
    with pytest.raises(OptionError, match="class_names is for a network"):
        dubito.push_to_hub("runs/mine", "me/mine", class_names=["a"])

    def offline(name: str, **options: Any) -> str:
        raise ConnectionError("Network is unreachable")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(RunError, match="cannot be reached for me/nothing: Network is unreachable"):
        dubito.from_pretrained("me/nothing")
