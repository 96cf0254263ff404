from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")

from dubito.serving import running  # noqa: E402
from dubito.serving.limits import Limits  # noqa: E402
from dubito.serving.server import _Server  # noqa: E402


@dataclass
class Served:
    """A server process, and a client of it."""

    process: subprocess.Popen[str] | None
    url: str
    printed: list[str] = field(default_factory=list)

    @property
    def client(self) -> Any:
        return httpx.Client(base_url=self.url, timeout=300, trust_env=False)

    def predict(self, *images: bytes, **options: Any) -> Any:
        """The answer to a form with these images."""
        files = [("images", (f"{number}.png", image)) for number, image in enumerate(images)]
        with self.client as client:
            return client.post("/predict", files=files, data={name: str(value) for name, value in options.items()})

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        with self.client as client:
            lines = client.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def log(self) -> str:
        return "".join(self.printed)


@contextmanager
def serving(run: Path, *options: object, environment: dict[str, str] | None = None) -> Iterator[Served]:
    """A server of that run in a process of its own, at a free port; it is stopped afterwards."""
    surroundings = {key: value for key, value in os.environ.items() if not key.startswith("DUBITO_")}
    surroundings |= {"DUBITO_CACHE": str(run.parent / "cache"), "OMP_NUM_THREADS": "1", **(environment or {})}
    command = [sys.executable, "-m", "dubito", "serve", str(run), "--port", "0", *map(str, options)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=surroundings, bufsize=1
    )
    served = Served(process, "")
    ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            served.printed.append(line)
            if " at http://" in line:
                served.url = line.rpartition(" at ")[2].strip().replace("0.0.0.0", "127.0.0.1")
            if "Ctrl-C stops" in line:  # the last line before it waits for requests
                ready.set()
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        ready.wait()
        assert served.url, served.log()
        yield served
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(5)


@dataclass
class ServedHere(Served):
    """A server in a thread of this process."""

    server: Any = None
    thread: threading.Thread | None = None

    def stop(self) -> None:
        """What SIGTERM does; then wait for the end."""
        self.server.handle_exit(signal.SIGTERM, None)
        self.thread.join(60)
        assert not self.thread.is_alive()


@contextmanager
def serving_here(run: Path, **limits: Any) -> Iterator[ServedHere]:
    """A server in a thread of this process, which starts sooner; its signals are the test's."""
    served, ready = ServedHere(None, ""), threading.Event()

    def say(text: str, *, err: bool = False) -> None:
        served.printed.append(text + "\n")
        if " at http://" in text:
            served.url = text.rpartition(" at ")[2]
        if "Ctrl-C stops" in text:
            ready.set()

    @contextmanager
    def no_signals(server: Any) -> Iterator[None]:
        served.server = server
        yield

    def work() -> None:
        try:
            running.serve(run, port=0, limits=Limits(**limits))
        finally:
            ready.set()

    served.thread = threading.Thread(target=work, daemon=True)
    with mock.patch.object(running, "say", say), mock.patch.object(_Server, "capture_signals", no_signals):
        served.thread.start()
        ready.wait()
        assert served.url, served.log()
        try:
            yield served
        finally:
            if served.thread.is_alive():
                served.stop()


@pytest.fixture(scope="session")
def served_run(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the trained run, as servers write their validation statistics into it."""
    return Path(shutil.copytree(digits_run, tmp_path_factory.mktemp("serving") / "digits"))


@pytest.fixture(scope="session")
def server(served_run: Path) -> Iterator[Served]:
    """One server for all tests that leave it as it was."""
    with serving(served_run) as served:
        yield served


@pytest.fixture(scope="session")
def start(served_run: Path) -> Callable[..., Any]:
    """Starts another server of the same run, or of another one, with options."""

    def begin(*options: object, run: Path = served_run, **settings: Any) -> Any:
        return serving(run, *options, **settings)

    return begin


@pytest.fixture(scope="session")
def start_here(served_run: Path) -> Callable[..., Any]:
    """Starts another server of the same run in a thread, with limits."""
    return partial(serving_here, served_run)


@pytest.fixture(scope="session")
def digit_images() -> list[bytes]:
    """Test digits as PNG files."""
    import io

    from PIL import Image

    from dubito.data import load

    files = []
    for image in load("digits", "test").images[:64]:
        file = io.BytesIO()
        Image.fromarray(image[0].numpy()).save(file, "png")
        files.append(file.getvalue())
    return files
