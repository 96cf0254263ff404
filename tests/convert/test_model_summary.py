"""The summary of a network: every weight is in it, with a reason, in 80 columns."""

import torch
from torch import nn

import dubito


class Deep(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.a_rather_long_name_of_a_block = (
            Deep(depth - 1) if depth else nn.Sequential(nn.Linear(2, 2), nn.Bilinear(2, 2, 2))
        )


def test_every_parameter_is_counted_once():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), Deep(2), nn.GRU(2, 2))
    network.append(network[0])
    expected = sum(p.numel() for p in network.parameters())
    for summary in (dubito.summary(network), dubito.summary(dubito.to_bayesian(network))):
        assert sum(row.weights for row in summary.rows) == expected
    assert summary.layers == 3
    assert summary.weights == 20 + 6 + 36


def test_every_module_that_is_not_bayesian_has_a_reason():
    rows = dubito.summary(dubito.to_bayesian(nn.Sequential(Deep(1), nn.LayerNorm(2), nn.Linear(2, 2)), only="2")).rows
    reasons = {row.kind: row.reason for row in rows}
    own = "parameters of the module itself are converted only if `only` names them"
    assert reasons == {
        "Deep": own,
        "Linear": "not selected for conversion",
        "Bilinear": own,
        "LayerNorm": "normalisation layers are converted only if `only` names their parameters",
        "BayesLinear": None,
    }


def test_table_fits_into_80_columns():
    lines = str(dubito.summary(Deep(4))).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0][-2:] for line in lines if " Linear " in line] == [".0"]
    assert lines[0].split() == ["layer", "type", "weights", "Bayesian"]


def test_tied_weights_are_counted_once():
    network = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    network[1].weight = network[0].weight
    assert "0 of 80 weights" in str(dubito.summary(network))
    for model in (network, dubito.to_bayesian(network)):
        assert [row.weights for row in dubito.summary(model).rows] == [72, 8]
