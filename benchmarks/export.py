"""An exported network in ONNX Runtime against the same network in PyTorch: size of the file and time of a batch.

    python benchmarks/export.py [--model lenet5 alexnet] [--rounds 30] [--out results/export]

10 draws, moments and the mean network, for 1 image and for 128. Both sides take bytes, normalise them and give the
whole prediction, in turns in one process with the same number of threads. The networks are not trained, as time does
not depend on the values of weights. Times are medians with quartiles. `--out` writes export.md and export.json.
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

import dubito
from dubito.data import normalize
from dubito.exporting import OnnxModel, export_bytes
from dubito.exporting.graph import METHODS
from dubito.files import write_atomically
from dubito.runs.description import DataDescription

BATCHES = (1, 128)
DRAWS = 10
DATA = DataDescription("ten", 3, tuple("0123456789"), (0.5,) * 3, (0.25,) * 3, padding=0, num_data=50_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["lenet5", "alexnet"], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, help="a folder for export.md and export.json")
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    rows = [row for name in arguments.model for row in measure(name, arguments.rounds)]
    table = markdown(rows)
    print(table)
    if arguments.out:
        write_atomically(arguments.out / "export.json", json.dumps(rows, indent=2) + "\n")
        write_atomically(arguments.out / "export.md", table)


def measure(name: str, rounds: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    network = dubito.models.build(name, 10, DATA.channels, image_size=DATA.size).eval().requires_grad_(False)
    rows = []
    for what, method in METHODS.items():
        content = export_bytes(network, DATA, what=what, samples=DRAWS)
        model, predictor = OnnxModel(content), dubito.Predictor(network, DRAWS, method)
        for count in BATCHES:
            shape = (count, DATA.channels, DATA.size, DATA.size)
            images = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
            sides = {
                "torch": lambda images=images, own=predictor: own(normalize(images, DATA.mean, DATA.std)),
                "onnx": lambda images=images, model=model: model.predict(images),
            }
            times = in_turns(sides, rounds)
            row = {"model": name, "what": what.value, "bytes": len(content), "images": count}
            row |= {side: statistics.quantiles(taken, n=4) for side, taken in times.items()}
            rows.append({**row, "ratio": row["onnx"][1] / row["torch"][1]})
    return rows


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
        "| network | export | file | images | PyTorch, ms | ONNX Runtime, ms | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        torch_ms, onnx_ms = ("{1:.1f} ({0:.1f} .. {2:.1f})".format(*row[name]) for name in ("torch", "onnx"))
        size = f"{row['bytes'] / 1e6:.2f} MB"
        cells = (f"`{row['model']}`", row["what"], size, row["images"], torch_ms, onnx_ms, f"{row['ratio']:.2f}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
