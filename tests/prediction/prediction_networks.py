"""Networks of every kind that a predictor takes, the same in every process, and what they predict."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

import dubito
from dubito.layers.parameter import draw_parameter
from dubito.variational.families import StdPosterior

FIELDS = ("probs", "aleatoric_per_class", "epistemic_per_class", "entropy", "mutual_information")
COUNT = 500
SAMPLES = 4


class Residual(nn.Module):
    """Batch normalisation, changes in place, a shortcut and global pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.first = nn.Conv2d(6, 6, 3, padding=1)
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.norm(self.stem(x))))
        out = self.second(self.relu(self.first(x)))
        out += x
        return self.last(torch.flatten(self.average(self.relu(out)), 1))


class Recurrent(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 6, batch_first=True)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.rnn(x.squeeze(1))[0][:, -1])


class Attention(nn.Module):
    """Attention between the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.squeeze(1)
        return self.last(self.attention(rows, rows, rows)[0].mean(1))


def _lenet5() -> nn.Module:
    return dubito.models.build("lenet5", num_classes=4, in_channels=1, image_size=32, initial_std=0.1)


def _residual() -> nn.Module:
    return dubito.to_bayesian(_normalised(), head="softmax", initial_std=0.2)


def _normalised() -> Residual:
    network = Residual()
    network.norm.running_mean.uniform_(-0.2, 0.2)
    network.norm.running_var.uniform_(0.5, 1.5)
    return network


def _dropout() -> nn.Module:
    layers = nn.Flatten(), nn.Linear(64, 20), nn.ReLU(inplace=True), nn.Dropout(0.4), nn.Linear(20, 3)
    return dubito.mc_dropout(nn.Sequential(*layers), head="softplus")


def _ensemble() -> nn.Module:
    plain = dubito.attach_head(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), "softmax")
    return dubito.ensemble([plain, _residual(), _dropout()])


def _last_layer() -> nn.Module:
    return dubito.to_bayesian(_normalised(), head="softplus", last_layer=True, initial_std=0.3)


def _recurrent() -> nn.Module:
    network = Recurrent()
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0"):
        draw_parameter(network.rnn, name, StdPosterior(network.rnn.get_parameter(name), std=0.3))
    return dubito.attach_head(network, "softmax")


def _attention() -> nn.Module:
    network = Attention()
    draw_parameter(network.attention, "in_proj_weight", StdPosterior(network.attention.in_proj_weight, std=0.3))
    return dubito.attach_head(network, "softmax")


NETWORKS = {
    "lenet5": _lenet5,
    "residual": _residual,
    "dropout": _dropout,
    "ensemble": _ensemble,
    "last layer": _last_layer,
    "lstm": _recurrent,
    "attention": _attention,
}
UNKNOWN_TO_MOMENTS = ("lstm", "attention")
CASES = [
    (name, method)
    for name in NETWORKS
    for method in ("weights", "local", "moments", "mean")
    if method != "moments" or name not in UNKNOWN_TO_MOMENTS
]


@cache
@torch.inference_mode(False)
def model(name: str) -> nn.Module:
    """The network in double precision, so that rounding is small."""
    torch.manual_seed(0)
    return NETWORKS[name]().double()


@cache
@torch.inference_mode(False)
def images(name: str) -> Tensor:
    """As many images as any test needs, and some that are alike."""
    size = 32 if name == "lenet5" else 8
    found = torch.randn(COUNT, 1, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found[7] = found[0]
    return found


@cache
@torch.inference_mode(False)
def predictor(name: str, method: str) -> dubito.Predictor:
    """A predictor that many tests call."""
    return dubito.Predictor(model(name), SAMPLES, method)


@cache
@torch.inference_mode(False)
def whole(name: str, method: str) -> dubito.Prediction:
    """The prediction of all images."""
    return predictor(name, method)(images(name))


def main(states: str, out: str) -> None:
    """Write what networks with these weights predict of the first images."""
    for name, state in torch.load(Path(states), weights_only=True).items():
        model(name).load_state_dict(state)
    found = {}
    for name, method in CASES:
        prediction = predictor(name, method)(images(name)[:20])
        found[f"{name} {method}"] = {field: getattr(prediction, field) for field in FIELDS}
    torch.save(found, Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
