"""Winograd's minimal filtering against torch's own convolutions."""

from functools import partial

import pytest
import torch
from torch import nn

import dubito
from dubito.estimators import Local
from dubito.kernels import winograd
from dubito.kernels.convolution import Conv2d
from dubito.kernels.linear_maps import Convolution

PADDED = Convolution((1, 1), (1, 1), (1, 1), False, (0, 0), 1)


def reference(x, weight, bias, padding, gradient):
    """Output and gradients by torch."""
    given = [tensor.detach().clone().requires_grad_() for tensor in (x, weight, bias)]
    output = torch.conv2d(*given, padding=padding)
    return output.detach(), torch.autograd.grad(output, given, gradient)


def random_case(images, channels, width, size, padding, dtype=torch.float64):
    torch.manual_seed(0)
    x = torch.randn(images, channels, *size, dtype=dtype)
    weight, bias = torch.randn(width, channels, 3, 3, dtype=dtype), torch.randn(width, dtype=dtype)
    gradient = torch.randn(images, width, size[0] + 2 * padding[0] - 2, size[1] + 2 * padding[1] - 2, dtype=dtype)
    return x, weight, bias, gradient


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("size", "padding"),
    [((8, 8), (1, 1)), ((4, 4), (1, 1)), ((6, 7), (1, 0)), ((9, 5), (2, 1)), ((3, 3), (0, 0)), ((1, 1), (3, 3))],
)
def test_outputs_and_gradients_equal_those_of_torch_to_double_precision(size, padding, layout, monkeypatch):
    monkeypatch.setattr(winograd, "COLUMNS", 32)  # several parts, the last one with fewer images
    monkeypatch.setattr(winograd, "FEWEST_PATCHES", 8)
    x, weight, bias, gradient = random_case(19, 5, 7, size, padding)
    output, (of_x, of_weight, _) = reference(x, weight, bias, padding, gradient)
    x, gradient = x.contiguous(memory_format=layout), gradient.contiguous(memory_format=layout)
    close = {"rtol": 1e-11, "atol": 1e-11}
    torch.testing.assert_close(winograd.convolve(x, weight, bias, padding), output, **close)
    found = winograd.gradients(gradient, x, weight, padding, (True, True))
    torch.testing.assert_close(found[0], of_x, **close)
    torch.testing.assert_close(found[1], of_weight, **close)
    assert winograd.gradients(gradient, x, weight, padding, (False, False)) == (None, None)


def test_errors_in_single_precision_are_a_few_times_those_of_torch():
    x, weight, bias, gradient = random_case(16, 128, 128, (8, 8), (1, 1), torch.float32)
    exact, (of_x, of_weight, _) = reference(*(t.double() for t in (x, weight, bias)), (1, 1), gradient.double())
    by_torch, (torch_of_x, torch_of_weight, _) = reference(x, weight, bias, (1, 1), gradient)
    found = (
        winograd.convolve(x, weight, bias, (1, 1)),
        *winograd.gradients(gradient, x, weight, (1, 1), (True, True)),
    )
    for ours, theirs, truth in zip(
        found, (by_torch, torch_of_x, torch_of_weight), (exact, of_x, of_weight), strict=True
    ):
        assert (ours - truth).norm() < 20 * (theirs - truth).norm()
        assert (ours - truth).norm() < 1e-5 * truth.norm()


@pytest.fixture
def counted(monkeypatch):
    """How often convolutions went this way."""
    calls = []
    for name in ("convolve", "gradients"):
        original = getattr(winograd, name)
        monkeypatch.setattr(winograd, name, lambda *a, f=original, n=name: calls.append(n) or f(*a))
    return calls


def test_a_frequentist_layer_trains_by_it_and_equals_torch(counted):
    torch.manual_seed(0)
    layer = Conv2d(64, 64, 3, padding=1)
    plain = nn.Conv2d(64, 64, 3, padding=1)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(16, 64, 8, 8)
    results = []
    for module in (layer, plain):
        given = x.clone().requires_grad_()
        output = module(given)
        output.square().sum().backward()
        results.append((output, given.grad, module.weight.grad, module.bias.grad))
    assert counted == ["convolve", "gradients"]
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()


def test_bayesian_layers_train_by_it_and_equal_the_plain_formula(counted, monkeypatch):
    torch.manual_seed(0)
    layer = dubito.BayesConv2d(64, 64, 3, padding=1, initial_std=0.1)
    x = torch.randn(16, 64, 8, 8)
    monkeypatch.setattr("dubito.kernels.local.standard_normal_like", torch.ones_like)
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)
    results = []
    for way in (layer, partial(Local().plain, layer)):
        layer.zero_grad()
        given = x.clone().requires_grad_()
        output = way(given)
        output.square().sum().backward()
        results.append([output, given.grad, *(p.grad for p in layer.parameters())])
    assert counted == ["convolve"] * 2 + ["gradients"] * 2  # mean and variance
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()


@pytest.mark.parametrize(
    ("convolution", "x", "weight"),
    [
        (Convolution((2, 2), (1, 1), (1, 1), False, (0, 0), 1), (64, 64, 16, 16), (64, 64, 3, 3)),
        (Convolution((1, 1), (2, 2), (2, 2), False, (0, 0), 1), (64, 64, 16, 16), (64, 64, 3, 3)),
        (Convolution((1, 1), (1, 1), (1, 1), False, (0, 0), 2), (64, 64, 16, 16), (64, 32, 3, 3)),
        (Convolution((1, 1), (1, 1), (1, 1), True, (0, 0), 1), (64, 64, 16, 16), (64, 64, 3, 3)),
        (PADDED, (64, 64, 16, 16), (64, 64, 5, 5)),
        (PADDED, (64, 3, 16, 16), (64, 3, 3, 3)),
        (PADDED, (64, 64, 2, 2), (64, 64, 3, 3)),
        (PADDED, (1, 512, 4, 4), (512, 512, 3, 3)),
    ],
    ids=("stride", "dilation", "groups", "transposed", "kernel", "channels", "tiny", "one image"),
)
def test_other_convolutions_are_left_to_torch(convolution, x, weight, counted):
    with torch.no_grad():
        convolution(torch.zeros(x), torch.zeros(weight), None)
    assert not counted


def test_double_precision_is_left_to_torch(counted):
    with torch.no_grad():
        PADDED(torch.zeros(64, 64, 16, 16, dtype=torch.float64), torch.zeros(64, 64, 3, 3, dtype=torch.float64), None)
    assert not counted


def test_second_derivatives_of_a_frequentist_layer_equal_those_of_torch():
    torch.manual_seed(0)
    layer = Conv2d(64, 64, 3, padding=1)
    x = torch.randn(4, 64, 16, 16)
    found = []
    for way in (layer, lambda given: torch.conv2d(given, layer.weight, layer.bias, padding=1)):
        given = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(way(given).pow(3).mean(), given, create_graph=True)
        found.append(torch.autograd.grad(gradient.square().sum(), layer.weight)[0])
    assert (found[0] - found[1]).norm() < 1e-4 * found[1].norm()


def test_the_networks_of_all_inferences_use_it_where_it_pays(counted):
    x = torch.randn(16, 3, 32, 32)
    for inference, maps in (("frequentist", 1), ("dropout", 1), ("vi", 2)):
        counted.clear()
        network = dubito.models.build("vgg16", in_channels=3, inference=inference).train()
        counted.clear()
        network(x)
        assert counted == ["convolve"] * (maps * 6)  # the rows of 32x32, 16x16 and 8x8 pixels from 64 channels
