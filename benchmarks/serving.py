"""What `dubito serve` gains by micro-batching, what it keeps in memory, and what it does under overload.

    python benchmarks/serving.py [RUN] [--method weights] [--requests 10000] [--out FILE.json|FILE.md]

Client and server are two processes on this machine and share its cores, so ratios mean more than absolute figures.
Without RUN a LeNet-5 is trained on digits for two epochs first.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CALLERS = 32
METHOD = "weights"


@dataclass
class Load:
    """What callers saw."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    refused: int = 0
    failed: int = 0

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)]


class Caller:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Caller:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.writer.close()

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE).group(1))
        return int(head[9:12]), await self.reader.readexactly(length)


def prediction_request(seed: int) -> bytes:
    """A request with one image of a digit's size, as a form."""
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((28, 28)).save(file, "png")
    body = (
        b"--x\r\nContent-Disposition: form-data; name=images; filename=a.png\r\n\r\n"
        + file.getvalue()
        + b"\r\n--x--\r\n"
    )
    head = "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


REQUESTS = [prediction_request(seed) for seed in range(64)]


async def load(port: int, callers: int, requests: int, seconds: float = 1e9, pause: float = 0.0) -> Load:
    """So many callers who ask one after the other, until so many requests or seconds are over."""
    result, numbers, until = Load(), iter(range(requests)), time.perf_counter() + seconds

    async def call() -> None:
        async with Caller(port) as caller:
            for number in numbers:
                began = time.perf_counter()
                if began > until:
                    return
                status, _ = await caller.ask(REQUESTS[number % len(REQUESTS)])
                if status == 200:
                    result.latencies.append(time.perf_counter() - began)
                elif status == 503:
                    result.refused += 1
                    await asyncio.sleep(pause)
                else:
                    result.failed += 1

    began = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    result.seconds = time.perf_counter() - began
    return result


async def metric(port: int, name: str) -> float:
    async with Caller(port) as caller:
        _, body = await caller.ask(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return sum(float(line.rpartition(" ")[2]) for line in body.decode().splitlines() if line.startswith(name + " "))


def memory(process: int) -> float:
    """Resident megabytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) / 1000


@contextmanager
def server(run: Path, *options: object) -> Iterator[tuple[int, int]]:
    """The port and process number of a server."""
    command = [sys.executable, "-m", "dubito", "serve", str(run), "--port", "0", "--method", METHOD, *map(str, options)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if found := re.search(r" at http://[^:]+:(\d+)", line):
                yield int(found.group(1)), process.pid
                return
        raise SystemExit("The server did not start.")
    finally:
        process.terminate()
        process.communicate(timeout=60)


async def rounds(run: Path, repeats: int) -> dict[str, Any]:
    """Throughput alone and together, in turns, so that all see the same machine."""
    found: dict[str, list[tuple[Load, float]]] = {"one at a time": [], "32 callers, batches of 1": [], "32 callers": []}
    with server(run) as (shared, _), server(run, "--max-batch", 1) as (single, _):
        plans = {"one at a time": (shared, 1, 150), "32 callers, batches of 1": (single, CALLERS, 320)}
        plans["32 callers"] = (shared, CALLERS, 1600)
        for port in (shared, single):
            await load(port, 4, 40)  # first requests pay for imports and allocations
        for _ in range(repeats):
            for name, (port, callers, count) in plans.items():
                before = await metric(port, "dubito_batch_images_count"), await metric(port, "dubito_batch_images_sum")
                measured = await load(port, callers, count)
                after = await metric(port, "dubito_batch_images_count"), await metric(port, "dubito_batch_images_sum")
                found[name].append((measured, (after[1] - before[1]) / (after[0] - before[0])))
    table = {}
    for name, measured in found.items():
        table[name] = {
            "requests_per_second": statistics.median(load.rate for load, _ in measured),
            "p50_ms": statistics.median(load.quantile(0.5) for load, _ in measured),
            "p99_ms": statistics.median(load.quantile(0.99) for load, _ in measured),
            "images_per_batch": statistics.median(size for _, size in measured),
        }
    together = [b[0].rate / a[0].rate for a, b in zip(found["one at a time"], found["32 callers"], strict=True)]
    return {"throughput": table, "speedup": statistics.median(together), "speedups": together}


async def endurance(run: Path, requests: int) -> dict[str, Any]:
    """Resident memory while many requests are answered."""
    with server(run) as (port, process):
        await load(port, CALLERS, requests // 10)
        sizes = [memory(process)]
        failed = 0
        for _ in range(10):
            part = await load(port, CALLERS, requests // 10)
            failed += part.failed + part.refused
            sizes.append(memory(process))
    return {"requests": requests, "megabytes": sizes, "growth_megabytes": sizes[-1] - sizes[0], "failed": failed}


async def overload(run: Path, seconds: float) -> dict[str, Any]:
    """Far more callers than the queue holds, and how soon all is as before."""
    with server(run, "--max-queue", 64) as (port, process):
        alone = await load(port, 1, 100)
        before = memory(process)
        crowd = await load(port, 256, 10**9, seconds, pause=0.05)
        ended = time.perf_counter()
        while await metric(port, "dubito_requests_in_work"):
            await asyncio.sleep(0.01)
        empty = time.perf_counter() - ended
        after = await load(port, 1, 100)
        grown = memory(process) - before
    return {
        "callers": 256,
        "queue": 64,
        "answered_per_second": crowd.rate,
        "refused_per_second": crowd.refused / crowd.seconds,
        "failed": crowd.failed,
        "p99_ms_of_answered": crowd.quantile(0.99),
        "p50_ms_before": alone.quantile(0.5),
        "p50_ms_after": after.quantile(0.5),
        "refused_after": after.refused,
        "seconds_until_empty": empty,
        "growth_megabytes": grown,
    }


def markdown(found: dict[str, Any]) -> str:
    lines = ["| callers | requests/s | p50 (ms) | p99 (ms) | images per batch |", "| --- | --- | --- | --- | --- |"]
    for name, row in found["throughput"].items():
        values = (row["requests_per_second"], row["p50_ms"], row["p99_ms"], row["images_per_batch"])
        lines.append(f"| {name} | " + " | ".join(f"{value:.1f}" for value in values) + " |")
    memory, crowd = found["memory"], found["overload"]
    lines += [
        "",
        f"32 callers get {found['speedup']:.1f} times the throughput of one at a time.",
        f"Memory: {memory['megabytes'][0]:.0f} MB, after {memory['requests']:,} more requests "
        f"{memory['megabytes'][-1]:.0f} MB; {memory['failed']} failed.",
        f"Overload: {crowd['callers']} callers at a queue of {crowd['queue']}: {crowd['answered_per_second']:.0f}/s "
        f"answered (p99 {crowd['p99_ms_of_answered']:.0f} ms), {crowd['refused_per_second']:.0f}/s refused with 503, "
        f"{crowd['failed']} failed. Afterwards empty within {crowd['seconds_until_empty']:.2f} s; one caller's p50 "
        f"{crowd['p50_ms_before']:.1f} ms before, {crowd['p50_ms_after']:.1f} ms after.",
        "",
        f"{found['machine']['cores']} cores, load {found['machine']['load']:.1f} before the start; method "
        f"{found['method']}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    global METHOD
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of overload")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--method", default=METHOD)
    given = parser.parse_args()
    METHOD = given.method
    found: dict[str, Any] = {"machine": {"cores": os.cpu_count(), "load": os.getloadavg()[0]}, "method": METHOD}
    with tempfile.TemporaryDirectory() as folder:
        run = given.run
        if run is None:
            run = Path(folder) / "digits"
            train = ["train", "--epochs", "2", "--validation-samples", "1", "--out", str(run)]
            subprocess.run([sys.executable, "-m", "dubito", *train], check=True, stdout=subprocess.DEVNULL)
        found |= asyncio.run(rounds(run, given.repeats))
        found["memory"] = asyncio.run(endurance(run, given.requests))
        found["overload"] = asyncio.run(overload(run, given.seconds))
    print(markdown(found))
    if given.out:
        given.out.write_text(json.dumps(found, indent=2) + "\n" if given.out.suffix == ".json" else markdown(found))


if __name__ == "__main__":
    main()
