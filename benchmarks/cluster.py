"""What `dubito predict --engine ray` does with a million images: rate, memory, and what three kills do to the rows.

    python -m benchmarks.cluster RUN --images 1000000 --work FOLDER

makes a Parquet table of PNG files (the test images of a data set again and again), predicts it with two workers while
the driver or a worker is killed three times on the way, checks that every image is there once and that a sample is what
`dubito predict` says in one process, and measures the rate of one and of two workers in turns on a slice of the table.
The results are written to results/cluster.json, and what they mean for a billion images into docs/how-to/cluster.md.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.pages import with_table

OUT = Path("results/cluster.json")
DOCUMENT = Path("docs/how-to/cluster.md")
BEGIN = "<!-- projection: made by python -m benchmarks.cluster -->"
GROUP = 8192
"""Rows of a row group, and images of a chunk."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder of the network")
    parser.add_argument("--data", default="mnist", help="whose test images are repeated")
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--slice", type=int, default=98_304, help="images of each measurement of a rate")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each rate")
    parser.add_argument("--sample", type=int, default=10_000, help="images that are compared with one process")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--samples", type=int, default=10, help="draws")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("cluster-work"), help="folder for tables and predictions")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    table, small = given.work / "images.parquet", given.work / "slice.parquet"
    size = make_table(table, given.data, given.images)
    make_table(small, given.data, given.slice)
    found: dict[str, Any] = {
        "machine": {"cpu": cpu(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()},
        "settings": {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()},
        "bytes_per_image": size / given.images,
    }
    found["settings"] = {name: found["settings"][name] for name in ("data", "images", "samples", "workers", "slice")}
    found["rates"] = rates(given, small)
    print(json.dumps(found["rates"]), flush=True)
    found["whole"] = whole(given, table)
    print(json.dumps(found["whole"]), flush=True)
    found["rows"] = rows(given, table)
    print(json.dumps(found["rows"]), flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2) + "\n")
    write_document(found)


def write_document(found: dict[str, Any]) -> None:
    """Put the projection between its marks in the document."""
    page = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(with_table(page, BEGIN, projection(found)), encoding="utf-8")


def projection(found: dict[str, Any], images: float = 1e9) -> str:
    """Hours, network and storage of a billion images by the measured rate of a core, as a table."""
    alone, several = (statistics.median(values) for values in found["rates"]["images_per_second"].values())
    core = several / found["settings"]["workers"]
    read, written = found["bytes_per_image"], found["whole"]["bytes_per_row"]
    lines = [
        f"Measured on {found['machine']['cpu']} ({found['settings']['data']}, {found['settings']['samples']} draws): "
        f"one worker {alone:,.0f} images a second, {found['settings']['workers']} workers {several:,.0f} "
        f"({found['rates']['ratio']:.2f} times), so **{core:,.0f} a core**; {read:,.0f} bytes read and {written:,.0f} "
        "written for an image.",
        "",
        "| cores | hours | read, MB/s | written by the driver, MB/s | parts a second |",
        "| --- | --- | --- | --- | --- |",
    ]
    for cores in (2, 64, 512, 4096):
        rate = core * cores
        cells = (f"{cores:,}", f"{images / rate / 3600:,.1f}", f"{rate * read / 1e6:,.1f}")
        lines.append(f"| {' | '.join(cells)} | {rate * written / 1e6:,.1f} | {rate / GROUP:,.2f} |")
    terabytes = images * read / 1e12, images * written / 1e12
    lines += ["", f"Storage: {terabytes[0]:.2f} TB of images, {terabytes[1]:.2f} TB of predictions."]
    return "\n".join(lines)


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def make_table(path: Path, data: str, count: int) -> int:
    """Write PNG files of a data set's test images, repeated, row group by row group; gives the bytes of the images."""
    import pyarrow
    from PIL import Image
    from pyarrow import parquet

    from dubito.data import load

    if path.exists() and parquet.ParquetFile(path).metadata.num_rows == count:
        return path.stat().st_size
    files = []
    for image in load(data, "test").images.numpy():
        file = io.BytesIO()
        pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
        Image.fromarray(np.ascontiguousarray(pixels)).save(file, "png")
        files.append(file.getvalue())
    schema = pyarrow.schema([("name", pyarrow.string()), ("image", pyarrow.binary())])
    with parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, count, GROUP):
            numbers = range(start, min(start + GROUP, count))
            names = [f"{data}/{number}" for number in numbers]
            images = [files[number % len(files)] for number in numbers]
            writer.write_table(pyarrow.table([names, images], schema=schema))
    return path.stat().st_size


def command(given: argparse.Namespace, table: Path, out: Path, workers: int, *more: str) -> list[str]:
    engine = ("--engine", "ray", "--workers", str(workers)) if workers else ()
    options = ("--samples", str(given.samples), "--chunk", str(GROUP), "--out", str(out))
    return [sys.executable, "-m", "dubito", "predict", str(given.run), str(table), *engine, *options, *more]


def rates(given: argparse.Namespace, table: Path) -> dict[str, Any]:
    """Images a second with one worker and with all, in turns, from the first part's time to the last's."""
    found: dict[int, list[float]] = {1: [], given.workers: []}
    for turn in range(given.repeats):
        for workers in found:
            out = given.work / f"rate-{workers}"
            shutil.rmtree(out, ignore_errors=True)
            began = time.perf_counter()
            subprocess.run(command(given, table, out, workers), check=True, capture_output=True)
            seconds = time.perf_counter() - began
            found[workers].append(steady(out))
            print(f"turn {turn}, {workers} workers: {found[workers][-1]:,.0f} images/s, {seconds:.1f} s", flush=True)
            shutil.rmtree(out)
    one, several = (sorted(values)[len(values) // 2] for values in found.values())
    return {"images_per_second": {str(key): values for key, values in found.items()}, "ratio": several / one}


def steady(out: Path) -> float:
    """Images a second of the steady state: those of the parts between the first and the last, by their times."""
    from pyarrow import parquet

    parts = sorted(out.glob("part-*.parquet"), key=lambda part: part.stat().st_mtime_ns)
    seconds = (parts[-1].stat().st_mtime_ns - parts[0].stat().st_mtime_ns) / 1e9
    return sum(parquet.ParquetFile(part).metadata.num_rows for part in parts[1:]) / seconds


def whole(given: argparse.Namespace, table: Path) -> dict[str, Any]:
    """Predict the table; kill the driver, a worker and the driver again at equal distances, and go on."""
    out = given.work / "predictions"
    shutil.rmtree(out, ignore_errors=True)
    expected = -(-given.images // GROUP)
    marks = [expected * (number + 1) // (given.kills + 1) for number in range(given.kills)]
    memory = Memory()
    began, kills = time.perf_counter(), []
    process = start(given, table, out, memory)
    while process.poll() is None:
        time.sleep(0.2)
        memory.look(process.pid)
        done = len(list(out.glob("part-*.parquet")))
        if len(kills) < len(marks) and done >= marks[len(kills)]:
            kind = "worker" if len(kills) % 2 else "driver"
            victim = process.pid if kind == "driver" else memory.workers(process.pid)[0]
            os.kill(victim, signal.SIGKILL)
            kills.append({"kind": kind, "parts": done})
            print(f"killed a {kind} after {done} of {expected} parts", flush=True)
            if kind == "driver":
                process.wait()
                process = start(given, table, out, memory, "--resume")
    output = process.communicate()[0]
    if process.returncode:
        raise SystemExit(output)
    seconds = time.perf_counter() - began
    written = sum(part.stat().st_size for part in out.glob("part-*.parquet"))
    told = output.strip().splitlines()[-1].replace(str(out), out.name)
    return {
        **{"seconds": seconds, "kills": kills, "output": told},
        **{"bytes_per_row": written / given.images, "memory": memory.summary()},
    }


def start(given: argparse.Namespace, table: Path, out: Path, memory: Memory, *more: str) -> subprocess.Popen[str]:
    line = command(given, table, out, given.workers, *more)
    memory.attempts.append([])
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Memory:
    """Megabytes of the driver and of each worker, looked at again and again; each attempt's first and last quarter."""

    def __init__(self) -> None:
        self.attempts: list[list[tuple[float, float]]] = []

    def look(self, driver: int) -> None:
        own, workers = resident(driver), [resident(worker) for worker in self.workers(driver)]
        if own and workers:
            self.attempts[-1].append((own, max(workers)))

    def workers(self, driver: int) -> list[int]:
        """The worker processes of this driver's Ray."""
        tree = children()
        below, waiting = [], [driver]
        while waiting:
            waiting += (found := tree.get(waiting.pop(), []))
            below += found
        return [pid for pid in below if "_Worker" in title(pid)]

    def summary(self) -> dict[str, Any]:
        long = max(self.attempts, key=len)
        quarter = max(1, len(long) // 4)
        early, late = np.array(long[quarter : 2 * quarter]), np.array(long[-quarter:])
        names = ("driver", "worker")
        return {
            "megabytes": {
                name: {"second_quarter": float(early[:, i].max()), "last_quarter": float(late[:, i].max())}
                for i, name in enumerate(names)
            },
            "peak": {
                name: float(max(look[i] for part in self.attempts for look in part)) for i, name in enumerate(names)
            },
        }


def resident(pid: int) -> float:
    """Megabytes of a process that it shares with no other."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
    except (OSError, ValueError):
        return 0.0


def children() -> dict[int, list[int]]:
    tree: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError):
            continue
        tree.setdefault(parent, []).append(int(place.name))
    return tree


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def rows(given: argparse.Namespace, table: Path) -> dict[str, Any]:
    """Whether every image is there once, and the largest difference from one process on a sample."""
    from pyarrow import parquet

    counts = np.zeros(given.images, np.int64)
    for part in sorted((given.work / "predictions").glob("part-*.parquet")):
        names = parquet.read_table(part, columns=["path"])["path"].to_pylist()
        np.add.at(counts, [int(name.rsplit("/", 1)[1]) for name in names], 1)
    few, sample = given.work / "sample.parquet", min(given.sample, given.images)
    make_table(few, given.data, sample)
    alone = given.work / "sample-rows.parquet"
    subprocess.run(command(given, few, alone, 0), check=True, capture_output=True)
    expected = {row["path"]: row for row in parquet.read_table(alone).to_pylist()}
    largest, compared, labels = 0.0, 0, 0
    for part in sorted((given.work / "predictions").glob("part-*.parquet")):
        for row in parquet.read_table(part).to_pylist() if compared < sample else ():
            if (other := expected.get(row["path"])) is not None:
                compared += 1
                labels += row["label"] != other["label"]
                numbers = (name for name, value in other.items() if isinstance(value, float))
                largest = max(largest, *(abs(row[name] - other[name]) for name in numbers))
    return {
        "once": int((counts == 1).sum()),
        "missing": int((counts == 0).sum()),
        "more_than_once": int((counts > 1).sum()),
        "compared": compared,
        "largest_difference": largest,
        "different_labels": labels,
    }


if __name__ == "__main__":
    main()
