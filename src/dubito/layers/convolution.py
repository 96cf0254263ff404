"""The Bayesian twins of torch's convolutions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self, Unpack

from dubito.errors import OptionError, ShapeError, unknown
from dubito.layers.base import BayesianOptions, BayesLayer, as_int, positive
from dubito.linear_map import Convolution, LinearMap

Size = int | tuple[int, ...]
SETTINGS = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")


class BayesConvNd(BayesLayer):
    """What all convolutions share: options as in torch.nn, checks and shapes."""

    axes: ClassVar[int]
    transposed: ClassVar[bool] = False
    plain_type: ClassVar[type[nn.Module]]
    padding: tuple[int, ...] | str
    output_padding: tuple[int, ...]

    def _check_options(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size,
        padding: Size | str,
        dilation: Size,
        output_padding: Size,
        groups: int,
        padding_mode: str,
    ) -> None:
        """Keep the options, each in its whole form; refuse those that make no sense."""
        self.in_channels, self.out_channels, self.groups = positive(
            in_channels=in_channels, out_channels=out_channels, groups=groups
        )
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise OptionError(
                f"groups is {groups}, but must divide both in_channels={in_channels} and out_channels={out_channels}."
            )
        self.kernel_size = self._per_axis("kernel_size", kernel_size, 1)
        self.stride = self._per_axis("stride", stride, 1)
        self.dilation = self._per_axis("dilation", dilation, 1)
        self.output_padding = self._per_axis("output_padding", output_padding, 0)
        modes = ("zeros",) if self.transposed else ("zeros", "reflect", "replicate", "circular")
        if padding_mode not in modes:
            raise OptionError(unknown("padding_mode", padding_mode, modes))
        self.padding_mode = padding_mode
        self.padding = self._checked_padding(padding)

    @property
    def _shapes(self) -> tuple[tuple[int, ...], tuple[int]]:
        """Of weight and bias."""
        inputs, outputs = self.in_channels, self.out_channels
        channels = (inputs, outputs // self.groups) if self.transposed else (outputs, inputs // self.groups)
        return (*channels, *self.kernel_size), (outputs,)

    def _make(
        self,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        bayesian: BayesianOptions,
    ) -> None:
        weight_shape, bias_shape = self._shapes
        parameters = self._fresh_parameters(weight_shape, bias_shape if bias else None, device, dtype)
        self._become_bayesian(*parameters, **bayesian)

    @classmethod
    def around(cls, plain: Any, **bayesian: Unpack[BayesianOptions]) -> Self:
        """The twin of a layer, with that layer's own parameters as its means."""
        twin = cls.__new__(cls)
        nn.Module.__init__(twin)
        for name in (*SETTINGS, "output_padding"):
            setattr(twin, name, getattr(plain, name))
        twin._become_bayesian(plain.weight, plain.bias, **bayesian)
        return twin

    def plain(self) -> nn.Module:
        """A layer of `torch.nn` with the same options, on no device."""
        options = {name: getattr(self, name) for name in SETTINGS}
        if self.transposed:
            options["output_padding"] = self.output_padding
        return self.plain_type(**options, bias=self.bias_mean is not None, device="meta")

    def _per_axis(self, name: str, value: Size, least: int) -> tuple[int, ...]:
        given = value if isinstance(value, Iterable) else (value,) * self.axes
        values = [as_int(number) for number in given]
        whole = tuple(number for number in values if number is not None and number >= least)
        if not len(whole) == len(values) == self.axes:
            raise OptionError(
                f"{name} is {value!r}, but must be a number or {self.axes} numbers, each at least {least}."
            )
        return whole

    def _checked_padding(self, padding: Size | str) -> tuple[int, ...] | str:
        if not isinstance(padding, str):
            return self._per_axis("padding", padding, 0)
        if self.transposed:
            raise OptionError(f"padding is {padding!r}, not a number.")
        if padding not in ("same", "valid"):
            raise OptionError(unknown("padding", padding, ("same", "valid")))
        if padding == "same" and any(stride != 1 for stride in self.stride):
            raise OptionError(f"padding='same' needs stride 1, but stride is {self.stride}.")
        return padding

    def _require_channels(self, x: Tensor) -> None:
        d = self.axes
        if x.dim() not in (d + 1, d + 2) or x.shape[-d - 1] != self.in_channels:
            raise ShapeError(
                f"{type(self).__name__} got an input of shape {tuple(x.shape)}, but expects {self.in_channels} "
                f"channels and {d} spatial axes: (N, {self.in_channels}{', size' * d})."
            )

    def extra_repr(self) -> str:
        """The options that differ from torch's defaults, and the Bayesian ones."""
        defaults = {"padding": 0, "dilation": 1, "output_padding": 0, "groups": 1, "padding_mode": "zeros"}
        options = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        for name, default in defaults.items():
            value = getattr(self, name)
            if value not in (default, (default,) * self.axes):
                options.append(f"{name}={value!r}")
        if self.bias_mean is None:
            options.append("bias=False")
        return ", ".join([*options, self._bayesian_repr()])


class _BayesConv(BayesConvNd):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **bayesian: Unpack[BayesianOptions],
    ) -> None:
        super().__init__()
        self._check_options(in_channels, out_channels, kernel_size, stride, padding, dilation, 0, groups, padding_mode)
        self._make(bias, device, dtype, bayesian)

    def linear_map(self, x: Tensor) -> tuple[LinearMap, Tensor]:
        """The convolution, after padding that it cannot do itself."""
        self._require_channels(x)
        amounts = self._pad_amounts()
        self._require_size(x, amounts)
        padding = (0,) * self.axes
        if self.padding_mode == "zeros" and amounts[::2] == amounts[1::2]:
            padding = tuple(amounts[::-2])
        else:
            x = F.pad(x, amounts, mode="constant" if self.padding_mode == "zeros" else self.padding_mode)
        return Convolution(self.stride, padding, self.dilation, self.groups), x

    def _require_size(self, x: Tensor, amounts: list[int]) -> None:
        sides = amounts[::-1]
        needed = tuple(
            dilation * (kernel - 1) + 1 - sum(sides[2 * axis : 2 * axis + 2])
            for axis, (dilation, kernel) in enumerate(zip(self.dilation, self.kernel_size, strict=True))
        )
        size = tuple(x.shape[-self.axes :])
        if any(s < n for s, n in zip(size, needed, strict=True)):
            raise ShapeError(
                f"{type(self).__name__} got an input of spatial size {size}, but its kernel of size {self.kernel_size} "
                f"needs at least {needed}."
            )

    def _pad_amounts(self) -> list[int]:
        """Before and after, last axis first, as `F.pad` wants them."""
        amounts: list[int] = []
        for axis in reversed(range(self.axes)):
            if self.padding == "same":
                total = self.dilation[axis] * (self.kernel_size[axis] - 1)
                amounts += [total // 2, total - total // 2]
            else:
                amounts += [0, 0] if isinstance(self.padding, str) else [self.padding[axis]] * 2
        return amounts


class BayesConv1d(_BayesConv):
    """The Bayesian twin of `torch.nn.Conv1d`.

    >>> BayesConv1d(16, 33, 3, stride=2)(torch.randn(20, 16, 50)).shape
    torch.Size([20, 33, 24])
    """

    axes = 1
    plain_type = nn.Conv1d


class BayesConv2d(_BayesConv):
    """The Bayesian twin of `torch.nn.Conv2d`.

    >>> BayesConv2d(3, 6, 5, padding=2)(torch.randn(8, 3, 32, 32)).shape
    torch.Size([8, 6, 32, 32])
    """

    axes = 2
    plain_type = nn.Conv2d


class BayesConv3d(_BayesConv):
    """The Bayesian twin of `torch.nn.Conv3d`.

    >>> BayesConv3d(2, 4, 3)(torch.randn(1, 2, 8, 8, 8)).shape
    torch.Size([1, 4, 6, 6, 6])
    """

    axes = 3
    plain_type = nn.Conv3d
