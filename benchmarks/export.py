"""An exported network in ONNX Runtime against the same network in PyTorch: size of the file and time of a batch.

    python benchmarks/export.py runs/mnist-lenet5 [runs/...] [--rounds 30] [--out FOLDER]

Moments, 10 draws of the weights, and the mean network, for 1 image and for 128. Both sides take bytes, normalise them
and give the whole prediction, in turns in one process with the same number of threads; PyTorch keeps what it has
prepared of the weights for moments. Times are medians with quartiles. `--out` writes export.md and export.json.
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
from torch import Tensor

import dubito
from dubito.data import normalize
from dubito.export import OnnxModel, export
from dubito.files import write_atomically
from dubito.heads import ClassificationHead, resolve_head
from dubito.prediction.moments import Propagate, predict_moments
from dubito.runs.run import Run

BATCHES = (1, 128)
DRAWS = 10
WAYS = ("moments", "draws", "mean")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, help="a folder for export.md and export.json")
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    rows = [row for path in arguments.runs for row in measure(Run.open(path), arguments.rounds)]
    table = markdown(rows)
    print(table)
    if arguments.out:
        write_atomically(arguments.out / "export.json", json.dumps(rows, indent=2) + "\n")
        write_atomically(arguments.out / "export.md", table)


def measure(run: Run, rounds: int) -> list[dict[str, Any]]:
    network = run.load().requires_grad_(False)
    rows = []
    for what in WAYS:
        content = export(network, run.data, what=what, samples=DRAWS)
        model, own = OnnxModel(content), in_torch(network, what)
        for count in BATCHES:
            shape = (count, run.data.channels, 32, 32)
            images = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
            sides = {
                "torch": lambda images=images, own=own: own(normalize(images, run.data.mean, run.data.std)),
                "onnx": lambda images=images, model=model: model.predict(images),
            }
            times = in_turns(sides, rounds)
            row = {"run": run.path.name, "what": what, "bytes": len(content), "images": count}
            row |= {name: statistics.quantiles(taken, n=4) for name, taken in times.items()}
            rows.append({**row, "ratio": row["onnx"][1] / row["torch"][1]})
    return rows


def in_torch(network: Any, what: str) -> Callable[[Tensor], Any]:
    head, propagate = resolve_head(network), Propagate()
    assert isinstance(head, ClassificationHead)

    def moments(inputs: Tensor) -> Any:
        with torch.no_grad():
            return predict_moments(network, inputs, head, propagate=propagate)

    ways: dict[str, Callable[[Tensor], Any]] = {
        "moments": moments,
        "draws": lambda inputs: dubito.predict(network, inputs, DRAWS, route="weights"),
        "mean": lambda inputs: dubito.predict(network, inputs, 1, estimator="mean"),
    }
    return ways[what]


def in_turns(sides: dict[str, Callable[[], Any]], rounds: int, warm_up: int = 3) -> dict[str, list[float]]:
    """Milliseconds of each side, one after the other in every round."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + warm_up):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            if number >= warm_up:
                times[name].append(1000 * (time.perf_counter() - start))
    return times


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| run | export | file | images | PyTorch, ms | ONNX Runtime, ms | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        torch_ms, onnx_ms = ("{1:.1f} ({0:.1f} .. {2:.1f})".format(*row[name]) for name in ("torch", "onnx"))
        size = f"{row['bytes'] / 1e6:.2f} MB"
        cells = (f"`{row['run']}`", row["what"], size, row["images"], torch_ms, onnx_ms, f"{row['ratio']:.2f}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
