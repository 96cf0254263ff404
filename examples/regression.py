"""Regression with both uncertainties: a network that gives a mean and a variance for each x.

    python examples/regression.py --out docs/pictures/regression.png

The data are noisy, the more the further right, and there are none outside of -2 ... 2. Aleatoric uncertainty should
follow the noise, and epistemic uncertainty grow where there are no data. The split is that of Kendall & Gal (2017):
with draws f_t of the mean and v_t of the variance, aleatoric = mean_t v_t and epistemic = var_t f_t.
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
from dubito.evaluation.style import COLORS, STYLE
from dubito.heads import Head
from dubito.heads.split import Regression, RunningMoments

INTERVAL = (-2.0, 2.0)


@dataclass(frozen=True)
class GaussianWithVariance(Head):
    """log N(y | f, s^2) with a network that gives f and, through softplus, s."""

    name = "gaussian_with_variance"
    classifies = False
    unit = "output"

    def log_likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        mean, std = moments(outputs)
        return -((targets - mean) / std).square() / 2 - std.log() - math.log(2 * math.pi) / 2

    def split(self, covariance: bool = False, sampling: str = "independent") -> KendallGalSplit:
        return KendallGalSplit(covariance, sampling)


class KendallGalSplit:
    """The variance of drawn means beside the mean of drawn variances."""

    def __init__(self, covariance: bool = False, sampling: str = "independent") -> None:
        self._means, self._variances = RunningMoments(covariance, sampling), RunningMoments()

    def update(self, outputs: Tensor) -> None:
        mean, std = moments(outputs)
        self._means.update(mean)
        self._variances.update(std.square())

    def compute(self) -> Regression:
        return Regression(self._means.mean, self._variances.mean, self._means.variance, self._means.samples)


def moments(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation from the two outputs of each x."""
    mean, free = outputs.unbind(-1)
    return mean, nn.functional.softplus(free) + 1e-3


@dataclass(frozen=True)
class Bands:
    """Predicted mean and both standard deviations at each x."""

    x: Tensor
    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor

    @property
    def total(self) -> Tensor:
        return (self.aleatoric.square() + self.epistemic.square()).sqrt()


def function(x: Tensor) -> Tensor:
    return torch.sin(2 * x)


def noise(x: Tensor) -> Tensor:
    """Its standard deviation: from 0.05 at the left to 0.45 at the right."""
    return 0.05 + 0.1 * (x - INTERVAL[0]).clamp(0, 4)


def make_data(count: int) -> tuple[Tensor, Tensor]:
    x = torch.empty(count).uniform_(*INTERVAL)
    return x, function(x) + noise(x) * torch.randn(count)


def fit(x: Tensor, y: Tensor, steps: int) -> nn.Module:
    network = nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 2))
    model = dubito.to_bayesian(network, head=GaussianWithVariance(), prior="standard", initial_std=0.03)
    objective = dubito.ELBO(num_data=len(x))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in track(range(steps), "Fitting", transient=True):
        warmup = min(1.0, 2 * step / steps)  # weights find a use before the prior removes them
        terms = objective(model, x.unsqueeze(1), y, kl_weight=warmup)
        optimizer.zero_grad()
        terms.loss.backward()
        optimizer.step()
        schedule.step()
    return model


@torch.no_grad()
def predict(model: nn.Module, x: Tensor, samples: int = 200) -> Bands:
    """With draws of weights, every draw is one function of x."""
    split = GaussianWithVariance().split()
    with dubito.estimator(model, "weight"):
        for _ in range(samples):
            split.update(model(x.unsqueeze(1)).unsqueeze(0))
    found = split.compute()
    return Bands(x, found.mean, found.aleatoric.sqrt(), found.epistemic.sqrt())


def draw(bands: Bands, x: Tensor, y: Tensor, picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.0, 2.8), layout="constrained")
        for ax in (left, right):
            ax.axvspan(*INTERVAL, color=COLORS["grid"], alpha=0.5, linewidth=0)
            ax.set_xlabel("x (training data: grey)")
        left.plot(x, y, ".", color=COLORS["muted"], markersize=2)
        for width, label, alpha in ((bands.total, "total", 0.2), (bands.aleatoric, "aleatoric", 0.35)):
            low, high = bands.mean - 2 * width, bands.mean + 2 * width
            left.fill_between(bands.x, low, high, alpha=alpha, color="tab:blue", linewidth=0, label=f"2 x {label}")
        left.plot(bands.x, bands.mean, color="tab:blue", label="mean")
        left.plot(bands.x, function(bands.x), "--", color=COLORS["ink"], linewidth=0.8, label="truth")
        left.set_ylim(-4, 4)
        left.set_ylabel("y")
        left.legend(loc="upper left", ncols=2)
        inside = torch.linspace(*INTERVAL, 50)
        right.plot(inside, noise(inside), "--", color=COLORS["ink"], linewidth=0.8, label="noise of the data")
        right.plot(bands.x, bands.aleatoric, color="tab:orange", label="aleatoric")
        right.plot(bands.x, bands.epistemic, color="tab:green", label="epistemic")
        right.set_ylabel("standard deviation")
        right.set_ylim(0, 1.5)
        right.legend(loc="upper left")
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture, dpi=150)
        plt.close(figure)


def main(arguments: list[str] | None = None) -> Bands:
    parser = argparse.ArgumentParser(description="Toy regression with aleatoric and epistemic bands.")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("regression.png"))
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    x, y = make_data(options.points)
    model = fit(x, y, options.steps)
    bands = predict(model, torch.linspace(-4, 4, 161))
    inside = (bands.x >= INTERVAL[0]) & (bands.x <= INTERVAL[1])
    gap = (bands.aleatoric - noise(bands.x))[inside].abs().mean()
    print(f"Aleatoric standard deviation, mean distance from the noise of the data: {gap:.3f}.")
    print(f"Epistemic standard deviation: {bands.epistemic[inside].mean():.3f} where there are data, ", end="")
    print(f"{bands.epistemic[~inside].mean():.3f} where there are none.")
    draw(bands, x, y, options.out)
    print(f"Picture: {options.out}")
    return bands


if __name__ == "__main__":
    main()
