from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from data_files import tiny_registry

import dubito.data.download
from dubito.data import registry
from dubito.data.registry import DatasetInfo


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No mirror, no cache and no proxy of the machine that runs the tests."""
    monkeypatch.delenv("DUBITO_MIRROR", raising=False)
    monkeypatch.setenv("DUBITO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    dubito.data.download._remote_sums.clear()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> dict[str, DatasetInfo]:
    """The registry with a few images in each file, and no source but a closed port of this machine."""
    import dataclasses

    table = {
        name: dataclasses.replace(info, sources=("http://127.0.0.1:9/",) if info.files else ())
        for name, info in tiny_registry().items()
    }
    monkeypatch.setattr(registry, "DATASETS", table)
    return table


class Server:
    """A web server over a folder; it remembers what was asked, and cuts a path in `truncate` short."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.truncate: set[str] = set()
        server = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                if self.path in server.truncate:
                    content = (server.folder / self.path.lstrip("/")).read_bytes()
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content[: len(content) // 2])
                    self.close_connection = True
                else:
                    super().do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "served"
    folder.mkdir()
    server = Server(folder)
    yield server
    server.http.shutdown()
    server.http.server_close()
