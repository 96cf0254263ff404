"""The recipe: a network trained as usual, made Bayesian, and fine-tuned for two epochs.

    python examples/recipe.py --data cifar10 --model lenet5 --epochs 20

trains a frequentist network (or goes on with the one in --out), converts it with a prior centred on its weights, and
fine-tunes it by its free energy: once all layers, and once the last layer alone, on features that are computed once.
Settings are chosen on validation images; the test images are read at the very end, for the table that is printed and
written as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn

import dubito
from dubito.data import Batches, Dataset, normalize, open_dataset, split_validation
from dubito.errors import DubitoError
from dubito.evaluation.metrics import accuracy, calibration_error, nll
from dubito.files import write_atomically
from dubito.runs.run import Run
from dubito.training import configure, resume, train

BATCH = 64


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parse(arguments)
    console = Console()
    torch.set_flush_denormal(True)
    began = process_time()
    run, is_new = frequentist(options, console)
    seconds = {"frequentist": process_time() - began if is_new else sum(row["seconds"] for row in run.metrics())}
    network = run.load("last")  # what a training ends with; "best" would be an early stop
    data = open_dataset(run.config.data)
    whole = data.train()
    kept, held_out = split_validation(whole.labels, run.config.validation_fraction, run.config.seed)
    batches = Batches(
        whole.images[kept],
        whole.labels[kept],
        BATCH,
        shuffle=True,
        seed=run.config.seed + 1,
        augment=replace(data.augmentation, padding=run.config.crop) if run.config.augment else None,
        mean=whole.mean,
        std=whole.std,
    )

    torch.manual_seed(options.seed)
    models: dict[str, nn.Module] = {"frequentist": network}

    began = process_time()
    bayesian = dubito.to_bayesian(network, prior="empirical", initial_std=options.initial_std)
    fine_tune(bayesian, epochs_of(batches, options.fine_tune), len(kept), options, console, "all layers")
    models["Bayesian, all layers"] = bayesian
    seconds["Bayesian, all layers"] = process_time() - began

    began = process_time()
    last = dubito.to_bayesian(network, last_layer=True, prior="empirical", initial_std=options.last_initial_std)
    layer, features = last_layer_and_features(last, whole, kept)
    epochs = (shuffled(features, whole.labels[kept]) for _ in range(options.fine_tune))
    fine_tune(dubito.attach_head(layer, run.config.head), epochs, len(kept), options, console, "last layer")
    models["Bayesian, last layer"] = last
    seconds["Bayesian, last layer"] = process_time() - began

    print(dubito.summary(last))
    result: dict[str, Any] = {"command": " ".join(["python", "examples/recipe.py", *(arguments or sys.argv[1:])])}
    result["settings"] = {name: value for name, value in vars(options).items() if name not in ("out", "json")}
    result["validation"] = measure(models, part(whole, held_out), options.samples)
    if not options.tuning:
        result["test"] = measure(models, data.test(), options.samples)
    result["seconds"] = {name: round(value, 1) for name, value in seconds.items()}
    for split in ("validation", "test"):
        if split in result:
            console.print(table(split, result[split], result["seconds"]))
    if options.json:
        write_atomically(options.json, json.dumps(result, indent=2) + "\n")
        console.print(f"Written to {options.json}.")
    return result


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train, convert with an empirical prior, fine-tune, compare.")
    parser.add_argument("--data", default="digits", help="data set by name or path (default: digits)")
    parser.add_argument("--model", default="lenet5", help="lenet5, alexnet or vgg16 (default: lenet5)")
    parser.add_argument("--epochs", type=int, default=20, help="of the frequentist training (default: 20)")
    parser.add_argument("--augment", action="store_true", help="random crops and flips in all trainings")
    parser.add_argument("--fine-tune", type=int, default=2, help="epochs of each fine-tuning (default: 2)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="peak rate of fine-tuning (default: 0.001)")
    parser.add_argument("--temperature", type=float, default=1.0, help="multiplies KL (default: 1)")
    parser.add_argument("--initial-std", type=float, default=0.03, help="of all weights (default: 0.03)")
    parser.add_argument("--last-initial-std", type=float, default=0.08, help="of the last layer alone (default: 0.08)")
    parser.add_argument("--samples", type=int, default=10, help="draws for each prediction (default: 10)")
    parser.add_argument("--tuning", action="store_true", help="leave the test images unread: settings are not decided")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/recipe"), help="folder of the frequentist run")
    parser.add_argument("--json", type=Path, help="file for the results")
    return parser.parse_args(arguments)


def frequentist(options: argparse.Namespace, console: Console) -> tuple[Run, bool]:
    """The network as usual: trained now (True), or the run that is in --out already (False)."""
    config = configure(
        data=options.data,
        model=options.model,
        epochs=options.epochs,
        inference="frequentist",
        augment=options.augment,
        seed=options.seed,
    )
    if not (options.out / "config.yaml").exists():
        console.print(f"Training a frequentist {options.model} on {options.data} ...")
        return train(config, options.out, console=console), True
    run = Run.open(options.out)
    if run.config != config:
        raise DubitoError(f"{options.out} holds a run with other settings; choose another --out.")
    return resume(options.out, console=console), False


def fine_tune(
    model: nn.Module,
    epochs: Iterable[Iterable[tuple[Tensor, Tensor]]],
    num_data: int,
    options: argparse.Namespace,
    console: Console,
    what: str,
) -> None:
    """Minimise the free energy, with a learning rate that rises and falls once."""
    objective = dubito.ELBO(num_data)
    steps = options.fine_tune * -(-num_data // BATCH)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.learning_rate, total_steps=steps)
    model.train()
    columns = (TextColumn(f"Fine-tuning, {what}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=steps)
        for batches in epochs:
            for images, labels in batches:
                terms = objective(model, images, labels, kl_weight=options.temperature)
                optimizer.zero_grad()
                terms.loss.backward()
                optimizer.step()
                schedule.step()
                bar.advance(task)


def epochs_of(batches: Batches, count: int) -> Iterable[Batches]:
    for epoch in range(count):
        batches.set_epoch(epoch)
        yield batches


def shuffled(features: Tensor, labels: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    for index in torch.randperm(len(labels)).split(BATCH):
        yield features[index], labels[index]


def last_layer_and_features(model: nn.Module, whole: Dataset, index: Tensor) -> tuple[nn.Module, Tensor]:
    """The Bayesian layer of a network that has one, and what goes into it for these images."""
    (layer,) = [part for part in model.modules() if isinstance(part, dubito.BayesLayer)]
    found: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    with torch.no_grad():
        for images in whole.images[index].split(512):
            model.eval()(normalize(images, whole.mean, whole.std))
    handle.remove()
    return layer, torch.cat(found)


def part(whole: Dataset, index: Tensor) -> Dataset:
    return Dataset(whole.images[index], whole.labels[index], whole.class_names, whole.name, whole.mean, whole.std)


def measure(models: dict[str, nn.Module], data: Dataset, samples: int) -> dict[str, dict[str, float]]:
    images = normalize(data.images, data.mean, data.std)
    metrics: dict[str, Callable[[Tensor, Tensor], float]] = {
        "accuracy": accuracy,
        "nll": nll,
        "ece": calibration_error,
    }
    found = {}
    for name, model in models.items():
        probs = dubito.Predictor(model, samples)(images).probs
        found[name] = {metric: round(of(probs, data.labels), 6) for metric, of in metrics.items()}
    return found


def table(split: str, rows: dict[str, dict[str, float]], seconds: dict[str, float]) -> Table:
    shown = Table(title=f"{split.capitalize()} images")
    for column in ("network", "accuracy", "NLL", "ECE", "seconds"):
        shown.add_column(column, justify="left" if column == "network" else "right")
    for name, row in rows.items():
        shown.add_row(*cells(name, row, seconds[name]))
    return shown


def cells(name: str, row: dict[str, float], seconds: float) -> list[str]:
    """A row of the table."""
    return [name, f"{100 * row['accuracy']:.2f} %", f"{row['nll']:.3f}", f"{row['ece']:.3f}", f"{seconds:.0f}"]


if __name__ == "__main__":
    try:
        main()
    except DubitoError as error:
        sys.exit(str(error))
