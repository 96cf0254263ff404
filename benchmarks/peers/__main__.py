"""dubito against its peers and the frequentist twin: time and peak memory.

    make bench                                # installs the peers into .bench, measures, writes the results
    python -m benchmarks.peers [--quick] [--plan] [--threads N] [--out FOLDER]

Writes results/benchmark.json, results/benchmark.md, docs/results/benchmark.md, docs/results/benchmark.png and the cost
table of docs/results/index.md below `--out`, which is this project, or with --quick the environment's own folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.peers.document import OVERVIEW, column, page, tables, with_cost_table
from benchmarks.peers.install import failures
from benchmarks.peers.plan import GROWTH_BATCH, Stage, full_plan, quick_plan
from benchmarks.peers.profile import profile
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from dubito.benchmark import System, Work, Worker, compare, open_workers
from dubito.benchmark.workers import WorkerError
from dubito.errors import DubitoError
from dubito.files import write_atomically
from dubito.runs.environment import commit

ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a little of everything, to see that it works")
    parser.add_argument("--plan", action="store_true", help="say what would be measured and how long, and stop")
    parser.add_argument(
        "--ours", action="store_true", help="measure dubito and layers of torch again, and keep the figures of peers"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each process")
    parser.add_argument("--out", type=Path, help="the folder that gets results/ and docs/")
    given = parser.parse_args()
    if given.threads < 1:
        parser.error(f"--threads is {given.threads}, but must be at least 1.")
    plan = quick_plan() if given.quick else full_plan()
    if given.ours:
        plan = [replace(stage, systems=tuple(filter(is_ours, stage.systems))) for stage in plan]
    console = Console(highlight=False)
    describe(plan, console)
    if given.plan:
        return 0
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or the workers' profiler writes lines into the progress bar
    out = given.out or (Path(sys.prefix) / "quick" if given.quick else ROOT)
    try:
        results = run(plan, given.threads, console)
    except KeyboardInterrupt:
        console.print("Interrupted; nothing was written.")
        return 130
    except DubitoError as error:
        print(error, file=sys.stderr)
        return 1
    results["quick"] = given.quick
    if given.ours:
        results = joined(json.loads((out / "results" / "benchmark.json").read_text(encoding="utf-8")), results)
    write(results, out)
    console.print()
    console.print(tables(results), markup=False, soft_wrap=True)
    console.print(
        f"Written below {out}: results/benchmark.json and .md, docs/results/benchmark.md and .png, {OVERVIEW}.",
        soft_wrap=True,
    )
    return 0


def is_ours(kind: type[System]) -> bool:
    """Whether it needs nothing that others made but torch."""
    return kind.package in ("dubito", "torch")


def joined(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The figures of now, and those of systems that were only measured before."""
    now["environment"]["peers_measured_at"] = before["environment"]["commit"]
    for name, stage in now["stages"].items():
        for part in ("versions", "ratios", "memory", "failures", "profile"):
            if part in stage:
                stage[part] = {**before["stages"].get(name, {}).get(part, {}), **stage[part]}
    return now


def describe(plan: list[Stage], console: Console) -> None:
    total = sum(stage.seconds for stage in plan)
    console.print(f"About {total / 60:.0f} minutes on an otherwise quiet machine:")
    for stage in plan:
        measures = f"{len(stage.measures)} measures of {len(stage.systems)} systems"
        measures += f", {len(stage.profiles)} profiles" if stage.profiles else ""
        console.print(f"  {stage.name:8} {measures:38} {stage.seconds / 60:4.1f} min")
    load = os.getloadavg()[0]
    if load > 0.5:
        console.print(f"Something else is running here (load {load:.1f}): ratios will be unsteady.", style="yellow")


def run(plan: list[Stage], threads: int, console: Console) -> dict[str, Any]:
    results: dict[str, Any] = {"environment": environment(threads), "growth_batch": GROWTH_BATCH, "stages": {}}
    began = time.perf_counter()
    columns = (TextColumn("{task.description:10}"), BarColumn(), TaskProgressColumn(), TextColumn("left"))
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=sum(stage.seconds for stage in plan))
        done = 0.0
        for stage in plan:
            bar.update(task, description=stage.name)
            results["stages"][stage.name] = measure(stage, threads, partial(progress, bar, task, done, stage.seconds))
            done += stage.seconds
            console.print(f"{stage.name}: done after {(time.perf_counter() - began) / 60:.1f} min")
    results["environment"]["minutes"] = round((time.perf_counter() - began) / 60, 1)
    return results


def progress(bar: Progress, task: TaskID, done: float, seconds: float, share: float) -> None:
    bar.update(task, completed=done + share * seconds)


def measure(stage: Stage, threads: int, advance: Callable[[float], None]) -> dict[str, Any]:
    with open_workers(stage.systems, threads) as workers:
        found = compare(workers, stage.measures, memory=stage.memory, advance=advance)
        profiles = {column(kind.name, work): profiled(workers[kind.name], work) for kind, work in stage.profiles}
    missing = failures()
    for kind in stage.systems:
        if kind.name in found.failures and kind.package in missing:
            found.failures[kind.name] = f"it cannot be installed: {missing[kind.package]}"
    works = {measure.name: measure.work for measure in stage.measures}
    sizes = {"samples": works["predict"].samples} if "predict" in works else {}
    if "step" in works:
        sizes["batch"] = works["step"].batch
        sizes["parameters"] = sum(parameter.numel() for parameter in works["step"].build().parameters())
    return {**sizes, **found.to_json(), **({"profile": profiles} if profiles else {})}


def profiled(worker: Worker, work: Work) -> dict[str, Any]:
    try:
        return asdict(worker.examine(work, profile))
    except WorkerError as error:
        return {"failure": str(error)}


def environment(threads: int) -> dict[str, Any]:
    return {
        "commit": commit(),
        "dubito": version("dubito"),
        "torch": version("torch"),
        "python": platform.python_version(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "load_before": round(os.getloadavg()[0], 2),
    }


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def write(results: dict[str, Any], out: Path) -> None:
    from benchmarks.peers.figure import growth_figure

    write_atomically(out / "results" / "benchmark.json", json.dumps(results, indent=2) + "\n")
    write_atomically(out / "results" / "benchmark.md", tables(results))
    write_atomically(out / "docs" / "results" / "benchmark.png", growth_figure(results["stages"]["growth"]))
    write_atomically(out / "docs" / "results" / "benchmark.md", page(results))
    overview = (ROOT / OVERVIEW).read_text(encoding="utf-8")
    write_atomically(out / OVERVIEW, with_cost_table(overview, results))


if __name__ == "__main__":
    sys.exit(main())
