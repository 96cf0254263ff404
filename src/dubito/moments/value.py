"""Moments: what flows through a network in place of tensors; torch functions follow rules on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["Activated", "Lazy", "Moments", "Pull", "UnsupportedError", "as_moments", "rule"]

Pull = Callable[[Tensor], Tensor]
Lazy = Callable[[], Tensor]

RULES: dict[str, Callable[..., Any]] = {}
"""What the functions of torch do with moments, by their names."""

DRAWING = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
"""Functions that draw, also without uncertain inputs."""

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
        work: int = 0,
        cost: int = 0,
    ) -> None:
        self.expected = expected
        self._own, self.links, self.unmixed, self.work, self.cost = own, tuple(links), unmixed, work, cost
        self._variance = variance

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
        """What an operation in place has made of these; a nonlinearity may `wait`."""
        latest = self
        while latest.replacement is not None:
            latest = latest.replacement
        return latest if wait else latest.settled()

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
        rule, options = RULES.get(name), kwargs or {}
        given = args
        args = tuple(a.current(wait=name in WAITING) if isinstance(a, Moments) else a for a in args)
        if name not in DRAWING and all(a.certain for a in (*args, *options.values()) if isinstance(a, Moments)):
            plain = [a.expected if isinstance(a, Moments) else a for a in args]
            result = function(*plain, **{k: v.expected if isinstance(v, Moments) else v for k, v in options.items()})
            return Moments(result) if isinstance(result, Tensor) else result
        if rule is None:
            raise UnsupportedError(name)
        try:
            signature(rule).bind(function, *args, **options)
        except TypeError as error:
            raise UnsupportedError(f"{name} ({error})") from None
        result = rule(function, *args, **options)
        if options.get("inplace") or name.endswith("_"):
            given[0].replacement = None if result is args[0] else result
        return result

    def __getattr__(self, name: str) -> Any:
        """What a tensor has: its facts, or a method by its rule."""
        known = None if name.startswith("__") else getattr(Tensor, name, None)
        if known is None:
            raise AttributeError(f"Moments have no {name}.")
        if name in ("dim", "size", "numel", "is_floating_point") or not callable(known):
            return getattr(self.like, name)
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
        return self * -1.0 + other

    __radd__, __rmul__ = __add__, __mul__


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
