"""Bayesian twins of torch's linear and convolutional layers.

They take the same positional arguments as their `torch.nn` twins, in the same order, and return a tensor. Every weight
has a Gaussian posterior; `layer.weight_mean` and `layer.weight_std` are its moments, whatever the parameterisation.
`layer.train()` draws with the layer's estimator, `layer.eval()` uses the mean.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack  # a dependency of torch

from dubito.errors import OptionError, ShapeError, choose, unknown
from dubito.estimators.base import Estimator, Mean, make_estimator
from dubito.kernels.linear_maps import Convolution, LinearMap, MatrixProduct
from dubito.kernels.noise import standard_normal_like
from dubito.variational.kl import kl_divergence
from dubito.variational.posterior import PAPER_STD, Parameterization, Posterior, keep
from dubito.variational.prior import Prior, make_prior

__all__ = [
    "BayesConv1d",
    "BayesConv2d",
    "BayesConv3d",
    "BayesConvTranspose1d",
    "BayesConvTranspose2d",
    "BayesConvTranspose3d",
    "BayesLayer",
    "BayesLinear",
    "BayesianOptions",
    "posteriors_kept",
]

Size = int | tuple[int, ...]


class BayesianOptions(TypedDict, total=False):
    """The keyword-only arguments of every Bayesian layer.

    - ``estimator``: ``local`` (default), ``weight``, ``flipout``, ``mean``, or an
      :class:`~dubito.estimators.base.Estimator`.
    - ``parameterization``: ``std`` (default) or ``alpha``, see :mod:`dubito.variational.posterior`.
    - ``prior``: a standard deviation, a name (``standard`` by default) or a :class:`~dubito.variational.prior.Prior`.
    - ``initial_std``: the standard deviation that every weight starts with, the paper's exp(-5) by default.
    - ``bayesian_bias``: whether the bias has a posterior (default), or is a point estimate.
    """

    estimator: str | Estimator
    parameterization: str
    prior: float | str | Prior
    initial_std: float
    bayesian_bias: bool


class BayesLayer(nn.Module, ABC):
    """A linear map whose weights have a posterior.

    The parameters are ``weight_mean`` and ``weight_rho`` (or ``weight_log_alpha``), likewise for the bias, which is
    Bayesian too unless `bayesian_bias` is False. The prior is a submodule, so it is part of the state dict.

    The keyword-only options of every Bayesian layer are those of :class:`BayesianOptions`.
    """

    weight_mean: nn.Parameter
    bias_mean: nn.Parameter | None

    def _become_bayesian(
        self,
        weight_shape: Sequence[int],
        bias_shape: Sequence[int] | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        *,
        estimator: str | Estimator = "local",
        parameterization: str = "std",
        prior: float | str | Prior = "standard",
        initial_std: float = PAPER_STD,
        bayesian_bias: bool = True,
    ) -> None:
        """Make parameters and prior; a subclass calls it once it knows its shapes."""
        self.estimator = make_estimator(estimator)
        self.forced_estimator: Estimator | None = None
        self._kept: dict[str, Posterior] | None = None
        self.parameterization = choose(Parameterization, parameterization, "parameterization")
        self.initial_std = initial_std
        self.bayesian = ("weight", "bias") if bias_shape is not None and bayesian_bias else ("weight",)
        free = self.parameterization.parameter
        shapes = {"weight": weight_shape, "bias": bias_shape}
        for name, shape in shapes.items():
            mean = None if shape is None else nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))
            self.register_parameter(f"{name}_mean", mean)
            if mean is not None and name in self.bayesian:
                self.register_parameter(
                    f"{name}_{free}", nn.Parameter(torch.empty(mean.shape, device=mean.device, dtype=mean.dtype))
                )
        self._given_prior = (prior,)  # in a tuple, which makes it no submodule
        self.reset_parameters()

    def bind_prior(self) -> None:
        """Fit the prior, as it was given, to the means as they are now."""
        (prior,) = self._given_prior
        means = {name: q.mean for name, q in self.posteriors().items()}
        self.prior: Prior = make_prior(prior).bind(means, self.fan_in)

    def reset_parameters(self) -> None:
        """Means as the `torch.nn` twin draws its weights, standard deviations at `initial_std`, the prior as given."""
        self._reset_posteriors()
        self.bind_prior()

    def _reset_posteriors(self) -> None:
        if self.weight_mean.is_meta:
            return  # no values to draw, and torch would load its compiler to find that out
        nn.init.kaiming_uniform_(self.weight_mean, a=math.sqrt(5))
        if self.bias_mean is not None:
            bound = 1 / math.sqrt(self.fan_in)
            nn.init.uniform_(self.bias_mean, -bound, bound)
        self.set_std(self.initial_std)

    def adopt(self, weight: nn.Parameter, bias: nn.Parameter | None, prior: float | str | Prior) -> None:
        """Take over these very parameters as the means (tied ones stay tied) and bind the prior to them anew."""
        self.weight_mean = weight
        self.bias_mean = bias
        self.set_std(self.initial_std)
        self._given_prior = (prior,)
        self.bind_prior()

    def tie_stds(self, known: dict[tuple[int, Parameterization], nn.Parameter]) -> None:
        """Share the free parameter of every mean that `known` has met in another layer, and add the others to it."""
        for name, q in self.posteriors().items():
            free, key = f"{name}_{self.parameterization.parameter}", (id(q.mean), self.parameterization)
            setattr(self, free, known.setdefault(key, getattr(self, free)))

    @torch.no_grad()
    def set_std(self, std: float | Tensor) -> None:
        """Give every weight this standard deviation, keeping the means."""
        for q in self.posteriors().values():
            q.free.copy_(self.parameterization.free(q.mean, std))

    @property
    def fan_in(self) -> int:
        """How many inputs each output sums over (for a transposed convolution, as torch counts it)."""
        return math.prod(self.weight_mean.shape[1:])

    def __getstate__(self) -> dict[str, Any]:
        """For copies and files, which have no part in what is in force only for now."""
        return {**self.__dict__, "forced_estimator": None, "_kept": None}

    def posteriors(self) -> dict[str, Posterior]:
        """The posterior of the weight, and of the bias if it has one."""
        if torch.compiler.is_compiling() or self._kept is None or _saves_elsewhere():
            free = self.parameterization.parameter
            return {
                name: Posterior(getattr(self, f"{name}_mean"), getattr(self, f"{name}_{free}"), self.parameterization)
                for name in self.bayesian
            }
        return self._kept

    def means_and_stds(self) -> tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]:
        """Mean and standard deviation of the weight and the bias, None for what is not there."""
        q = self.posteriors()
        return (self.weight_mean, self.bias_mean), (q["weight"].std, q["bias"].std if "bias" in q else None)

    @property
    def weight(self) -> nn.Parameter:
        """The posterior mean, for code that asks a layer's weight for its dtype, device or shape."""
        return self.weight_mean

    @property
    def bias(self) -> nn.Parameter | None:
        """The same of the bias, or None if there is none."""
        return self.bias_mean

    @property
    def weight_std(self) -> Tensor:
        """The standard deviation of every weight."""
        return self.posteriors()["weight"].std

    @property
    def bias_std(self) -> Tensor | None:
        """The standard deviation of every bias, or None if it has none."""
        q = self.posteriors().get("bias")
        return None if q is None else q.std

    def kl_divergence(self, *, samples: int | None = None) -> Tensor:
        """KL[q || p] over this layer's weights, a true sum in nats; see :func:`dubito.kl_divergence`."""
        return kl_divergence(self, samples=samples)

    def weight_noise(self) -> dict[str, Tensor]:
        """Fresh standard normal noise for each Bayesian tensor."""
        return {name: standard_normal_like(q.mean) for name, q in self.posteriors().items()}

    def draw(self, noise: dict[str, Tensor], sign: int = 1) -> tuple[Tensor, Tensor | None]:
        """Weight and bias mu + sign * sigma * noise; a bias without a posterior is as it is."""
        drawn = {name: q.draw(noise[name], sign) for name, q in self.posteriors().items()}
        return drawn["weight"], drawn.get("bias", self.bias_mean)

    def active_estimator(self) -> Estimator:
        """The estimator in force: a forced one, the layer's own in training mode, the mean otherwise."""
        if self.forced_estimator is not None:
            return self.forced_estimator
        return self.estimator if self.training else Mean()

    @abstractmethod
    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
        """The layer's linear map with these weights."""

    @abstractmethod
    def as_linear_map(self, x: Tensor, *arguments: Any) -> tuple[LinearMap, Tensor]:
        """The linear map of a batch with its gradients, and the input that it takes: `x`, padded if need be."""

    @abstractmethod
    def is_batched(self, x: Tensor) -> bool:
        """Whether the first axis of `x` is a batch."""

    @abstractmethod
    def sign_shape(self, x: Tensor) -> tuple[int, ...]:
        """The shape of one sign per example and channel of an input or output."""

    def _bayesian_repr(self) -> str:
        std = f"initial_std={self.initial_std:.4g}"
        point = "" if "bias" in self.bayesian or self.bias_mean is None else ", bayesian_bias=False"
        return f"estimator={self.estimator.name}, parameterization={self.parameterization.value}, {std}{point}"


def _saves_elsewhere() -> bool:
    """Whether what a gradient needs is not simply kept: a checkpoint computes it again, later, from the parameters."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


@contextmanager
def posteriors_kept(module: nn.Module) -> Iterator[None]:
    """Inside, the moments of all posteriors below `module` are computed once: the parameters must not change."""
    layers = [layer for layer in module.modules() if isinstance(layer, BayesLayer) and layer._kept is None]
    if torch.compiler.is_compiling() or not layers:
        yield
        return
    posteriors = [layer.posteriors() for layer in layers]
    kept = iter(keep([q for layer in posteriors for q in layer.values()]))
    try:
        for layer, names in zip(layers, posteriors, strict=True):
            layer._kept = {name: next(kept) for name in names}
        yield
    finally:
        for layer in layers:
            layer._kept = None


class BayesLinear(BayesLayer):
    """The Bayesian twin of `torch.nn.Linear`.

    >>> layer = BayesLinear(20, 30)
    >>> layer(torch.randn(128, 20)).shape
    torch.Size([128, 30])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **bayesian: Unpack[BayesianOptions],
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = _positive(in_features=in_features, out_features=out_features)
        self._become_bayesian(
            (self.out_features, self.in_features),
            (self.out_features,) if bias else None,
            device=device,
            dtype=dtype,
            **bayesian,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of shape (..., out_features) for inputs of shape (..., in_features)."""
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ShapeError(
                f"BayesLinear got an input of shape {tuple(x.shape)}, but expects (..., {self.in_features})."
            )
        return self.active_estimator()(self, x)

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
        """X W' + b."""
        return F.linear(x, weight, bias)

    def as_linear_map(self, x: Tensor, *arguments: Any) -> tuple[LinearMap, Tensor]:
        """A product of matrices."""
        return MatrixProduct(), x

    def is_batched(self, x: Tensor) -> bool:
        """Anything but a single vector is."""
        return x.dim() > 1

    def sign_shape(self, x: Tensor) -> tuple[int, ...]:
        """(N, 1, ..., features)."""
        return (*x.shape[:1], *(1,) * (x.dim() - 2), x.shape[-1]) if x.dim() > 1 else tuple(x.shape)

    def extra_repr(self) -> str:
        """The sizes and the Bayesian options."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias_mean is not None}, {self._bayesian_repr()}"


class _BayesConvNd(BayesLayer):
    """What all convolutions share: options as in torch.nn, checks and shapes."""

    spatial_dims: ClassVar[int]
    transposed: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size,
        padding: Size | str,
        dilation: Size,
        output_padding: Size,
        groups: int,
        bias: bool,
        padding_mode: str,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        bayesian: BayesianOptions,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.groups = _positive(
            in_channels=in_channels, out_channels=out_channels, groups=groups
        )
        in_channels, out_channels, groups = self.in_channels, self.out_channels, self.groups
        if in_channels % groups or out_channels % groups:
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
        self.padding: tuple[int, ...] | str = self._checked_padding(padding)
        channels = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        self._become_bayesian(
            (*channels, *self.kernel_size), (out_channels,) if bias else None, device=device, dtype=dtype, **bayesian
        )

    def _per_axis(self, name: str, value: Size, least: int) -> tuple[int, ...]:
        given = value if isinstance(value, Iterable) else (value,) * self.spatial_dims
        values = [_as_int(number) for number in given]
        whole = tuple(number for number in values if number is not None and number >= least)
        if not len(whole) == len(values) == self.spatial_dims:
            raise OptionError(
                f"{name} is {value!r}, but must be a number or {self.spatial_dims} numbers, each at least {least}."
            )
        return whole

    def _checked_padding(self, padding: Size | str) -> tuple[int, ...] | str:
        if not isinstance(padding, str):
            return self._per_axis("padding", padding, 0)
        if self.transposed or padding not in ("same", "valid"):
            names = () if self.transposed else ("same", "valid")
            raise OptionError(unknown("padding", padding, names) if names else f"padding is {padding!r}, not a number.")
        if padding == "same" and any(stride != 1 for stride in self.stride):
            raise OptionError(f"padding='same' needs stride 1, but stride is {self.stride}.")
        return padding

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output for an input (N, C, ...) or (C, ...)."""
        self._require_input(x)
        return self.active_estimator()(self, x)

    def _require_input(self, x: Tensor) -> None:
        d = self.spatial_dims
        if x.dim() not in (d + 1, d + 2) or x.shape[-d - 1] != self.in_channels:
            raise ShapeError(
                f"{type(self).__name__} got an input of shape {tuple(x.shape)}, but expects {self.in_channels} "
                f"channels and {d} spatial axes: (N, {self.in_channels}{', size' * d})."
            )

    def is_batched(self, x: Tensor) -> bool:
        """Whether there is an axis before the channels."""
        return x.dim() == self.spatial_dims + 2

    def sign_shape(self, x: Tensor) -> tuple[int, ...]:
        """(N, channels, 1, ..., 1)."""
        return (*x.shape[: -self.spatial_dims], *(1,) * self.spatial_dims)

    def extra_repr(self) -> str:
        """The options that differ from torch's defaults, and the Bayesian ones."""
        defaults = {"padding": 0, "dilation": 1, "output_padding": 0, "groups": 1, "padding_mode": "zeros"}
        options = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        for name, default in defaults.items():
            value = getattr(self, name)
            if value not in (default, (default,) * self.spatial_dims):
                options.append(f"{name}={value!r}")
        if self.bias_mean is None:
            options.append("bias=False")
        return ", ".join([*options, self._bayesian_repr()])


class _BayesConv(_BayesConvNd):
    _convolve: ClassVar[Callable[..., Tensor]]

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
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            0,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
            bayesian,
        )

    def _require_input(self, x: Tensor) -> None:
        super()._require_input(x)
        amounts = self._pad_amounts()[::-1]
        needed = tuple(
            dilation * (kernel - 1) + 1 - sum(amounts[2 * axis : 2 * axis + 2])
            for axis, (dilation, kernel) in enumerate(zip(self.dilation, self.kernel_size, strict=True))
        )
        size = tuple(x.shape[-self.spatial_dims :])
        if any(s < n for s, n in zip(size, needed, strict=True)):
            raise ShapeError(
                f"{type(self).__name__} got an input of spatial size {size}, but its kernel of size {self.kernel_size} "
                f"needs at least {needed}."
            )

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
        """The convolution; other padding modes than zeros pad first."""
        x, padding = self._padded(x)
        convolve = type(self)._convolve
        return convolve(x, weight, bias, self.stride, padding, self.dilation, self.groups)

    def as_linear_map(self, x: Tensor, *arguments: Any) -> tuple[LinearMap, Tensor]:
        """The convolution, after padding that it cannot do itself."""
        x, padding = self._padded(x)
        none = (0,) * self.spatial_dims
        return Convolution(self.stride, padding, self.dilation, False, none, self.groups), x

    def _padded(self, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """The input, and the padding by zeros that is left to the convolution: the same on both sides of an axis."""
        amounts = self._pad_amounts()
        if self.padding_mode == "zeros" and amounts[::2] == amounts[1::2]:
            return x, tuple(amounts[::-2])
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return F.pad(x, amounts, mode=mode), (0,) * self.spatial_dims

    def _pad_amounts(self) -> list[int]:
        """Before and after, last axis first, as `F.pad` wants them."""
        amounts: list[int] = []
        for axis in reversed(range(self.spatial_dims)):
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

    spatial_dims = 1
    _convolve = staticmethod(F.conv1d)


class BayesConv2d(_BayesConv):
    """The Bayesian twin of `torch.nn.Conv2d`.

    >>> BayesConv2d(3, 8, 3, padding="same", padding_mode="circular")(torch.randn(4, 3, 32, 32)).shape
    torch.Size([4, 8, 32, 32])
    """

    spatial_dims = 2
    _convolve = staticmethod(F.conv2d)


class BayesConv3d(_BayesConv):
    """The Bayesian twin of `torch.nn.Conv3d`.

    >>> BayesConv3d(2, 4, 3)(torch.randn(1, 2, 8, 8, 8)).shape
    torch.Size([1, 4, 6, 6, 6])
    """

    spatial_dims = 3
    _convolve = staticmethod(F.conv3d)


class _BayesConvTranspose(_BayesConvNd):
    transposed = True
    _convolve: ClassVar[Callable[..., Tensor]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **bayesian: Unpack[BayesianOptions],
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            output_padding,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
            bayesian,
        )

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """The layer's output, of that spatial size if given."""
        self._require_input(x)
        return self.active_estimator()(self, x, self._output_padding_for(x, output_size))

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
        """The transposed convolution."""
        output_padding = arguments[0] if arguments else self.output_padding
        convolve = type(self)._convolve
        return convolve(x, weight, bias, self.stride, self.padding, output_padding, self.groups, self.dilation)

    def as_linear_map(self, x: Tensor, *arguments: Any) -> tuple[LinearMap, Tensor]:
        """The transposed convolution."""
        assert not isinstance(self.padding, str)
        output_padding = arguments[0] if arguments else self.output_padding
        return Convolution(self.stride, self.padding, self.dilation, True, output_padding, self.groups), x

    def _output_padding_for(self, x: Tensor, output_size: Sequence[int] | None) -> tuple[int, ...]:
        """The extra rows that make the output have this size; several sizes have the same input."""
        if output_size is None:
            return self.output_padding
        wanted = tuple(output_size)[-self.spatial_dims :]
        paddings = self._per_axis("padding", self.padding, 0)  # type: ignore[arg-type]
        smallest = tuple(
            (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1
            for size, stride, padding, dilation, kernel in zip(
                x.shape[-self.spatial_dims :], self.stride, paddings, self.dilation, self.kernel_size, strict=True
            )
        )
        extra = tuple(w - s for w, s in zip(wanted, smallest, strict=False))
        if len(wanted) != self.spatial_dims or any(
            not 0 <= e < max(s, d) for e, s, d in zip(extra, self.stride, self.dilation, strict=True)
        ):
            largest = tuple(
                s + max(stride, d) - 1 for s, stride, d in zip(smallest, self.stride, self.dilation, strict=True)
            )
            raise ShapeError(f"output_size is {tuple(output_size)}, but must lie between {smallest} and {largest}.")
        return extra


class BayesConvTranspose1d(_BayesConvTranspose):
    """The Bayesian twin of `torch.nn.ConvTranspose1d`.

    >>> BayesConvTranspose1d(2, 3, 3, stride=2)(torch.randn(1, 2, 5)).shape
    torch.Size([1, 3, 11])
    """

    spatial_dims = 1
    _convolve = staticmethod(F.conv_transpose1d)


class BayesConvTranspose2d(_BayesConvTranspose):
    """The Bayesian twin of `torch.nn.ConvTranspose2d`.

    >>> BayesConvTranspose2d(2, 3, 3, stride=2)(torch.randn(1, 2, 5, 5), output_size=(12, 12)).shape
    torch.Size([1, 3, 12, 12])
    """

    spatial_dims = 2
    _convolve = staticmethod(F.conv_transpose2d)


class BayesConvTranspose3d(_BayesConvTranspose):
    """The Bayesian twin of `torch.nn.ConvTranspose3d`.

    >>> BayesConvTranspose3d(2, 3, 3)(torch.randn(1, 2, 5, 5, 5)).shape
    torch.Size([1, 3, 7, 7, 7])
    """

    spatial_dims = 3
    _convolve = staticmethod(F.conv_transpose3d)


def _positive(**numbers: int) -> tuple[int, ...]:
    values = {name: _as_int(value) for name, value in numbers.items()}
    for name, value in values.items():
        if value is None or value < 1:
            raise OptionError(f"{name} is {numbers[name]!r}, but must be a whole number of at least 1.")
    return tuple(value for value in values.values() if value is not None)


def _as_int(value: Any) -> int | None:
    """A whole number, also one of NumPy's, as an int; None for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        return None
