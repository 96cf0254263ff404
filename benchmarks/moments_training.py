"""Training without sampling noise: the expected log-likelihood through propagated moments against one `local` draw.

    python benchmarks/moments_training.py [--data digits] [--seconds 60] [--points 8] [--seeds 3] [--out FILE.json]

Two LeNet-5 of the same initialisation take steps in turns in one process, always the one that has had less time, until
each has had `--seconds`. Steps, and validation NLL and accuracy by 20 draws, for each seed; `--out` writes them for
docs/explanation/choosing.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dubito
from dubito.files import write_atomically
from dubito.heads import SoftplusHead, categorical_log_likelihood
from dubito.prediction.moments import logit_moments
from dubito.training import ImageData

TEMPERATURE = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--points", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    rows = [row for seed in range(arguments.seeds) for row in race(arguments, seed)]
    result = {"data": arguments.data, "seconds": arguments.seconds, "rows": rows}
    print(markdown(result))
    if arguments.out:
        write_atomically(arguments.out, json.dumps(result, indent=2) + "\n")


def race(arguments: argparse.Namespace, seed: int) -> Iterator[dict[str, Any]]:
    torch.manual_seed(seed)
    data = ImageData(arguments.data, batch_size=128)
    part = data.train_part
    first = dubito.models.build("lenet5", part.num_classes, part.channels, prior="learned")
    dubito.models.initialize(first, next(iter(data.batches(part, train=True)))[0])
    models = {"local": first, "moments": copy.deepcopy(first)}
    optimizers = {n: torch.optim.Adam(m.parameters(), arguments.learning_rate, fused=True) for n, m in models.items()}
    streams = {name: endless(data) for name in models}
    spent, steps = dict.fromkeys(models, 0.0), dict.fromkeys(models, 0)
    objective = dubito.ELBO(len(part))
    while min(spent.values()) < arguments.seconds:
        name = min(spent, key=spent.__getitem__)
        images, labels = next(streams[name])
        start = time.perf_counter()
        model = models[name]
        optimizers[name].zero_grad()
        if name == "local":
            loss = objective(model, images, labels, kl_weight=TEMPERATURE).loss
        else:
            loss = expected_nll(model, images, labels, arguments.points)
            loss = loss + TEMPERATURE * dubito.kl_divergence(model) / len(part)
        loss.backward()
        optimizers[name].step()
        spent[name] += time.perf_counter() - start
        steps[name] += 1
    for name, model in models.items():
        nll, accuracy = evaluate(model, data)
        milliseconds = 1000 * spent[name] / steps[name]
        row = {"seed": seed, "objective": name, "steps": steps[name], "milliseconds": milliseconds}
        yield row | {"nll": nll, "accuracy": accuracy}


def expected_nll(model: nn.Module, images: Tensor, labels: Tensor, points: int) -> Tensor:
    """-E[log p(y | f)] over the Gaussian logits f."""
    logits = logit_moments(model, images).points(points)
    log_probs = SoftplusHead().log_probs(logits.flatten(0, 1))
    return -categorical_log_likelihood(log_probs, labels.repeat(len(logits))).mean()


def endless(data: ImageData) -> Iterator[tuple[Tensor, Tensor]]:
    batches, epoch = data.batches(data.train_part, train=True), 0
    while True:
        batches.set_epoch(epoch)
        yield from batches
        epoch += 1


def evaluate(model: nn.Module, data: ImageData) -> tuple[float, float]:
    """NLL and accuracy on the validation part."""
    probs, labels = [], []
    for images, truth in data.batches(data.validation_part, train=False):
        probs.append(dubito.Predictor(model, 20, seed=0)(images).probs)
        labels.append(truth)
    mean, truth = torch.cat(probs), torch.cat(labels)
    nll = -categorical_log_likelihood(mean.clamp_min(1e-12).log(), truth).mean()
    return float(nll), float((mean.argmax(1) == truth).double().mean())


def markdown(result: dict[str, Any]) -> str:
    heads = f"{result['data']}, {result['seconds']:g} s each: objective | seed | steps | ms a step | NLL | accuracy"
    lines = [f"| {heads} |", "| --- " * 6 + "|"]
    for row in result["rows"]:
        cells = (row["objective"], row["seed"], row["steps"], f"{row['milliseconds']:.1f}", f"{row['nll']:.4f}")
        lines.append(f"| {' | '.join(map(str, cells))} | {row['accuracy']:.2%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
