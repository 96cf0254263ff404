"""Convolutions on small maps: the gradients are those of the plain convolution, whatever its options."""

import pytest
import torch

import dubito
from dubito import kernels
from dubito.kernels.small_maps import compute
from dubito.linear_map import Convolution

ONE = (1, 1)
CONVOLUTIONS = {
    "3x3 on 2x2": (Convolution(ONE, ONE, ONE), (2, 2), (3, 3)),
    "3x3 on 4x2": (Convolution(ONE, ONE, ONE), (4, 2), (3, 3)),
    "5x5 on 4x4": (Convolution(ONE, (2, 2), ONE), (4, 4), (5, 5)),
    "5x3 on 1x2, some cells on padding alone": (Convolution(ONE, (2, 1), ONE), (1, 2), (5, 3)),
    "stride 2": (Convolution((2, 2), ONE, ONE), (8, 7), (3, 3)),
    "stride 3 and 1, padding 0 and 2": (Convolution((3, 1), (0, 2), ONE), (8, 3), (2, 3)),
    "dilation": (Convolution(ONE, (2, 2), (2, 2)), (4, 4), (3, 3)),
    "a product": (Convolution((2, 2), (0, 0), ONE), (4, 4), (1, 1)),
}


def gradients(convolution, x, weight, bias, create_graph=False):
    output = convolution(x, weight, bias)
    scale = torch.linspace(-1, 1, output.numel(), dtype=x.dtype).view_as(output)
    return output, torch.autograd.grad((output * output * scale).sum(), (x, weight, bias), create_graph=create_graph)


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_output_and_gradients_equal_the_plain_ones(name, dtype, tolerance, layout):
    plain, size, kernel = CONVOLUTIONS[name]
    torch.manual_seed(0)
    x = torch.randn(3, 5, *size, dtype=dtype).contiguous(memory_format=layout).requires_grad_()
    weight, bias = (torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in ((4, 5, *kernel), (4,)))
    output, found = gradients(compute(plain), x, weight, bias)
    expected_output, expected = gradients(plain, x, weight, bias)
    assert "Convolve" in type(output.grad_fn).__name__
    torch.testing.assert_close(output, expected_output)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))


def test_gradients_and_second_derivatives_agree_with_finite_differences():
    plain, size, kernel = CONVOLUTIONS["3x3 on 2x2"]
    torch.manual_seed(0)
    shapes = ((2, 2, *size), (3, 2, *kernel), (3,))
    given = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(compute(plain), given)
    assert torch.autograd.gradgradcheck(compute(plain), given)


def test_only_the_gradients_that_are_needed_are_made():
    plain, size, kernel = CONVOLUTIONS["3x3 on 2x2"]
    x, weight, bias = torch.randn(2, 2, *size), torch.randn(3, 2, *kernel), torch.randn(3)
    for given in (x, weight, bias):
        given.requires_grad_()
        compute(plain)(x, weight, bias).sum().backward()
        assert [tensor.grad is not None for tensor in (x, weight, bias)] == [t is given for t in (x, weight, bias)]
        given.requires_grad_(False)
        given.grad = None


@pytest.mark.parametrize("estimator", ["local", "weight"])
def test_several_gradients_at_once_are_those_one_by_one(estimator):
    layer = dubito.BayesConv2d(32, 32, 3, padding=1, estimator=estimator)
    output = layer(torch.randn(2, 32, 2, 2)).square().sum()
    alone = torch.autograd.grad(output, layer.parameters(), retain_graph=True)
    factors = torch.tensor([1.0, -2.0])
    many = torch.autograd.grad(output, layer.parameters(), factors, is_grads_batched=True)
    for one, both in zip(alone, many, strict=True):
        torch.testing.assert_close(both, torch.stack([one, -2 * one]), rtol=1e-4, atol=1e-3)


def test_it_is_for_few_positions_of_many_channels_alone():
    plain, weight = Convolution(ONE, ONE, ONE), torch.empty(64, 128, 3, 3)

    def is_found(convolution, x):
        return kernels.find("small_maps", x, weight, convolution=convolution) is compute

    assert is_found(plain, torch.empty(1, 128, 2, 4))
    assert not is_found(plain, torch.empty(1, 128, 3, 3))  # 9 positions would need 72 channels
    assert is_found(Convolution((2, 2), ONE, ONE), torch.empty(1, 128, 4, 4))
    assert not is_found(plain, torch.empty(128, 2, 2))
    assert not is_found(plain, torch.empty(1, 128, 2, 2, device="meta"))
    assert not is_found(Convolution(ONE, ONE, ONE, groups=2), torch.empty(1, 256, 2, 2))
    with torch.autocast("cpu"):
        assert not is_found(plain, torch.empty(1, 128, 2, 2))


@pytest.mark.parametrize("estimator", ["local", "weight", "flipout"])
def test_a_layer_learns_the_same_with_it_and_without(estimator):
    torch.manual_seed(0)
    layer = dubito.BayesConv2d(32, 40, 3, padding=1, estimator=estimator, initial_std=0.1, dtype=torch.float64)
    x, found = torch.randn(6, 32, 2, 2, dtype=torch.float64), []
    for off in ((), ("small_maps",)):
        torch.manual_seed(1)
        layer.zero_grad()
        with kernels.without(*off):
            linear_map, _ = layer.linear_map(x)
            assert (type(linear_map) is Convolution) == bool(off)
            layer(x).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in layer.parameters()])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)
