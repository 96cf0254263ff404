from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dubito import cli


@dataclass
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str


Dubito = Callable[..., Result]


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of its own, and none of this machine's data."""
    for name in ("DUBITO_MIRROR", "DUBITO_OUT", "RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DUBITO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def dubito(capsys: pytest.CaptureFixture[str]) -> Dubito:
    """Runs a command in this process."""

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        try:
            code = cli.run([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """Six test digits as PNG files, two of them in a sub-folder."""
    from PIL import Image

    from dubito.data import load

    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    paths = [folder / f"{name}.png" for name in ("a", "b", "c", "d", "more/e", "more/f")]
    for path, image in zip(paths, load("digits", "test").images, strict=False):
        Image.fromarray(image[0].numpy()).save(path)
    return paths
