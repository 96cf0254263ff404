"""Draws of the weights as one autograd function, against the plain formula."""

import copy

import pytest
import torch
from layer_zoo import KINDS, make_input, make_layer, randomize

from dubito.estimators import Weight
from dubito.kernels.drawn import with_drawn_weights
from dubito.kernels.linear_maps import Convolution, MatrixProduct

WAYS = [Weight(), Weight(3), Weight(2, antithetic=True), Weight(4, antithetic=True)]


def both(layer, x, way):
    """Outputs and gradients of the hand-written and the plain way, with the same noise."""
    results = []
    for function in (way, way.plain):
        torch.manual_seed(3)
        layer.zero_grad()
        given = x.clone().requires_grad_()
        output = function(layer, given)
        weights = torch.linspace(-1, 1, output.numel(), dtype=x.dtype).view_as(output)
        (output * weights).sum().backward()
        results.append((output, given.grad, {name: copy.deepcopy(p.grad) for name, p in layer.named_parameters()}))
    return results


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_drawn_weights_equal_the_plain_formula_for_every_layer(kind, way):
    torch.manual_seed(0)
    layer = randomize(make_layer(kind))
    assert "Drawn" in type(way(layer, make_input(kind, batch=5)).grad_fn).__name__
    torch.testing.assert_close(*both(layer, make_input(kind, batch=5), way))


@pytest.mark.parametrize("options", [{"bias": False}, {"bayesian_bias": False}, {"parameterization": "alpha"}], ids=str)
def test_drawn_weights_equal_the_plain_formula_for_every_posterior(options):
    torch.manual_seed(0)
    layer = randomize(make_layer("Conv2d", **options))
    torch.testing.assert_close(*both(layer, make_input("Conv2d", batch=5), Weight(4, antithetic=True)))


@pytest.mark.parametrize("frozen", ["weight_mean", "weight_rho", "bias_rho"])
def test_frozen_parameters_get_no_gradient_and_the_others_the_same(frozen):
    torch.manual_seed(0)
    layer = randomize(make_layer("Linear"))
    getattr(layer, frozen).requires_grad_(False)
    ours, plain = both(layer, make_input("Linear", batch=4), Weight(2, antithetic=True))
    assert ours[2][frozen] is None
    torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize(("draws", "antithetic"), [(1, False), (3, False), (2, True)])
@pytest.mark.parametrize("kind", ["product", "convolution"])
def test_gradients_agree_with_finite_differences_and_so_do_their_own(kind, draws, antithetic):
    torch.manual_seed(0)
    if kind == "product":
        linear_map, shapes = MatrixProduct(), [(3, 2), (2, 2), (2,)]
    else:
        linear_map, shapes = Convolution((1,), (1,), (1,), False, (0,), 1), [(3, 1, 3), (2, 1, 2), (2,)]
    x, weight, bias = (torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes)
    std, bias_std = (torch.rand(shape, dtype=torch.float64).add(0.5).requires_grad_() for shape in shapes[1:])

    def function(x, weight, bias, std, bias_std):
        torch.manual_seed(0)
        return with_drawn_weights(linear_map, x, (weight, bias), (std, bias_std), draws, antithetic)

    assert torch.autograd.gradcheck(function, (x, weight, bias, std, bias_std))
    assert torch.autograd.gradgradcheck(function, (x, weight, bias, std, bias_std))


def test_backward_twice_gives_the_same_gradients():
    torch.manual_seed(0)
    layer = randomize(make_layer("Linear", estimator=Weight(2, antithetic=True)))
    loss = layer(make_input("Linear", batch=4)).square().sum()
    wanted = (layer.weight_mean, layer.weight_rho)
    first = torch.autograd.grad(loss, wanted, retain_graph=True)
    torch.testing.assert_close(first, torch.autograd.grad(loss, wanted), rtol=0, atol=0)
