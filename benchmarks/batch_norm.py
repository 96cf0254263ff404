"""Which statistics of batch norm suit draws of the weights? Measured on the validation images of a trained run.

    python -m benchmarks.batch_norm RUN [--samples 8] [--images 1024] [--validation 2000] [--json FILE]

A Bayesian network with batch norm has running statistics that its training collected under draws. This compares, for
the mean network and for draws: these; statistics at the posterior mean; statistics under many draws, from images that
are augmented as in training and from images as they are; and, for draws alone, statistics of each draw by itself. All
but the first are estimated from training images.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dubito
from dubito.convert import deep_copy, estimate_statistics
from dubito.data import in_memory, normalize
from dubito.evaluation.metrics import accuracy, calibration_error, nll
from dubito.files import write_atomically
from dubito.heads import resolve_head
from dubito.runs.run import Run
from dubito.training import ImageData


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parse(arguments)
    torch.set_grad_enabled(False)
    run = Run.open(options.run)
    network = run.load()
    data = ImageData(
        run.config.data,
        run.config.batch_size,
        crop=run.config.crop,
        size=run.data.size,
        seed=run.config.seed,
        validation_fraction=run.config.validation_fraction,
        fit=run.data.fit,
    )
    count = -(-options.images // run.config.batch_size)
    batches = data.batches(data.train_part, train=True)
    augmented = [images for images, _ in islice(batches, count)]
    some = torch.randperm(len(data.train_part), generator=torch.Generator().manual_seed(0))[: options.images]
    as_they_are = list(normalized(run, data.train_part.images[some]).split(run.config.batch_size))
    part = data.validation_part
    held_out = torch.randperm(len(part), generator=torch.Generator().manual_seed(0))[: options.validation]
    inputs, labels = normalized(run, part.images[held_out]), part.labels[held_out]
    rows = measure(network, augmented, as_they_are, inputs, labels, options.samples)
    for name, row in rows.items():
        print(f"{name:<62}" + "".join(f"{key} {value:<10.4f}" for key, value in row.items()))
    if options.json:
        found = {"run": run.path.resolve().name, "samples": options.samples, "images": len(labels), "rows": rows}
        write_atomically(options.json, json.dumps(found, indent=2) + "\n")
    return rows


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Statistics of batch norm for the mean network and for draws.")
    parser.add_argument("run", type=Path, help="run folder of a Bayesian network with batch norm")
    parser.add_argument("--samples", type=int, default=8, help="draws (default: 8)")
    parser.add_argument("--images", type=int, default=1024, help="training images for statistics (default: 1024)")
    parser.add_argument("--validation", type=int, default=2000, help="validation images (default: 2000)")
    parser.add_argument("--json", type=Path, help="file for the results")
    return parser.parse_args(arguments)


def normalized(run: Run, images: Any) -> Tensor:
    return normalize(in_memory(images), run.data.mean, run.data.std)


def measure(
    network: nn.Module, training: list[Tensor], as_they_are: list[Tensor], inputs: Tensor, labels: Tensor, samples: int
) -> dict[str, dict[str, float]]:
    """Accuracy, NLL and calibration error for each choice."""
    choices = {
        "running": network,
        "at the mean": estimate_statistics(deep_copy(network), training, draws=False),
        "under draws": estimate_statistics(deep_copy(network), training * samples),
        "under draws, images not augmented,": estimate_statistics(deep_copy(network), as_they_are * samples),
    }
    rows = {}
    for name, chosen in choices.items():
        for title, method in (("mean network", "mean"), ("draws", "weights")):
            probs = dubito.Predictor(chosen, samples, method)(inputs).probs
            rows[f"{title}, {name} statistics"] = score(probs, labels)
    head = resolve_head(network)
    drawn = dubito.Predictor(network, samples).networks(inputs[:1])
    each = [outputs(estimate_statistics(one, training), inputs) for one in drawn]
    rows["draws, statistics of each draw"] = score(torch.stack([head.probs(one) for one in each]).mean(0), labels)
    return rows


def outputs(network: nn.Module, inputs: Tensor) -> Tensor:
    return torch.cat([network(part) for part in inputs.split(256)])


def score(probs: Tensor, labels: Tensor) -> dict[str, float]:
    return {"accuracy": accuracy(probs, labels), "nll": nll(probs, labels), "ece": calibration_error(probs, labels)}


if __name__ == "__main__":
    main()
