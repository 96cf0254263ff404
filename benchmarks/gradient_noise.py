"""How noisy the gradients of each estimator are on a trained network, and what a step costs: which one to choose.

    python benchmarks/gradient_noise.py RUN [RUN ...] [--batches 4] [--draws 40] [--out FILE.json]

The noise is the trace of the covariance of the likelihood's gradient over draws on a fixed batch of the run's training
images, as a multiple of `local`'s: for the means, and for the parameters of the standard deviations. KL has no noise.
A figure is the median over the batches, with the lowest and the highest. Times are medians of the processor's time for
forward and backward passes, in turns in one process. Noise times time, the last column, is the variance that is left
after a given time of averaging gradients of the means: the lower, the better. `--out` writes the results for
docs/explanation/choosing.md.

Natural gradients average h' = dL/dsigma / sigma, an estimate of the curvature. The second table has its noise as the
root mean square over the weights of the standard deviation of N sigma^2 h', which is its error relative to a curvature
that has settled; the steps over which h has to be averaged until its error is 10 %; and their time in steps of `local`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dubito
from dubito.estimators import Estimator, Flipout, Local, Weight
from dubito.files import write_atomically
from dubito.heads import Head, resolve_head
from dubito.runs.run import Run
from dubito.training import ImageData
from dubito.variational.posterior import posteriors

ESTIMATORS: dict[str, Estimator] = {
    "local": Local(),
    "flipout": Flipout(),
    "weight, 1 draw": Weight(),
    "weight, 2 antithetic draws": Weight(2, antithetic=True),
    "weight, 4 antithetic draws": Weight(4, antithetic=True),
}
COLUMNS = ("noise of means", "noise of deviations", "time", "noise x time")
CURVATURE_COLUMNS = ("error of h' in a step", "steps until 10 %", "time until 10 %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--draws", type=int, default=40, help="of each estimator on each batch")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.draws < 2 or given.batches < 1:
        parser.error("a variance needs --draws of at least 2 and --batches of at least 1.")
    torch.set_flush_denormal(True)
    results = [measure(Run.open(path), given.batches, given.draws) for path in given.runs]
    print("\n\n".join(f"{markdown(result)}\n\n{curvature_markdown(result)}" for result in results))
    if given.out:
        write_atomically(given.out, json.dumps(results, indent=2) + "\n")


class Noise:
    """The trace of the covariance of vectors that come one after the other."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, torch.zeros(()), 0.0

    def add(self, vector: Tensor) -> None:
        vector = vector.double()
        self.count += 1
        difference = vector - self.mean
        self.mean = self.mean + difference / self.count
        self.squares += float(difference @ (vector - self.mean))

    @property
    def trace(self) -> float:
        return self.squares / (self.count - 1)


def measure(run: Run, batches: int, draws: int) -> dict[str, Any]:
    model = run.load()
    images = ImageData(
        run.config.data,
        run.config.batch_size,
        augment=False,
        validation_fraction=run.config.validation_fraction,
        seed=run.config.seed,
    )
    head = resolve_head(model)
    torch.manual_seed(0)
    relative: dict[str, list[tuple[float, float]]] = {name: [] for name in ESTIMATORS}
    errors: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
    times: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
    for batch in islice(images.batches(images.train_part, train=True), batches):
        noises = {name: (Noise(), Noise(), Noise()) for name in ESTIMATORS}
        for _ in range(draws):
            for name, estimator in ESTIMATORS.items():
                start = time.process_time()
                gradients = dict(likelihood_gradients(model, head, estimator, *batch))
                times[name].append(time.process_time() - start)
                for noise, kind in zip(noises[name], (".mean", ".rho"), strict=False):
                    noise.add(torch.cat([g.flatten() for key, g in gradients.items() if key.endswith(kind)]))
                noises[name][2].add(run.data.num_data * curvature(model, gradients))
        unit = [noise.trace for noise in noises["local"]]
        for name, found in noises.items():
            relative[name].append((found[0].trace / unit[0], found[1].trace / unit[1]))
            errors[name].append(math.sqrt(found[2].trace / found[2].mean.numel()))
    cost = {name: statistics.median(taken) for name, taken in times.items()}
    rows = {}
    for name in ESTIMATORS:
        means, deviations = zip(*relative[name], strict=True)
        rows[name] = {
            "noise_of_means": summary(means),
            "noise_of_deviations": summary(deviations),
            "error_of_curvature": summary(tuple(errors[name])),
            "time": cost[name] / cost["local"],
            "milliseconds": 1000 * cost[name],
        }
    sizes = {"batch_size": run.config.batch_size, "batches": batches, "draws": draws}
    return {"run": run.path.name, **sizes, "threads": torch.get_num_threads(), "rows": rows}


def likelihood_gradients(
    model: nn.Module, head: Head, estimator: Estimator, images: Tensor, labels: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """The gradient of the mean negative log-likelihood, by the names of the parameters."""
    with dubito.estimator(model, estimator):
        loss = -head.log_likelihood(model(images), labels).mean()
    names, parameters = zip(*model.named_parameters(), strict=True)
    return zip(names, torch.autograd.grad(loss, parameters), strict=True)


def curvature(model: nn.Module, gradients: dict[str, Tensor]) -> Tensor:
    """sigma^2 h' of all weights, which is sigma dL/dsigma."""
    found = []
    for name, q in posteriors(model).items():
        rho = model.get_parameter(f"{name}.rho").detach()
        found.append((q.std.detach() * gradients[f"{name}.rho"] / torch.sigmoid(rho)).flatten())
    return torch.cat(found)


def summary(values: tuple[float, ...]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def markdown(result: dict[str, Any]) -> str:
    title = f"{result['run']}, {result['draws']} draws on {result['batches']} batches of {result['batch_size']}"
    lines = [f"| {title} | {' | '.join(COLUMNS)} |", "| --- " * (1 + len(COLUMNS)) + "|"]
    for name, row in result["rows"].items():
        noises = ["{:.3g} ({:.3g} .. {:.3g})".format(*row[key]) for key in ("noise_of_means", "noise_of_deviations")]
        both = row["noise_of_means"][0] * row["time"]
        lines.append(f"| {name} | {' | '.join(noises)} | {row['time']:.2f} | {both:.3g} |")
    return "\n".join(lines)


def curvature_markdown(result: dict[str, Any]) -> str:
    lines = [f"| {result['run']} | {' | '.join(CURVATURE_COLUMNS)} |", "| --- " * (1 + len(CURVATURE_COLUMNS)) + "|"]
    for name, row in result["rows"].items():
        # a mean that forgets a share r in every step has the variance r / 2, and reaches over 1 / r steps
        steps = max(1.0, (row["error_of_curvature"][0] / 0.1) ** 2 / 2)
        error = "{:.3g} ({:.3g} .. {:.3g})".format(*row["error_of_curvature"])
        lines.append(f"| {name} | {error} | {steps:,.0f} | {steps * row['time']:,.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
