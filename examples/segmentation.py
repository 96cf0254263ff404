"""Dense outputs: a class for every pixel, with maps of both uncertainties.

    python examples/segmentation.py --out docs/pictures/segmentation.png

Discs with level or upright stripes lie on a noisy ground. Whoever labelled them disagreed about their rims: a pixel of
the rim has the label of the disc or of the ground by the toss of a coin. Aleatoric uncertainty should draw the rims,
and epistemic uncertainty find what no training image has: discs with slanting stripes.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor, nn

import dubito
from dubito.evaluation.style import STYLE

CLASSES = ("ground", "level", "upright")
SIZE, RIM, PERIOD = 32, 2, 4


@dataclass(frozen=True)
class Scenes:
    """Images (N, 1, H, W), labels (N, H, W), and where the rims and the insides of discs are, (N, H, W)."""

    images: Tensor
    labels: Tensor
    rim: Tensor
    inside: Tensor


def make_scenes(count: int, slant: float = 0.0) -> Scenes:
    """Two discs for each image, anywhere, with stripes that are turned by `slant` radians."""
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    images = 0.2 * torch.randn(count, SIZE, SIZE)
    discs = torch.zeros(count, SIZE, SIZE, dtype=torch.long)
    labels = torch.zeros_like(discs)
    for kind in (1, 2):
        centre = torch.randint(5, SIZE - 5, (count, 2, 1, 1))
        radius = torch.randint(5, 9, (count, 1, 1))
        distance = ((rows - centre[:, 0]) ** 2 + (columns - centre[:, 1]) ** 2).sqrt()
        angle = slant + (kind - 1) * math.pi / 2
        stripes = torch.sin(2 * math.pi / PERIOD * (rows * math.cos(angle) + columns * math.sin(angle)) + 0.5)
        images = torch.where(distance < radius + RIM / 2, stripes + 0.2 * torch.randn(images.shape), images)
        discs[distance < radius + RIM / 2] = kind
        labels[distance < radius + RIM / 2] = 0
        labels[distance < radius - RIM / 2] = kind
    inside = labels > 0
    rim = (discs > 0) & ~inside
    labels = torch.where(rim & (torch.rand(rim.shape) < 0.5), discs, labels)
    return Scenes(images.unsqueeze(1), labels, rim, inside)


def build() -> nn.Module:
    """A network of torch's own layers; dilation lets every pixel see as far as a rim is wide."""
    widths = ((1, 16, 1), (16, 16, 1), (16, 16, 2))
    layers: list[nn.Module] = []
    for before, after, dilation in widths:
        layers += [nn.Conv2d(before, after, 3, padding=dilation, dilation=dilation), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(16, len(CLASSES), 1))


def fit(scenes: Scenes, steps: int) -> nn.Module:
    model = dubito.to_bayesian(build(), head="softmax", prior="fan_in", initial_std=0.02)
    objective = dubito.ELBO(num_data=len(scenes.images))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
    for step in track(range(steps), "Fitting", transient=True):
        index = torch.randint(len(scenes.images), (16,))
        warmup = min(1.0, 2 * step / steps)
        terms = objective(model, scenes.images[index], scenes.labels[index], kl_weight=warmup)
        optimizer.zero_grad()
        terms.loss.backward()
        optimizer.step()
        schedule.step()
    return model


def draw(rows: dict[str, tuple[Scenes, dubito.Prediction]], picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    largest = {
        name: max(float(getattr(p, name).max()) for _, p in rows.values()) for name in ("aleatoric", "epistemic")
    }
    with plt.rc_context(STYLE):
        titles = ("image", "labels", "prediction", "aleatoric", "epistemic")
        figure, axes = plt.subplots(
            len(rows), len(titles), figsize=(7.0, 1.4 * len(rows)), layout="constrained", squeeze=False
        )
        for line, (name, (scenes, prediction)) in zip(axes, rows.items(), strict=True):
            line[0].imshow(scenes.images[0, 0], cmap="gray", vmin=-1.5, vmax=1.5)
            for ax, classes in zip(line[1:3], (scenes.labels[0], prediction.label[0]), strict=True):
                ax.imshow(classes, cmap="viridis", vmin=0, vmax=len(CLASSES) - 1)
            for ax, kind in zip(line[3:], largest, strict=True):
                shown = ax.imshow(getattr(prediction, kind)[0], cmap="magma", vmin=0, vmax=largest[kind])
                figure.colorbar(shown, ax=ax, shrink=0.75)
            line[0].set_ylabel(name)
            for ax in line:
                ax.set(xticks=[], yticks=[])
                ax.grid(False)
        for ax, title in zip(axes[0], titles, strict=True):
            ax.set_title(title)
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture, dpi=150)
        plt.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, tuple[Scenes, dubito.Prediction]]:
    parser = argparse.ArgumentParser(description="Segmentation of synthetic scenes with maps of both uncertainties.")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--scenes", type=int, default=1000, help="training images")
    parser.add_argument("--samples", type=int, default=20, help="draws for each prediction")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("segmentation.png"))
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    model = fit(make_scenes(options.scenes), options.steps)
    rows = {}
    for name, slant in (("as in training", 0.0), ("slanting", math.pi / 4)):
        scenes = make_scenes(50, slant)
        # Every draw is one network for all pixels; `local` would draw each pixel's noise independently.
        rows[name] = (scenes, dubito.Predictor(model, options.samples)(scenes.images))
    known, prediction = rows["as in training"]
    certain = ~known.rim
    right = (prediction.label == known.labels)[certain].float().mean()
    print(f"Accuracy where the labels are certain: {right:.1%}.")
    for where, mask in (("rims", known.rim), ("elsewhere", certain)):
        print(f"Mean aleatoric uncertainty, {where}: {prediction.aleatoric[mask].mean():.4f}.")
    for name, (scenes, found) in rows.items():
        print(f"Mean epistemic uncertainty inside of discs, {name}: {found.epistemic[scenes.inside].mean():.4f}.")
    draw(rows, options.out)
    print(f"Picture: {options.out}")
    return rows


if __name__ == "__main__":
    main()
