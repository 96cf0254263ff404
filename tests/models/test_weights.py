"""Weights to start from: what files may hold, and what is said of those that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import dubito
from dubito.errors import DataError, OptionError
from dubito.models import build, load_weights, read_weights


@pytest.fixture(scope="module")
def trained() -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return dict(build("resnet20", 10, 3, "frequentist", 8, head="softmax").state_dict())


@pytest.mark.parametrize("kind", ["safetensors", "plain", "module", "wrapped"])
def test_every_kind_of_file_becomes_the_means_and_the_centre_of_an_empirical_prior(
    kind: str, trained: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    file = tmp_path / "weights.pth"
    if kind == "safetensors":
        file = tmp_path / "weights.safetensors"
        save_file(trained, file)
    elif kind == "plain":
        torch.save(trained, file)
    elif kind == "module":
        torch.save({f"module.{name}": tensor for name, tensor in trained.items()}, file)
    else:
        torch.save({"epoch": 3, "state_dict": trained}, file)
    network = build("resnet20", 10, 3, image_size=8, init=file, prior="empirical", relative_std=0.1)
    layer = network.layer1[0].conv1
    assert torch.equal(layer.weight_mean, trained["layer1.0.conv1.weight"])
    assert torch.equal(layer.posteriors["weight"].prior.mean, layer.weight_mean)
    assert torch.equal(network.bn1.weight, trained["bn1.weight"])
    size = layer.weight_mean.square().mean().sqrt()
    torch.testing.assert_close(layer.weight_std, 0.1 * size.expand_as(layer.weight_std), rtol=1e-3, atol=0)
    assert network.left_fresh == []


def test_the_means_of_a_bayesian_network_are_taken(trained: dict[str, torch.Tensor], tmp_path: Path) -> None:
    network = build("resnet20", 10, 3, image_size=8, init=trained)
    save_file(
        {f"network.{name}": tensor for name, tensor in network.state_dict().items()}, tmp_path / "best.safetensors"
    )
    found = read_weights(tmp_path)
    assert found.keys() == trained.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in trained.items())


def test_a_classifier_of_other_classes_stays_fresh_and_is_named(trained: dict[str, torch.Tensor]) -> None:
    network = build("resnet20", 4, 3, image_size=8, init=trained)
    assert network.left_fresh == ["fc.weight", "fc.bias"]
    assert torch.equal(network.conv1.weight_mean, trained["conv1.weight"])


def test_what_does_not_fit_is_named_key_by_key(trained: dict[str, torch.Tensor]) -> None:
    changed = {**trained, "conv1.weight": torch.zeros(16, 1, 3, 3), "extra": torch.zeros(1)}
    del changed["bn1.bias"]
    with pytest.raises(
        DataError,
        match=r"do not fit the network: 1 missing \(bn1.bias\); 1 unexpected \(extra\); 1 of another shape "
        r"\(conv1.weight \(16, 1, 3, 3\) instead of \(16, 3, 3, 3\)\)",
    ):
        build("resnet20", 10, 3, image_size=8, init=changed)
    with pytest.raises(DataError, match=r"missing \(.*(, .*){9} and \d+ more\)"):
        load_weights(torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(8))), {"0.weight": torch.zeros(1, 1)})


class Opens:
    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return print, ("run",)


def test_files_that_hold_more_than_tensors_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": Opens()}, tmp_path / "evil.pth")
    with pytest.raises(DataError, match="it must contain only tensors"):
        read_weights(tmp_path / "evil.pth")
    assert capsys.readouterr().out == ""
    torch.save(torch.nn.Linear(2, 2), tmp_path / "whole.pth")
    with pytest.raises(
        DataError, match=r"whole\.pth, which holds an object of torch\.nn\.modules\.linear\.Linear: it must"
    ):
        read_weights(tmp_path / "whole.pth")
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(DataError, match=r"text\.pth, which is no file of torch\.save, or a damaged one: it must"):
        read_weights(tmp_path / "text.pth")
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(DataError, match="cannot be read"):
        read_weights(tmp_path / "text.safetensors")
    with pytest.raises(DataError, match="there is no such file or run folder"):
        read_weights(tmp_path / "nothing.pth")
    with pytest.raises(dubito.errors.DataError, match=r"has no best\.safetensors"):
        read_weights(tmp_path)


def test_an_empty_name_is_not_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(OptionError, match="init is empty"):
        read_weights("")
    with pytest.raises(OptionError, match="init is empty"):
        build("lenet5", init="")
