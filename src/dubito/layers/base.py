"""What all Bayesian layers share: posteriors of weight and bias, an estimator, and which estimator is in force.

`layer.train()` draws with the layer's estimator, `layer.eval()` uses the mean. `layer.weight_mean` and
`layer.weight_std` are the moments of the weight, whatever the family of its posterior.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from dubito.errors import OptionError
from dubito.estimators import Estimator, Mean, Weight, make_estimator
from dubito.linear_map import LinearMap
from dubito.variational.families import family
from dubito.variational.kl import kl_divergence
from dubito.variational.posterior import PAPER_STD, Posterior
from dubito.variational.prior import Prior

_MEAN = Mean()


class DrawingModule(nn.Module):
    """A module with posteriors and an estimator; what all modules that draw have in common.

    Attributes:
        estimator: in force in training mode; evaluation mode uses the mean.
        forced_estimator: in force in both modes while it is set.
    """

    estimator: Estimator
    forced_estimator: Estimator | None = None

    def active_estimator(self) -> Estimator:
        """The estimator in force."""
        if self.forced_estimator is not None:
            return self.forced_estimator
        return self.estimator if self.training else _MEAN

    def __getstate__(self) -> dict[str, object]:
        """For copies and files, which have no part in what is in force only for now."""
        return {name: value for name, value in self.__dict__.items() if name != "forced_estimator"}


class BayesianOptions(TypedDict, total=False):
    """The keyword-only arguments of every Bayesian layer.

    - ``estimator``: ``local`` (default), ``weight``, ``flipout``, ``mean``, or an
      :class:`~dubito.estimators.Estimator`. Posteriors whose weights depend on each other are drawn by ``weight``.
    - ``posterior``: ``std`` (default), ``alpha`` or ``low_rank``, see :mod:`dubito.variational.families`.
    - ``prior``: a standard deviation, a name (``standard`` by default) or a :class:`~dubito.variational.prior.Prior`.
    - ``initial_std``: the standard deviation that every weight starts with, the paper's exp(-5) by default.
    - ``bayesian_bias``: whether the bias has a posterior (default), or is a point estimate.
    """

    estimator: str | Estimator
    posterior: str | type[Posterior]
    prior: float | str | Prior
    initial_std: float
    bayesian_bias: bool


class BayesLayer(DrawingModule, ABC):
    """A linear map whose weights have a posterior.

    `layer.posteriors["weight"]` is the posterior of the weight, and so is that of the bias unless `bayesian_bias` is
    False; each has its parameters and its prior inside, so all is part of the state dict.
    """

    posteriors: nn.ModuleDict

    def _become_bayesian(
        self,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        *,
        estimator: str | Estimator = "local",
        posterior: str | type[Posterior] = "std",
        prior: float | str | Prior = "standard",
        initial_std: float = PAPER_STD,
        bayesian_bias: bool = True,
    ) -> None:
        """Make the posteriors around these parameters; a subclass calls it once it knows them."""
        self.estimator = make_estimator(estimator)
        make = family(posterior)
        self.posteriors = nn.ModuleDict({"weight": make(weight, initial_std, prior, self.fan_in_of(weight))})
        if bias is not None and bayesian_bias:
            self.posteriors["bias"] = make(bias, initial_std, prior)
        else:
            self.register_parameter("point_bias", bias)

    def fan_in_of(self, weight: Tensor) -> int:
        """How many inputs each output sums over."""
        return math.prod(weight.shape[1:])

    def _fresh_parameters(
        self,
        weight_shape: Sequence[int],
        bias_shape: Sequence[int] | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> tuple[nn.Parameter, nn.Parameter | None]:
        """Weight and bias as the `torch.nn` twin draws them."""
        weight = nn.Parameter(torch.empty(*weight_shape, device=device, dtype=dtype))
        bias = None if bias_shape is None else nn.Parameter(torch.empty(*bias_shape, device=device, dtype=dtype))
        _initialize(weight, bias)
        return weight, bias

    def reset_parameters(self) -> None:
        """Initialise the means as the `torch.nn` twin does, and set standard deviations and prior as given."""
        _initialize(self.weight_mean, self.bias_mean)
        for q in self._posteriors():
            q.reset()

    def _posteriors(self) -> list[Posterior]:
        return [q for q in self.posteriors.values() if isinstance(q, Posterior)]

    @property
    def _bias(self) -> Posterior | nn.Parameter | None:
        if "bias" in self.posteriors:
            return self.posteriors["bias"]  # type: ignore[return-value]
        return self.point_bias  # type: ignore[return-value]

    @property
    def weight_mean(self) -> nn.Parameter:
        """The posterior mean of the weight."""
        return self.posteriors["weight"].mean  # type: ignore[return-value]

    @property
    def weight_std(self) -> Tensor:
        """The standard deviation of every weight."""
        return self.posteriors["weight"].std  # type: ignore[return-value]

    @property
    def bias_mean(self) -> nn.Parameter | None:
        """The posterior mean of the bias, or the bias itself if it is a point estimate; None if there is none."""
        bias = self._bias
        return bias.mean if isinstance(bias, Posterior) else bias

    @property
    def bias_std(self) -> Tensor | None:
        """The standard deviation of every bias, or None if it has none."""
        bias = self._bias
        return bias.std if isinstance(bias, Posterior) else None

    @property
    def weight(self) -> Tensor:
        """The weight in the current forward pass, for code that reads it instead of calling the layer."""
        return self._effective_estimator().read(self.posteriors["weight"])  # type: ignore[arg-type]

    @property
    def bias(self) -> Tensor | None:
        """The bias in the current forward pass, or None if there is none."""
        bias = self._bias
        return self._effective_estimator().read(bias) if isinstance(bias, Posterior) else bias

    @property
    def initial_std(self) -> float:
        """The standard deviation that every weight starts with."""
        return self.posteriors["weight"].initial_std  # type: ignore[return-value]

    @torch.no_grad()
    def set_std(self, std: float | Tensor) -> None:
        """Give every weight this standard deviation, keeping the means."""
        for q in self._posteriors():
            q.set_std(std)

    def bind_prior(self) -> None:
        """Fit the prior, as it was given, to the means as they are now."""
        for q in self._posteriors():
            q.bind_prior()

    def kl_divergence(self, *, samples: int | None = None) -> Tensor:
        """KL[q || p] over this layer's weights, a true sum in nats; see :func:`dubito.kl_divergence`."""
        return kl_divergence(self, samples=samples)

    def _effective_estimator(self) -> Estimator:
        """The one in force; draws of the weights where it would need independent ones and they are not."""
        active = self.active_estimator()
        if active.needs_independence and not all(q.independent for q in self._posteriors()):
            return Weight()
        return active

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        return self._estimate(*self.linear_map(x))

    def _estimate(self, linear_map: LinearMap, x: Tensor) -> Tensor:
        return self._effective_estimator()(linear_map, x, self.posteriors["weight"], self._bias)  # type: ignore[arg-type]

    @abstractmethod
    def linear_map(self, x: Tensor) -> tuple[LinearMap, Tensor]:
        """The layer's linear map for such an input, and the input for it: `x`, padded if necessary."""

    def mean_output(self, x: Tensor) -> Tensor:
        """The output at the posterior mean, in every mode."""
        linear_map, x = self.linear_map(x)
        return linear_map(x, self.weight_mean, self.bias_mean)

    def _bayesian_repr(self) -> str:
        point = ", bayesian_bias=False" if "bias" not in self.posteriors and self.point_bias is not None else ""
        return f"estimator={self.estimator.name}{point}"


def drawing_modules(module: nn.Module) -> list[DrawingModule]:
    """The modules below `module` that draw."""
    return [part for part in module.modules() if isinstance(part, DrawingModule)]


@contextmanager
def forced(module: nn.Module, chosen: Estimator | None) -> Iterator[None]:
    """Inside, everything below `module` that draws uses this estimator; None stands for each module's own."""
    parts = drawing_modules(module)
    before = [part.forced_estimator for part in parts]
    try:
        for part in parts:
            part.forced_estimator = part.estimator if chosen is None else chosen
        yield
    finally:
        for part, previous in zip(parts, before, strict=True):
            part.forced_estimator = previous


@contextmanager
def estimator(module: nn.Module, given: str | Estimator | None, **options: Any) -> Iterator[None]:
    """A context in which all Bayesian layers inside `module` use this estimator, in training and in evaluation mode.

    None means each module's own estimator, so a network in evaluation mode draws too. At the end, also after an
    exception, the previous estimator is back.

    >>> import torch
    >>> import dubito
    >>> layer, x = dubito.BayesLinear(3, 2), torch.ones(1, 3)
    >>> with dubito.estimator(layer, "mean"):
    ...     torch.equal(layer(x), layer(x))
    True
    """
    with forced(module, None if given is None else make_estimator(given, **options)):
        yield


def _initialize(weight: nn.Parameter, bias: nn.Parameter | None) -> None:
    if weight.is_meta:
        return  # no values to draw, and torch would load its compiler to find that out
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        bound = 1 / math.sqrt(math.prod(weight.shape[1:]))
        nn.init.uniform_(bias, -bound, bound)


def positive(**numbers: Any) -> tuple[int, ...]:
    """These numbers as ints; an error names one that is no whole number of at least 1."""
    for name, value in numbers.items():
        whole = as_int(value)
        if whole is None or whole < 1:
            raise OptionError(f"{name} is {value!r}, but must be a whole number of at least 1.")
    return tuple(operator.index(value) for value in numbers.values())


def as_int(value: Any) -> int | None:
    """A whole number, also one of NumPy's, as an int; None for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        return None
