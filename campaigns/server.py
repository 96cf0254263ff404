"""Requests from strangers against a real server on this machine: fuzzed ones, crowds, stops under load, and a soak.

Memory is measured in a pause: before, when every kind of image has been read once, and afterwards.

python -m campaigns.server                 20,000 requests, 3,000 under SIGTERM, a soak of 10 minutes
python -m campaigns.server --requests 200 --stops 1 --soak-minutes 0.1 --crowd 40 --deaf 5 --uploads 6
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from campaigns.campaign import Deadline, Tally, chance, options
from campaigns.crowd import CROWDS, Crowd, Guest
from campaigns.requests import KINDS, form, images, large_picture, make, photograph

GOOD = ("answered", "refused", "busy", "turned away", "ended")
BAD = ("failed", "lost", "shut out", "grown", "held")
PATIENCE = 120.0
"""Seconds after which a request that has no answer counts as lost."""
GROWTH = 1.1
"""Memory afterwards, as a multiple of that before, that counts as the same."""
PEAK = 1000
"""Megabytes that a server may take at most."""
BYSTANDERS = 50
"""Requests beside each crowd."""
PAUSE = 3.0
"""Seconds without requests before memory is measured."""
TIMEOUT, MARGIN = 5, 10
"""Seconds that crowds are given by the server, and those after which they count as held beyond these."""
NEIGHBOUR, STRANGER = "127.0.0.2", "127.0.0.3"
"""Other addresses of this machine: other clients."""


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
        self._body = b""

    async def ask(self, *pieces: bytes, pause: float = 0.0) -> str:
        """The outcome of a request."""
        try:
            return await asyncio.wait_for(self._ask(pieces, pause), PATIENCE)
        except ConnectionRefusedError:
            return "turned away"
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            self.close()
            return "lost"

    async def metric(self, name: str) -> int:
        """A number that the server tells of itself."""
        await self.ask(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        found = re.search(rf"(?m)^{name} (\S+)", self._body.decode())
        return int(float(found[1])) if found else 0

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
        self._body = await reader.readexactly(0 if asked_for_head or length is None else int(length[1]))
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


async def crowd(server: Server, crowd: Crowd, count: int, tally: Tally) -> None:
    """A crowd disturbs, others ask meanwhile and are answered, and the server ends every connection of the crowd."""
    guests = [Guest(crowd, server.place, STRANGER) for _ in range(count)]
    if not crowd.reads:
        await _until_held(server, count)
    for number in range(BYSTANDERS):
        if number % 10 == 0:
            _go_on(guests)
        outcome = await Caller(server, NEIGHBOUR if number % 2 else None).ask(form([images()[0]], {}))
        tally.add(f"beside {crowd.kind}", "answered" if outcome == "answered" else "shut out", {"outcome": outcome})
    until = Deadline((TIMEOUT + MARGIN) / 60)
    while not until.over and not all(guest.ended for guest in guests):
        await asyncio.sleep(1)
        _go_on(guests)
    for guest in guests:
        tally.add(crowd.kind, "ended" if guest.ended else "held")
        guest.close()


def _go_on(guests: Sequence[Guest]) -> None:
    for guest in guests:
        guest.go_on()


async def _until_held(server: Server, count: int) -> int:
    """Wait until the server holds answers for most of `count` clients that never read; how many it held at most."""
    held, until = 0, Deadline(1)
    while held < 0.9 * count and not until.over:
        await asyncio.sleep(0.1)
        held = max(held, await Caller(server).metric("dubito_requests_in_work"))
    return held


async def uploads(server: Server, count: int, tally: Tally) -> None:
    """Small files that decode to large pictures, all at once."""
    files = [form([large_picture(number % 2 == 0)], {}) for number in range(count)]
    for outcome in await asyncio.gather(*(Caller(server).ask(file) for file in files)):
        tally.add("large uploads", outcome if outcome != "refused" else "shut out", {"outcome": outcome})


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
    """Compare memory now with that before; a server gives back once it has not been asked for a second."""
    time.sleep(PAUSE)
    found = {
        "before_mb": round(before, 1),
        "after_mb": round(server.memory(), 1),
        "peak_mb": round(server.memory("VmHWM"), 1),
    }
    print(f"memory after {kind}: " + ", ".join(f"{name} {value}" for name, value in found.items()))
    fine = found["after_mb"] <= GROWTH * before and found["peak_mb"] <= PEAK
    tally.add(f"memory after {kind}", "answered" if fine else "grown", found)
    return found


def warm(server: Server) -> float:
    """Megabytes of a server that has read every kind of image once, and a photograph, and then has had a pause."""

    async def ask() -> None:
        for file in (*images(), photograph()):
            await Caller(server).ask(form([file], {"samples": "5", "per_class": "true"}))

    asyncio.run(ask())
    time.sleep(PAUSE)
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
        with serving(run) as server:
            before = warm(server)
            asyncio.run(uploads(server, given.uploads, tally))
            more["uploads"] = weigh(server, "large uploads", before, tally)
        for _ in range(given.stops):
            with serving(run) as server:
                asyncio.run(stop_under_load(server, given, tally))
                server.process.wait(PATIENCE)
                _check_end(server, "under SIGTERM", tally)
        limits = [part for name in ("body", "idle", "write") for part in (f"--{name}-timeout", TIMEOUT)]
        with serving(run, *limits) as server:
            before = warm(server)
            for each in CROWDS:
                asyncio.run(crowd(server, each, given.crowd if each.reads else given.deaf, tally))
            more["crowds"] = weigh(server, "crowds", before, tally)
            more["stop"] = stop_unread(server, given.deaf, tally)
        tally.print()
        with serving(run) as server:
            before = warm(server)
            asyncio.run(soak(server, given, tally, deadline))
            more["soak"] = weigh(server, "the soak", before, tally)
            server.stop()
            _check_end(server, "soak", tally)
    return tally.finish(given, deadline, **more)


def stop_unread(server: Server, count: int, tally: Tally) -> dict[str, float]:
    """SIGTERM while clients do not read their answers: they hold the server no longer than it promises."""
    guests = [Guest(CROWDS[-1], server.place, STRANGER) for _ in range(count)]
    held = asyncio.run(_until_held(server, count))
    seconds = server.stop()
    found = {"unread": held, "seconds": round(seconds, 1)}
    told = "clients did not read the answer in time" in "".join(server.printed)
    fine = held and told and seconds < TIMEOUT + MARGIN
    tally.add("SIGTERM, never reading", "ended" if fine else "held", {**found, "told": told})
    _check_end(server, "never reading", tally)
    for guest in guests:
        guest.close()
    return found


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
    parser.add_argument("--crowd", type=int, default=1000, help="slow bodies, and idle connections")
    parser.add_argument("--deaf", type=int, default=50, help="clients that never read")
    parser.add_argument("--uploads", type=int, default=60, help="small files of large pictures, at once")
    parser.add_argument("--stops", type=int, default=3, help="servers that are stopped under load")
    parser.add_argument("--stop-requests", type=int, default=1000, help="requests to each of them")
    parser.add_argument("--soak-minutes", type=float, default=10, help="minutes of the soak")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return campaign(parser.parse_args(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
