"""Convolutions as matrices, against torch's own."""

import pytest
import torch
import torch.nn.functional as F

from dubito.kernels.linear_maps import FEW, MANY, WIDE, Convolution
from dubito.kernels.windows import Window

WINDOWS = [
    Window((2, 2), (2, 2), (3, 3), (1, 1), (1, 1), (1, 1)),
    Window((3, 4), (2, 3), (5, 5), (2, 2), (2, 3), (1, 1)),
    Window((6, 7), (3, 3), (3, 3), (2, 2), (1, 0), (1, 1)),
    Window((5, 6), (3, 4), (2, 2), (2, 1), (1, 0), (2, 2)),
]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_the_matrix_of_a_convolution_and_its_transpose(window):
    weight, x = randn(4, 3, *window.kernel), randn(5, 3, *window.input, seed=1)
    expected = F.conv2d(x, weight, None, window.stride, window.padding, window.dilation)
    assert tuple(expected.shape[2:]) == window.output
    assert Window.over(window.input, window.kernel, window.stride, window.padding, window.dilation) == window
    matrix = window.unroll(weight)
    torch.testing.assert_close((x.movedim(1, -1).flatten(1) @ matrix.T).view_as(expected), expected)
    rows = randn(2, 3, 4, *window.output, seed=2)
    back = window.transpose(rows, weight).movedim(2, -1).flatten(2)
    torch.testing.assert_close(back, rows.flatten(2) @ matrix)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_cells_of_the_kernel_lead_where_the_matrix_says(window):
    """A kernel of one cell gives a matrix with ones exactly at the positions that the cell leads to."""
    cells = torch.eye(len(window.reached()), dtype=torch.float64)
    for kernel, (outputs, inputs) in zip(cells, window.reached(), strict=True):
        expected = torch.zeros_like(window.unroll(kernel.view(1, 1, *window.kernel)))
        expected[outputs, inputs] = 1
        assert torch.equal(window.unroll(kernel.view(1, 1, *window.kernel)), expected)


@pytest.mark.parametrize("images", [FEW - 1, FEW, MANY])
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 3), (4, 1), (4, 4)])
@pytest.mark.parametrize("kernel", [(3, 3), (1, 1), (2, 3)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 1)])
def test_convolutions_on_tiny_maps_are_torch_s(images, size, kernel, stride):
    assert_torch_s(randn(images, 3, *size), randn(5, 3, *kernel, seed=1), stride, (1, 1))


@pytest.mark.parametrize("images", [FEW - 1, FEW, MANY])
@pytest.mark.parametrize(("size", "kernel"), [((4, 4), (5, 5)), ((4, 3), (5, 5)), ((4, 4), (7, 7))])
def test_wide_convolutions_that_lie_mostly_on_padding_are_torch_s(images, size, kernel):
    padding = (kernel[0] // 2, kernel[1] // 2)
    assert_torch_s(randn(images, WIDE, *size), randn(WIDE + 1, WIDE, *kernel, seed=1), (1, 1), padding)


def assert_torch_s(x, weight, stride, padding):
    """Outputs and all three gradients."""
    convolution, bias = Convolution(stride, padding, (1, 1), False, (0, 0), 1), randn(len(weight), seed=2)
    given = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    expected = F.conv2d(*given, stride=stride, padding=padding)
    torch.testing.assert_close(convolution(x, weight, bias), expected.detach())
    assert convolution(x, weight, bias).is_contiguous()
    gradient = randn(*expected.shape, seed=3)
    expected.backward(gradient)
    found = convolution.gradients(gradient, x, weight, (True, True, True))
    for tensor, own in zip(given, found, strict=True):
        torch.testing.assert_close(own, tensor.grad)
        assert own.is_contiguous()
    assert convolution.gradients(gradient, x, weight, (False, False, False)) == (None, None, None)


@pytest.mark.parametrize("images", [FEW - 1, FEW, MANY])
def test_weights_arranged_for_tiny_maps_give_the_same(images):
    """With the channels last, which is the layout of the gradient then too; other weights stay as they are."""
    convolution = Convolution((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    x, weight, bias = randn(images, 3, 2, 2), randn(5, 3, 3, 3, seed=1), randn(5, seed=2)
    arranged = convolution.arranged(x, weight)
    assert arranged.is_contiguous(memory_format=torch.channels_last)
    assert convolution.arranged(randn(images, 3, 8, 8), weight) is weight
    torch.testing.assert_close(convolution(x, arranged, bias), convolution(x, weight, bias))
    gradient = randn(images, 5, 2, 2, seed=3)
    found = convolution.gradients(gradient, x, arranged, (True, True, True))
    for own, expected in zip(found, convolution.gradients(gradient, x, weight, (True, True, True)), strict=True):
        torch.testing.assert_close(own, expected)
    if images >= FEW:
        assert found[1].stride() == arranged.stride()


def test_only_tiny_maps_of_many_images_on_a_cpu_are_computed_as_matrices(monkeypatch):
    """Counts how often the rows of a kernel are asked for."""
    asked, rows = [], Window.rows
    monkeypatch.setattr(Window, "rows", lambda self: asked.append(self) or rows(self))
    by_rows = [(MANY, 3, 2, 3), (MANY, WIDE, 4, 5), (MANY, WIDE, 4, 7)]  # images, channels, size, kernel
    not_so = [(MANY - 1, 3, 2, 3), (MANY, 3, 3, 3), (MANY, WIDE - 1, 4, 5), (MANY, WIDE, 4, 3), (MANY, WIDE, 5, 5)]
    for images, channels, size, kernel in by_rows + not_so:
        convolution = Convolution((1, 1), (kernel // 2, kernel // 2), (1, 1), False, (0, 0), 1)
        convolution(randn(images, channels, size, size), randn(channels, channels, kernel, kernel), None)
    assert [(window.input[0], window.kernel[0]) for window in asked] == [(2, 3), (4, 5), (4, 7)]
