"""Moments: what flows through a network in place of tensors; torch functions follow rules on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from typing import Any, TypeVar

import torch
from torch import Tensor

Pull = Callable[[Tensor], Tensor]
Lazy = Callable[[], Tensor]

RULES: dict[str, Callable[..., Any]] = {}
"""What the functions of torch do with moments, by their names."""

DRAWING = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
"""Functions that draw, also without uncertain inputs."""

FACTS = (
    *("dim", "size", "numel", "is_floating_point", "is_complex", "stride", "element_size"),
    *("shape", "ndim", "dtype", "device", "layout", "requires_grad", "is_leaf", "grad_fn", "itemsize", "nbytes"),
    *("is_cpu", "is_cuda", "is_mps", "is_meta", "is_xpu", "is_sparse", "is_quantized", "is_nested", "names"),
)
"""What code may ask of a tensor without looking at its values."""

WAITING = ("max_pool2d", *DRAWING)
"""Functions whose rules see a nonlinearity that waits."""

Rule = TypeVar("Rule", bound=Callable[..., Any])


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Make a function the rule for the torch functions of these names; it gets the torch function first."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


class UnsupportedError(Exception):
    """A function that moments cannot pass through."""


class Moments:
    """Means and variances of a batch of units, made by a function from other moments: what flows through the network.

    It stands in for a tensor: torch's functions, operators and methods on it look up their rule.

    Attributes:
        expected: (N, ...) the means; `mean` is the method of tensors.
        own: gives the part of the variance that arose here, if that is not all of it (or nothing, with links).
        links: the moments that this was made of, each with the transpose of the linear map from there to here, or None
            if it is not known.
        unmixed: whether no two units were made of the same one.
        work: multiplications for each image in the forward pass of a point estimate.
        cost: multiplications for each image and row on the way back.
    """

    replacement: Moments | None = None

    def __init__(
        self,
        expected: Tensor,
        variance: Tensor | Lazy | None = None,
        *,
        own: Lazy | None = None,
        links: Sequence[tuple[Moments, Pull | None]] = (),
        unmixed: bool = False,
        multiple: tuple[Moments, Any] | None = None,
        work: int = 0,
        cost: int = 0,
    ) -> None:
        self.expected = expected
        self._own, self.links, self.unmixed, self.work, self.cost = own, tuple(links), unmixed, work, cost
        self._variance = variance
        self._multiple = multiple

    @property
    def multiple(self) -> tuple[Moments, Any]:
        """The moments that these are a multiple of, unit by unit and but for a constant, and the factor."""
        return self._multiple or (self, 1.0)

    @property
    def certain(self) -> bool:
        """Whether the variance is 0 for sure."""
        return self._variance is None

    @property
    def own(self) -> Tensor | None:
        """(N, ...) the part of the variance that arose here, independently in every unit; None if there is none."""
        if self._own is not None:
            return self._own()
        return None if self.links or self.certain else self.variance

    @property
    def variance(self) -> Tensor:
        """(N, ...), as if the units that it was made of were independent."""
        if self._variance is None:
            return torch.zeros_like(self.expected)
        if not isinstance(self._variance, Tensor):
            self._variance = self._variance()
        return self._variance

    @property
    def like(self) -> Tensor:
        """A tensor of this shape and type."""
        return self.expected

    def settled(self) -> Moments:
        """With mean and variance known."""
        return self

    def current(self, wait: bool = False) -> Moments:
        """What operations in place have made of these; a nonlinearity may `wait`."""
        latest = self._latest()
        return latest if wait else latest.settled()

    def replace_by(self, result: Moments) -> Moments:
        """Let an operation in place have made that of these, and of all that they have replaced."""
        latest = self._latest()
        if result is not latest and result is not latest.settled():
            latest.replacement = result
        return self

    def _latest(self) -> Moments:
        latest = self
        while latest.replacement is not None:
            latest = latest.replacement
        return latest

    def ancestors(self) -> Iterator[Moments]:
        """All moments that these were made of, and these, in the order of the forward pass."""
        seen: set[int] = set()
        stack: list[tuple[Moments, bool]] = [(self, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                yield node
            elif id(node) not in seen:
                seen.add(id(node))
                stack.append((node, True))
                stack.extend((source, False) for source, _ in reversed(node.links))

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Apply the rule of a torch function; without uncertainty, the function itself."""
        name = getattr(function, "__name__", str(function))
        rule, given = RULES.get(name), args
        uncertain = name in DRAWING

        def current(moments: Moments) -> Moments:
            nonlocal uncertain
            latest = moments.current(wait=name in WAITING)
            uncertain = uncertain or not latest.certain
            return latest

        args, options = _mapped(current, args), _mapped(current, kwargs or {})
        if not uncertain:
            result = function(*_mapped(_expected, args), **_mapped(_expected, options))
            return Moments(result) if isinstance(result, Tensor) else result
        if rule is None:
            raise UnsupportedError(name)
        try:
            signature(rule).bind(function, *args, **options)
        except TypeError as error:
            raise UnsupportedError(f"{name} ({error})") from None
        result = rule(function, *args, **options)
        if options.get("inplace") or name.endswith("_"):
            given[0].replace_by(result)
        return result

    def __getattr__(self, name: str) -> Any:
        """What a tensor has: its facts, or a method by its rule."""
        known = None if name.startswith("__") else getattr(Tensor, name, None)
        if known is None:
            raise AttributeError(f"Moments have no {name}.")
        if name in FACTS:
            return getattr(self.like, name)
        if not callable(known):  # such as T and data: tensors, which would lose the variance
            raise UnsupportedError(f"the property {name}")
        return lambda *args, **kwargs: Moments.__torch_function__(known, (), (self, *args), kwargs)

    def __len__(self) -> int:
        """The number of images."""
        return len(self.like)

    def __add__(self, other: Any) -> Any:
        """The sum, by its rule; likewise the other operators."""
        return torch.add(self, other)  # type: ignore[call-overload]

    def __sub__(self, other: Any) -> Any:
        return torch.sub(self, other)  # type: ignore[call-overload]

    def __mul__(self, other: Any) -> Any:
        return torch.mul(self, other)  # type: ignore[arg-type]

    def __truediv__(self, other: Any) -> Any:
        return torch.div(self, other)  # type: ignore[arg-type]

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Any:
        return self * -1.0

    __radd__, __rmul__ = __add__, __mul__

    def __iadd__(self, other: Any) -> Any:
        """The sum in place of these, also where they have another name; likewise the other operators."""
        return self.replace_by(self + other)

    def __isub__(self, other: Any) -> Any:
        return self.replace_by(self - other)

    def __imul__(self, other: Any) -> Any:
        return self.replace_by(self * other)

    def __itruediv__(self, other: Any) -> Any:
        return self.replace_by(self / other)


def _refusing(operator: str) -> Callable[..., Any]:
    def refuse(self: Moments, *operands: Any) -> Any:
        raise UnsupportedError(f"the operator {operator}")

    return refuse


for _operator in (
    *("abs", "pow", "rpow", "rtruediv", "floordiv", "mod", "matmul", "rmatmul"),
    *("getitem", "setitem", "iter", "bool", "lt", "le", "gt", "ge"),
):
    setattr(Moments, f"__{_operator}__", _refusing(_operator))


def _mapped(function: Callable[[Moments], Any], value: Any) -> Any:
    """`value` with the function applied to all moments in it, also inside lists, tuples and dictionaries."""
    if isinstance(value, Moments):
        return function(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        parts = [_mapped(function, part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, dict):
        return {key: _mapped(function, part) for key, part in value.items()}
    return value


def _expected(moments: Moments) -> Tensor:
    return moments.expected


class Activated(Moments):
    """A nonlinearity that waits: one that increases may change places with a maximum, which leaves it less to do."""

    def __init__(self, source: Moments, rule: Callable[[Moments], Moments]) -> None:
        self.source, self.rule = source, rule
        self._settled: Moments | None = None

    @property
    def certain(self) -> bool:
        """Only uncertain units wait."""
        return False

    @property
    def like(self) -> Tensor:
        """A tensor of this shape and type."""
        return self.source.expected

    def settled(self) -> Moments:
        """The nonlinearity's moments."""
        if self._settled is None:
            self._settled = self.rule(self.source)
        return self._settled


def as_moments(value: Any) -> Moments:
    """The value itself, settled, or a tensor without uncertainty."""
    return value.settled() if isinstance(value, Moments) else Moments(value)
