"""How the command ends when it cannot serve, and what it says when it can."""

from __future__ import annotations

import builtins
import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dubito import cli


def failure(capsys, *arguments: object) -> str:
    capsys.readouterr()
    code = cli.run(["serve", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert code != 0
    assert not out
    assert len(err.strip().splitlines()) == 1
    return err


def test_it_says_where_it_is_and_how_to_stop_it(server) -> None:
    assert "Serving digits (vi lenet5 on digits) at http://127.0.0.1:" in server.log()
    assert "Ctrl-C stops." in server.log()
    assert "Warning" not in server.log()


def test_a_port_in_use_is_told(server, served_run, capsys) -> None:
    port = urlsplit(server.url).port
    assert f"Port {port} of 127.0.0.1 is already in use" in failure(capsys, served_run, "--port", port)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--host", "192.0.2.1"), "not an address of this machine"),
        (("--host", "no such name"), "not an address of this machine"),
        (("--method", "guess"), "'auto', 'weights', 'local'"),
        (("--api-key", ""), "printable ASCII"),
        (("--samples", "0"), "--samples"),
        (("--port", "70000"), "--port"),
        (("--max-body", "0"), "--max-body is 0, but must be positive"),
        (("--max-pixels", "nan"), "--max-pixels"),
        (("--checkpoint", "worst"), "'best', 'last'"),
    ],
)
def test_wrong_options_are_told_in_one_sentence(served_run, capsys, options, words) -> None:
    assert words in failure(capsys, served_run, *(() if "--port" in options else ("--port", "0")), *options)


def test_a_missing_run_and_a_missing_extra_are_told(served_run, tmp_path, capsys, monkeypatch) -> None:
    assert "no run folder" in failure(capsys, tmp_path / "nothing")
    importing = builtins.__import__

    def refuse(name: str, *given):
        if name == "uvicorn":
            raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")
        return importing(name, *given)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert "needs uvicorn, which is missing: pip install 'dubito[serve]', or in a checkout" in failure(
        capsys, served_run
    )


def without_data(run: Path, folder: Path, *left_out: str) -> Path:
    """A copy of the run whose data is gone."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns(*left_out))
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("data: digits", f"data: {folder.parent / 'gone'}"))
    return folder


def test_a_run_without_its_data_answers_as_with_it(server, served_run, tmp_path, start, digit_images) -> None:
    with start(run=without_data(served_run, tmp_path / "digits")) as served:
        assert "not compared" not in served.log()
        for options in ({}, {"conformal": 0.9}, {"calibrated": True, "method": "moments"}):
            here, there = (each.predict(*digit_images[:5], **options).json() for each in (server, served))
            assert here["predictions"][0]["percentile"] is not None
            assert there == here
        with served.client as moved, server.client as client:
            assert moved.get("/model").json()["validation"] == client.get("/model").json()["validation"] is not None
            assert moved.get("/model").json()["examples"] == client.get("/model").json()["examples"] != []


def test_without_data_and_record_and_elsewhere_than_loopback_it_runs_and_says_so(
    served_run, tmp_path, start, digit_images
) -> None:
    folder = without_data(served_run, tmp_path / "moved", "validation*", "calibration.json")
    with start("--host", "0.0.0.0", run=folder) as served:
        assert "not compared with validation images" in served.log()
        assert "no longer exists" in served.log()
        assert "Warning: 0.0.0.0 can be reached from other machines and no key is set" in served.log()
        answer = served.predict(digit_images[0]).json()
        assert answer["predictions"][0]["percentile"] is None
        assert answer["predictions"][0]["verdict"]["level"] == "unknown"
        for option in ({"conformal": 0.9}, {"calibrated": True}):
            refused = served.predict(digit_images[0], **option)
            assert refused.status_code == 422
            assert f"{next(iter(option))} needs the model's validation record" in refused.json()["error"]
        with served.client as client:
            model = client.get("/model").json()
            assert client.get("/health", headers={"Host": "any.example"}).status_code == 200
        assert model["validation"] is None
        assert model["examples"] == []
    with socket.socket() as free:
        free.bind(("127.0.0.1", urlsplit(served.url).port))  # the port is given back
