"""What `torch.compile` makes of a training step: of the frequentist twin and of a Bayesian network.

    python benchmarks/compiled.py [--networks lenet5 alexnet] [--batch 128] [--rounds 20] [--out FILE.json]

The network and its loss are compiled together, the optimiser is fused Adam, and all four take turns in one process.
Compiled, a Bayesian layer is made of plain operations, which the compiler fuses; by itself it has gradients written by
hand. Compiling needs a C++ compiler. `--out` writes the results for docs/explanation/choosing.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dubito.benchmark import Frequentist, System, Work
from dubito.benchmark.systems import LocalTraining
from dubito.benchmark.work import Task
from dubito.files import write_atomically

SYSTEMS: dict[str, type[System]] = {"frequentist": Frequentist, "local": LocalTraining}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["lenet5", "alexnet"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_flush_denormal(True)
    results = [measure(Work(network, Task.STEP, given.batch), given.rounds) for network in given.networks]
    print("\n\n".join(map(markdown, results)))
    if given.out:
        write_atomically(given.out, json.dumps(results, indent=2) + "\n")


def measure(work: Work, rounds: int) -> dict[str, Any]:
    steps = {}
    for name, kind in SYSTEMS.items():
        steps[name] = stepper(kind(work.build()), work, compiled=False)
        steps[f"{name}, compiled"] = stepper(kind(work.build()), work, compiled=True)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if turn >= 2:
                times[name].append(time.perf_counter() - start)
    unit = times["frequentist"]
    rows = {
        name: {
            "milliseconds": 1000 * statistics.median(taken),
            "ratio": statistics.median(a / b for a, b in zip(taken, unit, strict=True)),
        }
        for name, taken in times.items()
    }
    return {"network": work.network, "batch": work.batch, "threads": torch.get_num_threads(), "rows": rows}


def stepper(system: System, work: Work, compiled: bool) -> Callable[[], None]:
    images, labels = work.data()
    optimizer = torch.optim.Adam(system.network.parameters(), lr=1e-4, fused=True)
    loss = torch.compile(system.loss) if compiled else system.loss

    def step() -> None:
        optimizer.zero_grad()
        loss(images, labels).backward()
        optimizer.step()

    return step


def markdown(result: dict[str, Any]) -> str:
    title = f"{result['network']}, batch {result['batch']}: a training step"
    lines = [f"| {title} | ms | against the twin |", "| --- " * 3 + "|"]
    for name, row in result["rows"].items():
        lines.append(f"| {name} | {row['milliseconds']:.1f} | {row['ratio']:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
