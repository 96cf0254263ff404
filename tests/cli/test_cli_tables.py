from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from dubito.data import registry
from dubito.models import build, names


def test_models_lists_every_network_with_its_parameters(dubito) -> None:
    lines = dubito("models").out.splitlines()
    assert tuple(line.split()[0] for line in lines[1:-3]) == names()
    assert lines[1].split() == ["lenet5", "32", "5", "61,706", "123,412", "416,520"]


def test_the_parameters_are_those_of_the_built_networks(dubito) -> None:
    lines = dubito("models", "--classes", 7, "--channels", 3, "--size", 40).out.splitlines()
    for inference, column in (("frequentist", 3), ("vi", 4)):
        network = build("lenet5", 7, 3, inference, image_size=40)
        parameters = sum(parameter.numel() for parameter in network.parameters())
        assert lines[1].split()[column] == f"{parameters:,}"


def test_a_network_is_shown_layer_by_layer(dubito) -> None:
    lines = dubito("models", "--model", "alexnet", "--channels", 3, "--classes", 100).out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    kind = ["Conv2d", "11x11,", "stride", "4,", "padding", "5"]
    assert rows["convolution1"] == [*kind, "3x32x32", "64x8x8", "23,296", "1,486,848"]
    assert rows["pooling2"][-2:] == ["64x8x8", "64x4x4"]
    assert rows["linear9"] == ["Linear", "128", "100", "12,900", "12,800"]
    assert rows["total"] == ["2,187,556", "13,787,648"]


def test_no_number_loses_its_digits_in_a_narrow_terminal(dubito, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = dubito("models", "--model", "alexnet").out.split()
    monkeypatch.setenv("FORCE_COLOR", "1")
    for width in (40, 60, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        narrow = re.sub(r"\x1b\[[0-9;]*m", "", dubito("models", "--model", "alexnet").out).split()
        assert sorted(narrow) == sorted(wide)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror with files of the right names for mnist; every other source is a closed port of this machine."""
    folder = tmp_path / "mirror" / "mnist"
    folder.mkdir(parents=True)
    for file in registry.DATASETS["mnist"].files:
        (folder / file.name).write_bytes(bytes(1000))
    closed = {
        name: dataclasses.replace(info, sources=("http://127.0.0.1:9/",)) for name, info in registry.DATASETS.items()
    }
    monkeypatch.setattr(registry, "DATASETS", closed)
    monkeypatch.setenv("DUBITO_MIRROR", str(folder.parent))
    return folder.parent


def test_data_list_says_what_there_is_and_where(dubito, mirror: Path) -> None:
    result = dubito("data", "list")
    assert result.code == 0
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines[1:6]] == list(registry.DATASETS)
    assert lines[2].split() == ["mnist", "10", "1x32x32", "60,000", "10,000", "12", "MB", "mirror"]
    assert [line.split()[-1] for line in lines[1:6]] == ["embedded", "mirror", "absent", "absent", "absent"]
    assert f"mnist: handwritten digits ({mirror / 'mnist'})" in lines


def test_data_get_says_where_the_files_are(dubito, mirror: Path) -> None:
    result = dubito("data", "get", "mnist", "digits")
    assert result.code == 0
    assert result.out.splitlines() == [
        f"mnist: {mirror / 'mnist'} (mirror, 4 kB)",
        "digits: comes with scikit-learn, nothing to download",
    ]


def test_data_that_cannot_be_had_ends_in_a_sentence(dubito, mirror: Path) -> None:
    result = dubito("data", "get", "all")
    assert result.code == 1
    assert result.err.startswith("data set 'fashion-mnist' is not in the cache")
    assert result.err.count("\n") == 1
