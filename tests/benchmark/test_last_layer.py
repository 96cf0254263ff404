from __future__ import annotations

import torch
from benchmarks.last_layer import made, measure
from torch import nn


def test_a_network_of_ones_own_is_measured() -> None:
    assert made("benchmarks.last_layer:resnet18")(torch.zeros(2, 3, 32, 32)).shape == (2, 1000)
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))
    found = measure(network, torch.randn(4, 3, 2, 2), 3, "wall")
    assert 0 < found["low"] <= found["median"] <= found["high"]
