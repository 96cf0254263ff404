"""Winograd's minimal filtering: outputs and gradients are those of the plain convolution; variances never use it."""

import pytest
import torch
from torch import nn

import dubito
from dubito import kernels
from dubito.kernels import winograd
from dubito.kernels.winograd import applies, compute
from dubito.linear_map import Convolution

ONE = (1, 1)
PADDED = Convolution(ONE, ONE, ONE)


def with_gradients(convolution, given, gradient, create_graph=False):
    """Output, and gradients of input, weight and bias."""
    given = [tensor.detach().clone().requires_grad_() for tensor in given]
    output = convolution(*given)
    return output.detach(), *torch.autograd.grad(output, given, gradient, create_graph=create_graph)


def random_case(images, channels, width, size, padding, dtype=torch.float64):
    torch.manual_seed(0)
    given = (torch.randn(images, channels, *size), torch.randn(width, channels, 3, 3), torch.randn(width))
    gradient = torch.randn(images, width, size[0] + 2 * padding[0] - 2, size[1] + 2 * padding[1] - 2, dtype=dtype)
    return [tensor.to(dtype) for tensor in given], gradient


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("size", "padding"),
    [((8, 8), (1, 1)), ((4, 4), (1, 1)), ((6, 7), (1, 0)), ((9, 5), (2, 1)), ((3, 3), (0, 0)), ((1, 1), (3, 3))],
)
def test_outputs_and_gradients_equal_those_of_torch_to_double_precision(size, padding, layout, monkeypatch):
    monkeypatch.setattr(winograd, "COLUMNS", 32)  # several parts, the last one with fewer images
    monkeypatch.setattr(winograd, "FEWEST_PATCHES", 8)
    plain = Convolution(ONE, padding, ONE)
    (x, *parameters), gradient = random_case(19, 5, 7, size, padding)
    expected = with_gradients(plain, (x, *parameters), gradient)
    given = (x.contiguous(memory_format=layout), *parameters)
    found = with_gradients(compute(plain), given, gradient.contiguous(memory_format=layout))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_errors_in_single_precision_are_a_few_times_those_of_torch():
    given, gradient = random_case(16, 128, 128, (8, 8), (1, 1), torch.float32)
    exact = with_gradients(PADDED, [tensor.double() for tensor in given], gradient.double())
    by_torch, found = (with_gradients(way, given, gradient) for way in (PADDED, compute(PADDED)))
    for ours, theirs, truth in zip(found, by_torch, exact, strict=True):
        assert (ours - truth).norm() < 20 * max((theirs - truth).norm(), 1e-8 * truth.norm())
        assert (ours - truth).norm() < 1e-5 * truth.norm()


@pytest.fixture
def counted(monkeypatch):
    """How often convolutions went this way."""
    calls = []
    for name in ("convolve", "gradients"):
        original = getattr(winograd, name)
        monkeypatch.setattr(winograd, name, lambda *a, f=original, n=name: calls.append(n) or f(*a))
    return calls


@pytest.mark.parametrize("estimator", ["local", "weight", "flipout", "mean"])
def test_a_layer_learns_the_same_with_it_and_without(estimator, counted, monkeypatch):
    torch.manual_seed(0)
    eps = torch.randn(16, 64, 8, 8)  # `local` draws noise in the order in which outputs lie in memory
    monkeypatch.setattr("dubito.estimators.local.Local.noise", lambda self, output: eps)
    layer = dubito.BayesConv2d(64, 64, 3, padding=1, estimator=estimator, initial_std=0.1)
    x, found = torch.randn(16, 64, 8, 8), []
    for off in ((), ("winograd",)):
        torch.manual_seed(1)
        layer.zero_grad()
        given = x.clone().requires_grad_()
        with kernels.without(*off):
            output = layer(given)
            output.square().sum().backward()
        found.append([output, given.grad, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)])
    assert counted == (
        ["convolve", "convolve", "gradients", "gradients"] if estimator == "flipout" else ["convolve", "gradients"]
    )  # once by `local`: the mean, never the variance
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()


@pytest.mark.parametrize("off", [(), ("local",)])
def test_variances_of_concentrated_inputs_keep_their_relative_accuracy(off, counted):
    """One pixel a million times as bright as the others, which Winograd's sums would drown."""
    torch.manual_seed(0)
    layer = dubito.BayesConv2d(64, 64, 3, padding=1, bias=False, initial_std=0.1)
    with torch.no_grad():
        layer.weight_mean.zero_()
    x = torch.rand(16, 64, 8, 8)
    x[:, :, 0, 0] = 1e6
    twin = dubito.BayesConv2d(64, 64, 3, padding=1, bias=False, initial_std=0.1).double()
    twin.load_state_dict(layer.state_dict())
    found = []
    for one, given in ((layer, x), (twin, x.double())):
        torch.manual_seed(1)
        eps = torch.randn(16, 64, 8, 8)
        with pytest.MonkeyPatch.context() as patch, kernels.without(*off):
            patch.setattr("dubito.estimators.local.Local.noise", lambda self, output: eps.to(output.dtype))  # noqa: B023
            found.append(one(given).detach())
    assert counted == ["convolve"]
    torch.testing.assert_close(found[0].double()[..., 4:, 4:], found[1][..., 4:, 4:], rtol=1e-5, atol=0)


def test_predictions_do_without_it(counted):
    network = nn.Sequential(dubito.BayesConv2d(64, 64, 3, padding=1), nn.Flatten(), dubito.BayesLinear(64 * 64, 3))
    dubito.Predictor(network, head="softmax", samples=2)(torch.randn(64, 64, 8, 8))
    with torch.no_grad():
        network(torch.randn(64, 64, 8, 8))
    assert not counted


@pytest.mark.parametrize(
    ("convolution", "x", "weight"),
    [
        (Convolution((2, 2), ONE, ONE), (64, 64, 16, 16), (64, 64, 3, 3)),
        (Convolution(ONE, (2, 2), (2, 2)), (64, 64, 16, 16), (64, 64, 3, 3)),
        (Convolution(ONE, ONE, ONE, groups=2), (64, 64, 16, 16), (64, 32, 3, 3)),
        (Convolution(ONE, ONE, ONE, transposed=True), (64, 64, 16, 16), (64, 64, 3, 3)),
        (Convolution(ONE, (2, 2), ONE), (64, 64, 16, 16), (64, 64, 5, 5)),
        (PADDED, (64, 3, 16, 16), (64, 3, 3, 3)),
        (PADDED, (64, 64, 2, 2), (64, 64, 3, 3)),
        (PADDED, (1, 512, 4, 4), (512, 512, 3, 3)),
    ],
    ids=("stride", "dilation", "groups", "transposed", "kernel", "channels", "tiny", "one image"),
)
def test_other_convolutions_are_left_to_torch(convolution, x, weight):
    assert applies(PADDED, torch.empty(64, 64, 16, 16), torch.empty(64, 64, 3, 3))
    assert not applies(convolution, torch.empty(x), torch.empty(weight))


def test_double_precision_is_left_to_torch():
    x, weight = torch.empty(64, 64, 16, 16), torch.empty(64, 64, 3, 3)
    assert not applies(PADDED, x.double(), weight.double())


def test_second_derivatives_equal_those_of_torch():
    (x, weight, bias), _ = random_case(4, 64, 64, (16, 16), (1, 1), torch.float32)
    weight.requires_grad_()
    found = []
    for way in (compute(PADDED), PADDED):
        given = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(way(given, weight, bias).pow(3).mean(), given, create_graph=True)
        found.append(torch.autograd.grad(gradient.square().sum(), weight)[0])
    assert (found[0] - found[1]).norm() < 1e-4 * found[1].norm()
