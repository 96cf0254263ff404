"""What no draw touches is computed once.

The draws of a batch differ only in their weights, so the part of a network before the first drawn weight gives the same
for all of them. Modules without drawn weights remember what they made of which input in the first draw, as long as
nothing drawn has run, and give it again where the input is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class _Call(NamedTuple):
    """A call of a module in the first draw."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]
    output: Tensor
    version: int


class Remembering:
    """Lets the modules of a network remember; `drawn` are those that differ from draw to draw.

    The network must be nobody else's: the forward methods of its modules change.
    """

    def __init__(self, network: nn.Module, drawn: set[nn.Module]) -> None:
        self._calls: dict[tuple[int, int], _Call] = {}
        self._numbers: dict[int, int] = {}
        self._touched = False
        self._in_place = any(getattr(part, "inplace", False) for part in network.modules())
        self._drawn = drawn
        self._hooks = [module.register_forward_pre_hook(self._touch) for module in drawn]
        for module in drawn:
            module.__dict__["_parameters"] = _Watched(module._parameters, self._touch)
        inside = {parent for parent in network.modules() if not drawn.isdisjoint(parent.modules())}
        waiting = {child for parent in inside - drawn for child in _called(parent)} - inside
        self._forwards = {child: child.forward for child in waiting}
        for child, forward in self._forwards.items():
            child.forward = self._remembered(child, forward)

    def begin_draw(self, first: bool) -> None:
        """A new draw of the same batch, or the first one of a new batch."""
        self._touched = False
        self._numbers.clear()
        if first:
            self._calls.clear()
        elif not self._calls:
            self._retire()

    def forget(self) -> None:
        """The batch is done."""
        self._calls.clear()

    def _retire(self) -> None:
        """The first draw left nothing to remember, so that watching would cost and gain nothing."""
        for hook in self._hooks:
            hook.remove()
        for module in self._drawn:
            module.__dict__["_parameters"] = dict(module._parameters)
        for child, forward in self._forwards.items():
            child.forward = forward

    def _touch(self, *event: Any) -> None:
        self._touched = True

    def _remembered(self, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        has_weights = any(True for _ in module.parameters())

        def call(*arguments: Any, **options: Any) -> Any:
            number = self._numbers[id(module)] = self._numbers.get(id(module), -1) + 1
            key = (id(module), number)
            known = self._calls.get(key)
            if known is not None and _same((arguments, options), (known.arguments, known.options), has_weights):
                if known.output._version == known.version:
                    return known.output.clone() if self._in_place else known.output
                known, self._in_place = None, True  # from now on everybody gets a copy to change
            output = forward(*arguments, **options)
            worth_it = has_weights or not self._in_place  # others may give what they got, which a copy would not be
            if known is None and isinstance(output, Tensor) and not self._touched and worth_it:
                kept = output.clone() if self._in_place else output
                self._calls[key] = _Call(arguments, options, kept, kept._version)
            return output

        return call


def _called(parent: nn.Module) -> Iterator[nn.Module]:
    """The modules inside that can be called; lists and dictionaries of modules cannot, but what is in them can."""
    for child in parent.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _called(child)
        else:
            yield child


class _Watched(dict[str, Any]):
    """The parameters of a module; whoever reads one, by whatever way it came to the module, is noticed."""

    def __init__(self, parameters: dict[str, Any], noticed: Callable[[], None]) -> None:
        super().__init__(parameters)
        self._noticed = noticed

    def __getitem__(self, name: str) -> Any:
        self._noticed()
        return super().__getitem__(name)


def _same(a: Any, b: Any, by_value: bool) -> bool:
    """Whether arguments are the same: tensors by identity or, if asked, by their values."""
    if a is b:
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        alike = by_value and a.shape == b.shape and a.dtype is b.dtype and a.device == b.device
        return alike and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y, by_value) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key], by_value) for key in a)
    return isinstance(a, (str, int, float, bool, bytes)) and a == b
