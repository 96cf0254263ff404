"""The linear maps of layers with their gradients, for autograd functions that are written by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from dubito.kernels import winograd
from dubito.kernels.autograd import differentiable_gradients, not_a_view
from dubito.kernels.windows import Window

__all__ = ["Convolution", "LinearMap", "MatrixProduct", "mapped"]

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


class LinearMap(Protocol):
    """A function of (input, weight, bias) that is linear in the input, and its gradients."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output."""

    def arranged(self, x: Tensor, weight: Tensor) -> Tensor:
        """The weight, in the memory layout that is fastest for such inputs."""

    def gradients(self, gradient: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool, bool]) -> Gradients:
        """Gradients of input, weight and bias, each if needed, from that of the output."""


@dataclass(frozen=True)
class MatrixProduct:
    """x W' + b."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output."""
        return linear(x, weight, bias)

    def arranged(self, x: Tensor, weight: Tensor) -> Tensor:
        """As it is."""
        return weight

    def gradients(self, gradient: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool, bool]) -> Gradients:
        """Three products."""
        rows = gradient.reshape(-1, gradient.shape[-1])
        return (
            gradient @ weight if needs[0] else None,
            rows.t() @ x.reshape(-1, x.shape[-1]) if needs[1] else None,
            rows.sum(0) if needs[2] else None,
        )


@dataclass(frozen=True)
class Convolution:
    """Any convolution of torch, transposed ones included, on a batch."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output."""
        window = self._tiny(x, weight)
        if window is not None and _by_rows(window, x, weight):
            return _output(window, x, weight, bias)
        if self._by_winograd(x, weight) and not torch.is_grad_enabled():
            return winograd.convolve(x, weight, bias, self.padding)
        return torch.convolution(
            x,
            weight,
            bias,
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding,
            self.groups,
        )

    def arranged(self, x: Tensor, weight: Tensor) -> Tensor:
        """For tiny maps with the channels last, otherwise as it is."""
        window = self._tiny(x, weight)
        dense = window is not None and window.is_dense
        return weight.contiguous(memory_format=torch.channels_last) if dense else weight

    def gradients(self, gradient: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool, bool]) -> Gradients:
        """torch's own, but for tiny maps and small kernels; on tiny maps a weight's has its memory layout."""
        if self._by_winograd(x, weight):
            of_x, of_weight = winograd.gradients(gradient, x, weight, self.padding, needs[:2])
            return of_x, of_weight, gradient.sum((0, 2, 3)) if needs[2] else None
        window = self._tiny(x, weight)
        if window is not None and len(x) < FEW:
            window = None
        dense = window is not None and _by_rows(window, x, weight)
        of_x, of_weight, of_bias = torch.ops.aten.convolution_backward(
            gradient,
            x,
            weight,
            [gradient.shape[1]],
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding,
            self.groups,
            # oneDNN has a bias's only with the weight's
            [needs[0] and not dense, needs[1] and window is None, needs[2] and window is None],
        )
        if window is not None:
            of_bias = gradient.sum((0, 2, 3)) if needs[2] else None
            of_weight = _weight_gradient(window, gradient, x, weight) if needs[1] else None
            if dense and needs[0]:
                of_x = _input_gradient(window, gradient, x, weight)
        # A gradient that was not asked for may come all the same, of another shape.
        return of_x if needs[0] else None, of_weight if needs[1] else None, of_bias if needs[2] else None

    def _tiny(self, x: Tensor, weight: Tensor) -> Window | None:
        """The window, if input and output have so few positions that products of matrices are faster."""
        window = self._window(x, weight)
        if window is None or window.pairs > SMALL:
            return None
        wide = min(weight.shape[:2]) >= WIDE
        return window if window.pairs <= TINY or (wide and window.is_dense and window.is_mostly_padding) else None

    def _by_winograd(self, x: Tensor, weight: Tensor) -> bool:
        """Whether fewer multiplications pay; not in double precision, which is there for its small errors."""
        window = self._window(x, weight)
        if window is None or x.dtype is not torch.float32:
            return False
        small = window.kernel == (3, 3) and window.stride == window.dilation == (1, 1)
        return small and winograd.pays(len(x), weight.shape[:2], window.output)

    def _window(self, x: Tensor, weight: Tensor) -> Window | None:
        """The window of an ordinary convolution of images on the CPU."""
        if self.transposed or self.groups > 1 or x.dim() != 4 or x.device.type != "cpu":
            return None
        return Window.over(tuple(x.shape[2:]), tuple(weight.shape[2:]), self.stride, self.padding, self.dilation)


def mapped(linear_map: LinearMap, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The output of a linear map, with its own gradients."""
    if not torch.is_grad_enabled():
        return linear_map(x, weight, bias)
    result: Tensor = _Mapped.apply(linear_map, x, weight, bias)
    return result


class _Mapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, linear_map: LinearMap, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.linear_map = linear_map
        ctx.save_for_backward(x, weight, bias)
        return not_a_view(linear_map(x, weight, bias))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight, bias = ctx.saved_tensors
        needs = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # a second derivative is wanted
            return (None, *differentiable_gradients(ctx.linear_map, (x, weight, bias), needs, gradients[0]))
        return (None, *ctx.linear_map.gradients(gradients[0], x, weight, needs))


TINY, SMALL = 16, 256
"""Pairs of an output's and an input's position, up to which a map counts as tiny: 2x2 to 2x2, always, and 4x4 to 4x4
with many channels if the kernel lies mostly on padding. Libraries multiply that too."""
WIDE = 64
"""Channels from which on many small products of matrices pay."""
FEW, MANY = 32, 64
"""Images from which on it pays to compute a weight's gradient by cells of the kernel, and the rest by its rows."""


def _by_rows(window: Window, x: Tensor, weight: Tensor) -> bool:
    """Whether products with the kernel's rows pay: for fewer images already if these need not be copied first."""
    return window.is_dense and len(x) >= (MANY if weight.is_contiguous() else FEW)


def _output(window: Window, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution: for each position of the output a product with each row of the kernel that lies on the input."""
    channels, rows = x.shape[1], _channels_last(weight)
    columns = _channels_last(x)
    shape = (math.prod(window.output), len(x), weight.shape[0])
    outputs = x.new_zeros(shape) if bias is None else bias.expand(shape).clone()
    for position, source, cells in window.rows():
        here, by = (slice(channels * part.start, channels * part.stop) for part in (source, cells))
        outputs[position].addmm_(columns[:, here], rows[:, by].t())
    return outputs.permute(1, 2, 0).contiguous().view(len(x), weight.shape[0], *window.output)


def _input_gradient(window: Window, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The same products backwards."""
    channels, rows = x.shape[1], _channels_last(weight)
    outputs = gradient.flatten(2).permute(2, 0, 1).contiguous()  # (positions, N, out)
    columns = x.new_zeros(len(x), math.prod(window.input) * channels)
    for position, source, cells in window.rows():
        here, by = (slice(channels * part.start, channels * part.stop) for part in (source, cells))
        columns[:, here].addmm_(outputs[position], rows[:, by])
    return columns.view(len(x), -1, channels).mT.contiguous().view(x.shape)


def _channels_last(x: Tensor) -> Tensor:
    """(N, positions * channels)."""
    return x.flatten(2).mT.reshape(len(x), -1)


def _weight_gradient(window: Window, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of a weight: a product of matrices for each cell of the kernel."""
    size, channels, *kernel = weight.shape
    rows = gradient.flatten(2).permute(1, 2, 0).contiguous()  # (out, positions, N)
    columns = x.flatten(2).permute(2, 0, 1).contiguous()  # (positions, N, in)
    cells = x.new_empty(size, math.prod(kernel), channels)
    for cell, (outputs, inputs) in enumerate(window.reached()):
        left = rows.index_select(1, outputs).view(size, len(outputs) * len(x))
        torch.mm(left, columns.index_select(0, inputs).view(-1, channels), out=cells[:, cell])
    found = cells.view(size, *kernel, channels).permute(0, 3, 1, 2)
    return found if weight.is_contiguous(memory_format=torch.channels_last) else found.contiguous()
