"""Copies of networks, and layers replaced wherever a network keeps them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any, TypeVar

from torch import Tensor, nn

__all__ = ["deep_copy", "held_elsewhere", "substitute", "take_place"]

ModuleType = TypeVar("ModuleType", bound=nn.Module)

_TORCHS_OWN = frozenset(vars(nn.Module()))
_HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook"),
)
_ROLES = ("probability_head", "draws_dropout")
"""What a layer carries beside its weights if it is a whole model."""


def deep_copy(module: ModuleType, keep: Mapping[int, Any] | None = None) -> ModuleType:
    """A copy, also of what holds computed tensors, such as weights: torch copies none with a history.

    What `keep` has by its `id` is not copied but shared.
    """
    memo: dict[int, Any] = dict(keep or {})
    for part in module.modules():
        for name, value in vars(part).items():
            if name not in _TORCHS_OWN:
                memo |= {id(tensor): tensor.detach().clone() for tensor in _computed(value, set())}
    return copy.deepcopy(module, memo)


def _computed(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """The tensors with a history in a value and in the dictionaries, lists and tuples inside it."""
    if isinstance(value, Tensor):
        if not value.is_leaf:
            yield value
    elif isinstance(value, (dict, list, tuple)) and id(value) not in seen:
        seen.add(id(value))  # it may hold itself
        for part in value.values() if isinstance(value, dict) else value:
            yield from _computed(part, seen)


def substitute(module: nn.Module, replacements: Mapping[int, nn.Module]) -> nn.Module:
    """`module` with every layer that has a replacement, by identity, replaced wherever it appears."""
    for parent in list(module.modules()):
        for name, child in parent._modules.items():  # named_children would skip a child's second name
            if child is not None and id(child) in replacements:
                parent._modules[name] = replacements[id(child)]
        for name, value in vars(parent).items():  # where layers may be kept a second time, unknown to torch
            if name not in _TORCHS_OWN:
                vars(parent)[name] = _substituted(value, replacements, set())
    return replacements.get(id(module), module)


def _substituted(value: Any, replacements: Mapping[int, nn.Module], seen: set[int]) -> Any:
    """A module's replacement; lists and dictionaries keep their identity, and what has no modules is left alone."""
    if isinstance(value, nn.Module):
        return replacements.get(id(value), value)
    if isinstance(value, (dict, list)) and id(value) not in seen:
        seen.add(id(value))  # it may hold itself
        for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
            new = _substituted(part, replacements, seen)
            if new is not part:
                value[key] = new
    elif type(value) is tuple:
        parts = tuple(_substituted(part, replacements, seen) for part in value)
        return value if all(new is part for new, part in zip(parts, value, strict=True)) else parts
    return value


def held_elsewhere(module: nn.Module) -> set[int]:
    """The `id` of every module that is kept where :func:`substitute` does not look.

    That is in bound methods, partials, closures and plain objects: whoever holds it there would go on with the old one.
    """
    found: set[int] = set()
    seen: set[int] = set()
    for part in module.modules():
        for name, value in vars(part).items():
            if name not in _TORCHS_OWN:
                _note_held(value, False, found, seen)
    return found


def _note_held(value: Any, hidden: bool, found: set[int], seen: set[int]) -> None:
    """Walk through a value; `hidden` says that the way here led through something that cannot be substituted in."""
    if isinstance(value, nn.Module):
        if hidden:
            found.add(id(value))
        return
    if isinstance(value, (Tensor, type, str, bytes, int, float)) or value is None or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (dict, list, tuple, set)):
        for part in value.values() if isinstance(value, dict) else value:
            _note_held(part, hidden or type(value) in (set,), found, seen)
    elif isinstance(value, MethodType):
        _note_held(value.__self__, True, found, seen)
    elif isinstance(value, partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            _note_held(part, True, found, seen)
    elif isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            _note_held(cell.cell_contents, True, found, seen)
    elif hasattr(value, "__dict__"):
        for part in vars(value).values():
            _note_held(part, True, found, seen)


def take_place(new: nn.Module, old: nn.Module) -> None:
    """Give `new` the mode of `old`, its hooks (with handles that still remove them), and its role as a model."""
    new.train(old.training)
    for name in _HOOKS:
        setattr(new, name, getattr(old, name))
    for name in _ROLES:
        if hasattr(old, name):
            setattr(new, name, getattr(old, name))
