"""Requests from strangers against a real server on this machine: fuzzed ones, crowds, stops under load, and a soak.

python -m campaigns.server                 20,000 requests, 3,000 under SIGTERM, a soak of 10 minutes
python -m campaigns.server --requests 200 --stops 1 --soak-minutes 0.1 --crowd 40
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from campaigns.campaign import Deadline, Tally, chance, options
from campaigns.requests import KINDS, form, images, make, photograph

GOOD = ("answered", "refused", "busy", "turned away")
BAD = ("failed", "lost", "shut out", "grown")
PATIENCE = 120.0
"""Seconds after which a request that has no answer counts as lost."""
GROWTH = 1.1
"""Memory afterwards, as a multiple of that before, that counts as the same."""
NEIGHBOUR = "127.0.0.2"
"""Another address of this machine: another client."""


@dataclass
class Server:
    """A server process, with what it printed."""

    process: subprocess.Popen[str]
    place: tuple[str, int] = ("", 0)
    printed: list[str] = field(default_factory=list)

    def memory(self, what: str = "VmRSS") -> float:
        """Megabytes that the process has in memory, or had at most (VmHWM)."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(rf"{what}:\s+(\d+) kB", text)[0]) / 1000

    def stop(self) -> float:
        """Send SIGTERM; the seconds until the process has ended."""
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)
        return time.monotonic() - begun


@contextmanager
def serving(run: Path, *more: object) -> Iterator[Server]:
    """A server of the run on this machine alone, at a free port."""
    command = [sys.executable, "-m", "dubito", "serve", str(run), "--port", "0", *map(str, more)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    server, ready = Server(process), threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            server.printed.append(line)
            if found := re.search(r" at (http://\S+)", line):
                place = urlsplit(found[1])
                server.place = (str(place.hostname), int(place.port or 0))
            if "Ctrl-C stops" in line:
                ready.set()
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        ready.wait()
        if not server.place[1]:
            raise SystemExit("".join(server.printed))
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join(5)


class Caller:
    """A client with one connection, which it keeps while the server lets it."""

    def __init__(self, server: Server, address: str | None = None) -> None:
        self._place = server.place
        self._own = (address, 0) if address else None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, *pieces: bytes, pause: float = 0.0) -> str:
        """The outcome of a request."""
        try:
            return await asyncio.wait_for(self._ask(pieces, pause), PATIENCE)
        except ConnectionRefusedError:
            return "turned away"
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            self.close()
            return "lost"

    def close(self) -> None:
        """End the connection."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None

    async def _ask(self, pieces: tuple[bytes, ...], pause: float) -> str:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._place, local_addr=self._own, limit=2**20)
        reader, writer = self._streams
        with suppress(ConnectionError):  # the server may have answered already
            for number, piece in enumerate(pieces):
                if number and pause:
                    await asyncio.sleep(pause)
                writer.write(piece)
                await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        while head.startswith(b"HTTP/1.1 100"):
            head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        asked_for_head = pieces[0].startswith(b"HEAD")
        await reader.readexactly(0 if asked_for_head or length is None else int(length[1]))
        if re.search(rb"(?i)connection: *close", head):
            self.close()
        return _outcome(int(head.split(b" ", 2)[1]))


def _outcome(status: int) -> str:
    if status == 503:
        return "busy"
    return "failed" if status >= 500 else "refused" if status >= 400 else "answered"


async def share(callers: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Several callers at once, each of which does its work; the first error ends all."""
    await asyncio.gather(*(work(number) for number in range(callers)))


async def fuzz(server: Server, given: Namespace, tally: Tally, deadline: Deadline) -> None:
    """Requests that are wrong in every way."""
    numbers = iter(range(given.requests))

    async def call(_: int) -> None:
        for number in numbers:
            if deadline.over:
                return
            kind = tuple(KINDS)[number % len(KINDS)]
            caller = Caller(server)
            pieces = make(kind, chance(given.seed, kind, number))
            outcome = await caller.ask(*pieces, pause=0.002 if kind == "pieces" else 0.0)
            caller.close()
            tally.add(kind, outcome, {"number": number, "request": repr(b"".join(pieces)[:300])})

    await share(2 * given.callers, call)


async def crowd(server: Server, given: Namespace, tally: Tally) -> None:
    """Slow bodies, idle connections and readers that never read; others ask meanwhile."""
    await _crowd_of(server, "slow bodies", given, tally, _slow)
    await _crowd_of(server, "idle connections", given, tally, _idle)
    await _crowd_of(server, "never reading", given, tally, _deaf)


async def _idle(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def _slow(writer: asyncio.StreamWriter) -> None:
    writer.write(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n")
    while True:
        writer.write(b"{")
        await asyncio.sleep(1)


async def _deaf(writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    writer.write(b"GET /static/page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000)
    await asyncio.Event().wait()


async def _crowd_of(
    server: Server, kind: str, given: Namespace, tally: Tally, behave: Callable[[asyncio.StreamWriter], Awaitable[None]]
) -> None:
    async def disturb() -> None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(*server.place)
            try:
                await behave(writer)
            finally:
                writer.transport.abort()

    disturbers = [
        asyncio.create_task(disturb()) for _ in range(given.crowd if behave is not _deaf else given.crowd // 4)
    ]
    await asyncio.sleep(3)
    for number in range(50):
        caller = Caller(server, NEIGHBOUR if number % 2 else None)
        outcome = await caller.ask(form([images()[0]], {}))
        tally.add(f"beside {kind}", "answered" if outcome == "answered" else "shut out", {"outcome": outcome})
    if behave is _deaf:
        return  # they stay until the server has stopped
    for task in disturbers:
        task.cancel()
    await asyncio.gather(*disturbers, return_exceptions=True)


async def stop_under_load(server: Server, given: Namespace, tally: Tally) -> None:
    """A third of the way the server gets SIGTERM: each request is answered, refused, or not taken at all."""
    numbers = iter(range(given.stop_requests))
    request = form([images()[0]], {"samples": "5"}, keep=True)

    async def call(number: int) -> None:
        caller = Caller(server)
        for which in numbers:
            if which == given.stop_requests // 3:
                server.process.send_signal(signal.SIGTERM)
            tally.add("under SIGTERM", await caller.ask(request), {"request": which})
            if number % 2:
                caller.close()
        caller.close()

    await share(given.callers, call)


async def soak(server: Server, given: Namespace, tally: Tally, deadline: Deadline) -> None:
    """Callers that ask all the time, now and then with a photograph; memory stays what it was."""

    async def call(number: int) -> None:
        caller, random = Caller(server), chance(given.seed, "soak", number)
        while not (until.over or deadline.over):
            large = random.random() < 0.01
            file = photograph() if large else random.choice(images()[:4])
            fields = {"samples": str(random.choice((5, 10))), "per_class": random.choice(("true", "false"))}
            outcome = await caller.ask(form([file], fields, keep=True))
            tally.add(
                "soak", outcome if outcome in ("answered", "failed", "lost") else "shut out", {"outcome": outcome}
            )
        caller.close()

    until = Deadline(given.soak_minutes)
    await share(given.callers, call)


def weigh(server: Server, kind: str, before: float, tally: Tally) -> dict[str, float]:
    """Compare memory now with that before; a server gives back within a second or two."""
    time.sleep(3)
    found = {
        "before_mb": round(before, 1),
        "after_mb": round(server.memory(), 1),
        "peak_mb": round(server.memory("VmHWM"), 1),
    }
    tally.add(f"memory after {kind}", "answered" if found["after_mb"] <= GROWTH * before else "grown", found)
    return found


def warm(server: Server) -> float:
    """Megabytes of a server that has answered what it will be asked."""

    async def ask() -> None:
        for file in (*images(), *[photograph()] * 4) * 3:
            for fields in ({"samples": "5", "per_class": "true"}, {}):
                await Caller(server).ask(form([file], fields))

    asyncio.run(ask())
    time.sleep(3)
    return server.memory()


def campaign(given: Namespace) -> int:
    """All of it; the exit code."""
    deadline = Deadline(given.minutes)
    tally = Tally(GOOD, BAD)
    more: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        run = given.run or train(Path(folder) / "run")
        with serving(run, "--body-timeout", 2) as server:
            before = warm(server)
            asyncio.run(fuzz(server, given, tally, deadline))
            more["fuzz"] = weigh(server, "fuzzing", before, tally)
            tally.print()
        for _ in range(given.stops):
            with serving(run) as server:
                asyncio.run(stop_under_load(server, given, tally))
                server.process.wait(PATIENCE)
                _check_end(server, "under SIGTERM", tally)
        with serving(run) as server:
            more["crowd"] = _crowd_and_stop(server, given, tally)
        tally.print()
        with serving(run) as server:
            before = warm(server)
            asyncio.run(soak(server, given, tally, deadline))
            more["soak"] = weigh(server, "the soak", before, tally)
            server.stop()
            _check_end(server, "soak", tally)
    return tally.finish(given, deadline, **more)


def _crowd_and_stop(server: Server, given: Namespace, tally: Tally) -> dict[str, float]:
    """The crowds, and how long readers that never read keep the server from stopping."""

    async def both() -> float:
        await crowd(server, given, tally)
        return await asyncio.get_running_loop().run_in_executor(None, server.stop)

    seconds = asyncio.run(both())
    _check_end(server, "never reading", tally)
    print("".join(server.printed[-1:]), end="")
    return {"stop_seconds": round(seconds, 1)}


def _check_end(server: Server, kind: str, tally: Tally) -> None:
    """The server has ended by itself, without a traceback."""
    log = "".join(server.printed)
    fine = server.process.returncode == 0 and "Traceback" not in log
    tally.add(f"end, {kind}", "answered" if fine else "failed", {"code": server.process.returncode, "log": log[-2000:]})


def train(folder: Path) -> Path:
    """A run of a small network on the embedded digits."""
    settings = ["--model", "lenet5", "--data", "digits", "--epochs", "1", "--out", str(folder)]
    subprocess.run([sys.executable, "-m", "dubito", "train", *settings], check=True, stdout=subprocess.DEVNULL)
    return folder


def main(arguments: list[str] | None = None) -> int:
    """`python -m campaigns.server`."""
    parser = options("server", "Requests from strangers against a real server on this machine.", minutes=60)
    parser.add_argument("--run", type=Path, help="run folder to serve; else a small one is trained")
    parser.add_argument("--requests", type=int, default=20_000, help="fuzzed requests")
    parser.add_argument("--callers", type=int, default=32, help="callers at once")
    parser.add_argument("--crowd", type=int, default=1000, help="slow and idle connections; a quarter never reads")
    parser.add_argument("--stops", type=int, default=3, help="servers that are stopped under load")
    parser.add_argument("--stop-requests", type=int, default=1000, help="requests to each of them")
    parser.add_argument("--soak-minutes", type=float, default=10, help="minutes of the soak")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return campaign(parser.parse_args(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
