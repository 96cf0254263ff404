"""Muon: orthogonal updates against the singular value decomposition, and steps against the rule written out."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from dubito.errors import OptionError
from dubito.training import configure
from dubito.training.muon import MOMENTUM, Muon, orthogonal


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(96, 5), nn.Linear(5, 2)
    return nn.Sequential(*layers).double()


def gradients(model: nn.Module, seed: int) -> list[Tensor]:
    """Random ones, set and returned."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("shape", [(6, 36), (36, 6), (8, 8), (1, 5)])
def test_an_orthogonal_update_has_the_singular_vectors_of_its_matrix_and_values_near_one(
    shape: tuple[int, int],
) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    values = left.T @ orthogonal(matrix) @ right.T
    assert float((values - values.diagonal().diag()).abs().max()) < 1e-12
    assert bool(((values.diagonal() > 0.65) & (values.diagonal() < 1.25)).all())
    torch.testing.assert_close(orthogonal(1e6 * matrix), orthogonal(matrix))
    assert not orthogonal(torch.zeros(shape)).any()


def test_hidden_weights_take_orthogonal_steps_and_the_rest_those_of_adamw() -> None:
    model, expected = network(), network()
    optimizer = Muon(model, lr=0.01, weight_decay=0.1)
    names = [name for name, parameter in expected.named_parameters() if name not in ("1.weight", "4.weight")]
    adamw = torch.optim.AdamW([expected.get_parameter(name) for name in names], 0.01, weight_decay=0.1)
    hidden = {name: expected.get_parameter(name).detach().clone() for name in ("1.weight", "4.weight")}
    momenta = {name: torch.zeros_like(weight) for name, weight in hidden.items()}
    for seed in range(3):
        gradients(model, seed)
        gradients(expected, seed)
        optimizer.step()
        adamw.step()
        for name, weight in hidden.items():
            gradient = expected.get_parameter(name).grad
            momenta[name] = MOMENTUM * momenta[name] + (1 - MOMENTUM) * gradient
            ahead = ((1 - MOMENTUM) * gradient + MOMENTUM * momenta[name]).reshape(len(weight), -1)
            size = 0.2 * max(ahead.shape) ** 0.5
            hidden[name] = (1 - 0.01 * 0.1) * weight - 0.01 * size * orthogonal(ahead).reshape(weight.shape)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.data, hidden.get(name, expected.get_parameter(name).data), msg=name)


def test_an_update_has_the_size_of_adams() -> None:
    """Its root mean square is 0.2 learning rates, whatever the shape; the iteration leaves it within a quarter."""
    model = nn.Sequential(nn.Linear(3, 64), nn.Linear(64, 16), nn.Linear(16, 200), nn.Linear(200, 2))
    before = copy.deepcopy(model)
    gradients(model, 0)
    Muon(model, lr=1e-2).step()
    for one, other in list(zip(model.parameters(), before.parameters(), strict=True))[2:6:2]:
        assert float((one - other).detach().square().mean().sqrt()) == pytest.approx(0.2e-2, rel=0.25)


def test_frozen_weights_and_those_without_a_gradient_stay() -> None:
    model = network()
    model[1].weight.requires_grad_(False)
    before = copy.deepcopy(model)
    optimizer = Muon(model, lr=0.01, weight_decay=0.1)
    model[0].weight.grad = torch.ones_like(model[0].weight)
    optimizer.step()
    changed = [
        name
        for (name, one), other in zip(model.named_parameters(), before.parameters(), strict=True)
        if not torch.equal(one, other)
    ]
    assert changed == ["0.weight"]


def test_bayesian_networks_are_refused_in_a_sentence() -> None:
    with pytest.raises(OptionError, match="optimizer is muon, which trains point estimates, but inference is vi"):
        configure(optimizer="muon")
    assert configure(optimizer="muon", inference="frequentist").optimizer == "muon"
