"""Batch norm of Bayesian networks: which statistics draws use, freezing, and estimating them again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dubito
from dubito.convert import estimate_statistics, freeze_parameters, hold_statistics
from dubito.errors import OptionError


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def test_statistics_at_the_mean_and_under_draws_have_their_analytic_values():
    """Under draws, each weight adds its variance times that of its input to the variance of a channel."""
    images = torch.randn(64, 1, 4, 4)
    bayesian = dubito.to_bayesian(network(), head="softmax", initial_std=0.3)
    convolved = bayesian[0].mean_output(images)
    estimate_statistics(bayesian, [images], draws=False)
    torch.testing.assert_close(bayesian[1].running_mean, convolved.mean((0, 2, 3)))
    torch.testing.assert_close(bayesian[1].running_var, convolved.var((0, 2, 3)))
    estimate_statistics(bayesian, [images] * 400)
    # One draw of nine weights has a relative standard deviation of at most sqrt(2); 400 leave 0.07.
    patches = nn.functional.unfold(images, 3).transpose(1, 2).reshape(-1, 9)
    expected = convolved.var((0, 2, 3)) + 0.09 * patches.var(0).sum()
    torch.testing.assert_close(bayesian[1].running_var, expected, rtol=0.35, atol=0)
    assert bayesian.training
    assert bayesian[1].momentum == 0.1


def test_predictions_use_the_running_statistics_and_change_none():
    bayesian = dubito.to_bayesian(network(), head="softmax", initial_std=0.1)
    images = torch.randn(5, 1, 4, 4)
    bayesian(torch.randn(64, 1, 4, 4) + 2)
    before = {name: buffer.clone() for name, buffer in bayesian.named_buffers()}
    alone = dubito.predict(bayesian, images[:1]).probs
    torch.testing.assert_close(dubito.predict(bayesian, images).probs[:1], alone)
    assert all(torch.equal(buffer, before[name]) for name, buffer in bayesian.named_buffers())


def test_frozen_parameters_do_not_learn_and_frozen_batch_norm_keeps_its_statistics():
    plain = network()
    freeze_parameters(plain, ["0", "1"])
    plain.train()
    hold_statistics(plain)
    mean = plain[1].running_mean.clone()
    plain(torch.randn(8, 1, 4, 4) + 3).sum().backward()
    assert torch.equal(plain[1].running_mean, mean)
    assert [name for name, p in plain.named_parameters() if p.grad is not None] == ["4.weight", "4.bias"]
    assert plain[4].training
    with pytest.raises(OptionError, match="freeze is 'five', which is not the name of a module or parameter"):
        freeze_parameters(plain, ["five"])
