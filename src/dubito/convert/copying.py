"""Copies of networks, and layers replaced wherever a network keeps them."""

from __future__ import annotations

import copy
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial, update_wrapper
from types import CellType, FunctionType, MemberDescriptorType, MethodType
from typing import Any, TypeVar

from torch import Tensor, nn

ModuleType = TypeVar("ModuleType", bound=nn.Module)

_TORCHS_OWN = frozenset(vars(nn.Module()))
_HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook"),
)
_ROLES = ("probability_head", "draws_dropout", "data_description", "built_as")
"""What a layer carries beside its weights if it is a whole model."""


def deep_copy(module: ModuleType, keep: Mapping[int, Any] | None = None) -> ModuleType:
    """A copy, also of what holds computed tensors, such as weights: torch copies none with a history.

    Functions that hold modules of the network, in closures or defaults, hold those of the copy. What `keep` has by its
    `id` is not copied but shared.
    """
    memo: dict[int, Any] = dict(keep or {})
    for part in module.modules():
        for name, value in vars(part).items():
            if name not in _TORCHS_OWN:
                memo |= {id(tensor): tensor.detach().clone() for tensor in _computed(value, set())}
            elif type(value) in (OrderedDict, set) and not value:  # most of a layer, and slow to copy
                memo[id(value)] = type(value)()
    copied = copy.deepcopy(module, memo)
    _substitute_attributes(copied, {id(part): memo[id(part)] for part in module.modules() if id(part) in memo})
    return copied


def shared_copy(module: ModuleType) -> ModuleType:
    """A copy of the modules and buffers, which has the parameters of the original."""
    return deep_copy(module, {id(p): p for p in module.parameters()})


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
    _substitute_attributes(module, replacements)
    return replacements.get(id(module), module)


def _substitute_attributes(module: nn.Module, replacements: Mapping[int, nn.Module]) -> None:
    """Replace layers where they may be kept a second time, unknown to torch."""
    for parent in module.modules():
        for name, value in vars(parent).items():
            if name not in _TORCHS_OWN:
                vars(parent)[name] = _substituted(value, replacements, set())


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
        return value if _same(parts, value) else parts
    return _rebound(value, replacements, ())


def _same(new: Iterable[Any], old: Iterable[Any]) -> bool:
    return all(one is other for one, other in zip(new, old, strict=True))


def _rebound(value: Any, replacements: Mapping[int, nn.Module], above: tuple[int, ...]) -> Any:
    """A value that holds the replacements; what would change is made anew, for others may hold it too.

    `above` has what this value is inside of, which it may hold in turn.
    """
    if id(value) in above:
        return value
    above = (*above, id(value))
    if isinstance(value, nn.Module):
        return replacements.get(id(value), value)
    if type(value) in (list, tuple):
        parts = [_rebound(part, replacements, above) for part in value]
        return value if _same(parts, value) else type(value)(parts)
    if type(value) is dict:
        parts = [_rebound(part, replacements, above) for part in value.values()]
        return value if _same(parts, value.values()) else dict(zip(value, parts, strict=True))
    if isinstance(value, MethodType):
        owner = _rebound(value.__self__, replacements, above)
        if type(owner) is type(value.__self__):
            return value if owner is value.__self__ else MethodType(value.__func__, owner)
        return getattr(owner, value.__func__.__name__)
    if type(value) is partial:
        held = (value.func, value.args, value.keywords)
        func, args, options = (_rebound(part, replacements, above) for part in held)
        return value if _same((func, args, options), held) else partial(func, *args, **options)
    return _rebound_function(value, replacements, above) if isinstance(value, FunctionType) else value


def _rebound_function(function: FunctionType, replacements: Mapping[int, nn.Module], above: tuple[int, ...]) -> Any:
    """The function with replacements in its closure and its defaults."""
    cells = tuple(function.__closure__ or ())
    new_cells = []
    for cell in cells:
        content = _content(cell)
        new = _rebound(content, replacements, above)
        new_cells.append(cell if new is content else CellType(new))
    defaults = _rebound(function.__defaults__, replacements, above)
    options = _rebound(function.__kwdefaults__, replacements, above)
    if _same((*new_cells, defaults, options), (*cells, function.__defaults__, function.__kwdefaults__)):
        return function
    own = CellType()  # of a function that calls itself
    new_cells = [own if _content(cell) is function else cell for cell in new_cells]
    made = FunctionType(function.__code__, function.__globals__, function.__name__, defaults, tuple(new_cells) or None)
    own.cell_contents = made
    made.__kwdefaults__ = options
    return update_wrapper(made, function, updated=("__dict__",))


def _content(cell: CellType) -> Any:
    """What a closure's cell holds; None while it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def held_elsewhere(module: nn.Module) -> set[int]:
    """The `id` of every module that is kept where :func:`substitute` does not look.

    That is in bound methods, partials, closures and plain objects: whoever holds it there would go on with the old one.
    """
    found: set[int] = set()
    seen: set[tuple[int, bool]] = set()
    for part in module.modules():
        for name, value in vars(part).items():
            if name not in _TORCHS_OWN:
                _note_held(value, False, found, seen)
    return found


def _note_held(value: Any, hidden: bool, found: set[int], seen: set[tuple[int, bool]]) -> None:
    """Walk through a value; `hidden` says that the way here led through something that cannot be substituted in."""
    if isinstance(value, nn.Module):
        if hidden:
            found.add(id(value))
        return
    if isinstance(value, (Tensor, type, str, bytes, int, float)) or value is None or (id(value), hidden) in seen:
        return
    seen.add((id(value), hidden))
    if isinstance(value, (dict, list, tuple, set, frozenset, deque)):
        for part in value.values() if isinstance(value, dict) else value:
            _note_held(part, hidden or isinstance(value, (set, frozenset, deque)), found, seen)
    elif isinstance(value, MethodType):
        _note_held(value.__self__, True, found, seen)
    elif isinstance(value, partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            _note_held(part, True, found, seen)
    elif isinstance(value, FunctionType):
        for part in (*map(_content, value.__closure__ or ()), value.__defaults__, value.__kwdefaults__):
            _note_held(part, True, found, seen)
    else:
        for part in (*getattr(value, "__dict__", {}).values(), *_slots(value)):
            _note_held(part, True, found, seen)


def _slots(value: Any) -> Iterator[Any]:
    """What an object holds in `__slots__`."""
    for kind in type(value).__mro__:
        for member in vars(kind).values():
            if isinstance(member, MemberDescriptorType):
                with suppress(AttributeError):  # not set
                    yield member.__get__(value)


def take_place(new: nn.Module, old: nn.Module) -> None:
    """Give `new` the mode of `old`, its hooks (with handles that still remove them), and its role as a model."""
    new.train(old.training)
    for name in _HOOKS:
        setattr(new, name, getattr(old, name))
    for name in _ROLES:
        if hasattr(old, name):
            setattr(new, name, getattr(old, name))
