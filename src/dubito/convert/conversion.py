"""Turning any network into a Bayesian one, and back.

`to_bayesian` replaces linear and convolutional layers by their Bayesian twins, with the weights as posterior means;
`to_deterministic` goes back to plain layers of torch. :func:`dubito.summary` says which layers are Bayesian, and why
the others are not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized
from typing_extensions import Unpack

from dubito.errors import NonFiniteError, OptionError
from dubito.heads import Head, attach_head
from dubito.kernels.convolution import Conv2d
from dubito.layers.base import (
    BayesConv1d,
    BayesConv2d,
    BayesConv3d,
    BayesConvTranspose1d,
    BayesConvTranspose2d,
    BayesConvTranspose3d,
    BayesianOptions,
    BayesLayer,
    BayesLinear,
)
from dubito.variational.kl import describe_non_finite
from dubito.variational.posterior import Parameterization

__all__ = ["Choice", "deep_copy", "obstacle", "to_bayesian", "to_deterministic"]

TWINS: dict[type[nn.Module], type[BayesLayer]] = {
    nn.Linear: BayesLinear,
    nn.Conv1d: BayesConv1d,
    nn.Conv2d: BayesConv2d,
    Conv2d: BayesConv2d,
    nn.Conv3d: BayesConv3d,
    nn.ConvTranspose1d: BayesConvTranspose1d,
    nn.ConvTranspose2d: BayesConvTranspose2d,
    nn.ConvTranspose3d: BayesConvTranspose3d,
}
"""The Bayesian twin of each layer of torch. Subclasses but our own are left alone: others rely on what they add."""

ModuleType = TypeVar("ModuleType", bound=nn.Module)
Choice: TypeAlias = str | type[nn.Module] | Callable[[str, nn.Module], bool]
"""Picks layers: by a pattern of names, by a type, or by a function of name and layer."""

_CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
_HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook"),
)
_ROLES = ("probability_head", "draws_dropout")
"""What a layer carries beside its weights if it is a whole model."""


def to_bayesian(
    module: nn.Module,
    *,
    head: str | Head | None = None,
    only: Choice | Sequence[Choice] | None = None,
    last_layer: bool = False,
    inplace: bool = False,
    **bayesian: Unpack[BayesianOptions],
) -> nn.Module:
    """A Bayesian copy of `module`: every linear and convolutional layer gets a posterior centred on its weights.

    The original is untouched. Layers that appear in several places stay shared, tied weights stay tied, hooks stay
    where they were, frozen weights stay frozen (with their standard deviations), and everything that is no such layer
    (normalisation, activations, Bayesian layers) is copied as it is, so applying it twice changes nothing.
    ``print(dubito.summary(network))`` says what became Bayesian, what did not, and why.

    Args:
        module: any network, or a single layer.
        head: makes this the copy's own head.
        only: which layers, None for all. A string is a pattern for names, such as ``"features.*"`` or ``"classifier"``,
            which takes all layers inside; a type takes all layers of it or inside modules of it; a function is asked
            with name and layer. Several take what any of them picks.
        last_layer: of these layers, the last one alone.
        inplace: change `module` itself instead of a copy. A single layer cannot become another, so use what is
            returned.
        bayesian: options of the new layers, see :class:`~dubito.layers.BayesianOptions`; `prior="empirical"` centres
            the prior on the weights too.

    >>> network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Softplus(), nn.Flatten(), nn.Linear(16, 10))
    >>> bayesian = to_bayesian(network, prior="empirical")
    >>> bayesian[3].weight_mean.equal(network[3].weight), type(network[3]).__name__
    (True, 'Linear')
    >>> [type(layer).__name__ for layer in to_bayesian(network, last_layer=True)]
    ['Conv2d', 'Softplus', 'Flatten', 'BayesLinear']
    """
    if any(not bool(p.isfinite().all()) for p in module.parameters() if _can_be_looked_at(p)):
        raise NonFiniteError(f"The network cannot be made Bayesian: {describe_non_finite(module)}")
    chosen = _choose(module, only, last_layer)
    network = module if inplace else deep_copy(module)
    earlier = [part for part in network.modules() if isinstance(part, BayesLayer)]
    stds = {(id(q.mean), part.parameterization): q.free for part in earlier for q in part.posteriors().values()}
    layers = [network.get_submodule(name) for name in chosen]
    with torch.random.fork_rng(devices=[]):  # a layer is initialised before it takes over the weights
        twins = {id(layer): _twin(layer, bayesian, stds) for layer in layers if not isinstance(layer, BayesLayer)}
    converted = _substitute(network, twins)
    for part in converted.modules():
        _leave_fused_path(part)
    return converted if head is None else attach_head(converted, head)


def to_deterministic(
    module: nn.Module, *, draw: bool = False, generator: torch.Generator | None = None, inplace: bool = False
) -> nn.Module:
    """A copy of `module` with plain layers of torch in place of the Bayesian ones.

    Their weights are the posterior means, or with `draw` one draw from the posterior, reproducible by a `generator`.
    Tied weights stay tied. The copy is a point estimate: it has no epistemic uncertainty.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> back = to_deterministic(to_bayesian(network))
    >>> type(back[0]).__name__, back[0].weight.equal(network[0].weight)
    ('Linear', True)
    """
    network = module if inplace else deep_copy(module)
    drawn: dict[tuple[int, int], nn.Parameter] = {}
    plain: dict[int, nn.Module] = {}
    for name, layer in network.named_modules():
        if isinstance(layer, BayesLayer):
            plain[id(layer)] = _plain(name, layer, drawn if draw else None, generator)
    return _substitute(network, plain)


def obstacle(module: nn.Module) -> str | None:
    """Why `module` itself is not made Bayesian; None if it is.

    >>> obstacle(nn.Linear(2, 2)), obstacle(nn.BatchNorm2d(3))
    (None, 'normalisation stays as it is')
    """
    kind = type(module)
    if isinstance(module, BayesLayer):
        return "it is Bayesian already"
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        return "it has no weights yet: pass one batch through the network first"
    if is_parametrized(module):
        return "its weights are computed: torch.nn.utils.parametrize.remove_parametrizations first"
    if kind in TWINS:
        computed = [name for name in ("weight", "bias") if isinstance(vars(module).get(name), Tensor)]
        if computed:
            sources = ", ".join(name for name, _ in module.named_parameters() if name.startswith(computed[0]))
            return f"its {computed[0]} is computed from {sources}: remove that (torch.nn.utils) first"
        weight = module.weight
        assert isinstance(weight, Tensor)
        return None if weight.is_floating_point() else f"its weights are {weight.dtype}, not real numbers"
    if isinstance(module, nn.MultiheadAttention) or kind.__name__ == "NonDynamicallyQuantizableLinear":
        return "attention of torch reads these weights, no layer is called with them"
    if isinstance(module, tuple(TWINS)):
        base = next(base.__name__ for base in TWINS if isinstance(module, base))
        return f"a subclass of {base} may do more than {base} does"
    if "norm" in kind.__name__.lower():
        return "normalisation stays as it is"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return "an embedding looks rows up; there is no Bayesian one"
    if kind.__name__ == "Conv1D":
        return "the Conv1D of transformers stores its weights transposed; there is no Bayesian one"
    if any(True for _ in module.children()):
        return "parameters of a module itself, beside the layers inside it, stay as they are"
    return f"there is no Bayesian {kind.__name__}"


def _choose(module: nn.Module, only: Choice | Sequence[Choice] | None, last_layer: bool) -> list[str]:
    """The names of the layers to convert, and of those among the chosen that are Bayesian already."""
    named = dict(module.named_modules(remove_duplicate=False))
    able = [name for name, part in named.items() if isinstance(part, BayesLayer) or _is_convertible(part)]
    if not able:
        raise OptionError(
            f"The network ({type(module).__name__}) has no layer that can be made Bayesian{_refusals(named, named)}"
        )
    if only is not None:
        choices: list[Any] = list(only) if isinstance(only, (list, tuple)) else [only]
        picked = [_pick(choice, named, able) for choice in choices]
        able = [name for name in able if any(name in names for names in picked)]
        if not able:
            raise OptionError(f"only is {only!r}, but must pick at least one layer.")
    return able[-1:] if last_layer else able


def _can_be_looked_at(parameter: Tensor) -> bool:
    ordinary = not is_lazy(parameter) and not parameter.is_meta and parameter.layout is torch.strided
    return ordinary and parameter.dtype.itemsize > 1  # torch cannot say of float8 whether it is finite


def _is_convertible(module: nn.Module) -> bool:
    return type(module) in TWINS and obstacle(module) is None


def _pick(choice: Choice, named: dict[str, nn.Module], able: list[str]) -> set[str]:
    """The names in `able` that a choice picks, at least one."""
    if isinstance(choice, (str, type)):
        hit = {name for name, part in named.items() if _fits(choice, name, part)}
        hit = {name for name in named if not hit.isdisjoint(_places(name))}
    elif callable(choice):
        hit = {name for name in able if choice(name, named[name])}
    else:
        raise OptionError(f"only has {choice!r}, but must be a pattern of names, a type, or a function of both.")
    found = hit.intersection(able)
    if not found:
        shown = getattr(choice, "__name__", choice)
        known = ", ".join(able[:5]) + (", ..." if len(able) > 5 else "")
        raise OptionError(
            f"only={shown} picks no layer that can be made Bayesian{_refusals(hit, named, else_say=f' among {known}.')}"
        )
    return found


def _fits(choice: str | type[nn.Module], name: str, module: nn.Module) -> bool:
    return fnmatchcase(name, choice) if isinstance(choice, str) else isinstance(module, choice)


def _places(name: str) -> Iterator[str]:
    """The names of a module and of all that it is inside of.

    >>> list(_places("a.b"))
    ['', 'a', 'a.b']
    """
    yield ""
    parts = name.split(".") if name else []
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _refusals(names: Iterable[str], named: dict[str, nn.Module], else_say: str = ": it has no weights.") -> str:
    """Which modules with weights of their own stand in the way, where, and why."""
    refused = [(name, named[name]) for name in sorted(names) if any(True for _ in named[name].parameters(False))]
    if not refused:
        return else_say
    shown = [f"{name or 'the root'} ({type(part).__name__}): {obstacle(part)}" for name, part in refused[:3]]
    more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
    return ": " + "; ".join(shown) + more + "."


def deep_copy(module: ModuleType) -> ModuleType:
    """A copy, also of what holds tensors that are computed, such as weights: torch copies none with a history."""
    memo: dict[int, Any] = {}
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


def _substitute(module: nn.Module, replacements: Mapping[int, nn.Module]) -> nn.Module:
    """`module` with every layer that has a replacement, by identity, replaced wherever it appears."""
    for parent in list(module.modules()):
        for name, child in parent._modules.items():  # named_children would skip a child's second name
            if child is not None and id(child) in replacements:
                parent._modules[name] = replacements[id(child)]
        for name, value in vars(parent).items():  # where layers may be kept a second time, unknown to torch
            if name not in _TORCHS_OWN:
                vars(parent)[name] = _substituted(value, replacements, set())
    return replacements.get(id(module), module)


_TORCHS_OWN = frozenset(vars(nn.Module()))


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


def _leave_fused_path(module: nn.Module) -> None:
    """Keep torch's transformer from reading its linear layers' weights instead of calling them."""
    if isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0
    elif isinstance(module, nn.TransformerEncoder):
        module.use_nested_tensor = False


def _options(layer: nn.Module) -> dict[str, Any]:
    """The arguments that make a layer of the same sizes."""
    linear = isinstance(layer, (nn.Linear, BayesLinear))
    names = ("in_features", "out_features") if linear else _CONVOLUTION
    if "ConvTranspose" in type(layer).__name__:
        names = (*names, "output_padding")
    return {name: getattr(layer, name) for name in names}


def _twin(layer: nn.Module, bayesian: BayesianOptions, stds: dict[tuple[int, Parameterization], Any]) -> BayesLayer:
    """The Bayesian twin of one layer, on its device, in its dtype and mode, with its own parameters as means.

    `stds` remembers standard deviations by their mean's identity, so that tied weights have one posterior.
    """
    weight: nn.Parameter = layer.weight  # type: ignore[assignment]
    bias: nn.Parameter | None = layer.bias  # type: ignore[assignment]
    twin = TWINS[type(layer)](
        **_options(layer), bias=bias is not None, device=weight.device, dtype=weight.dtype, **bayesian
    )
    twin.adopt(weight, bias, bayesian.get("prior", "standard"))
    twin.tie_stds(stds)
    for q in twin.posteriors().values():
        q.free.requires_grad_(q.mean.requires_grad)
    _take_place(twin, layer)
    return twin


def _plain(
    name: str,
    layer: BayesLayer,
    drawn: dict[tuple[int, int], nn.Parameter] | None,
    generator: torch.Generator | None,
) -> nn.Module:
    """The torch layer with the posterior means as its weights, or a draw that `drawn` remembers for tied ones."""
    kind = next((plain for plain, twin in TWINS.items() if twin is type(layer)), None)
    if kind is None:
        raise OptionError(f"{name or 'The root'} ({type(layer).__name__}) has no twin among the layers of torch.")
    plain = kind(**_options(layer), bias=layer.bias_mean is not None, device="meta")
    weights = {"weight": layer.weight_mean, "bias": layer.bias_mean}
    if drawn is not None:
        for part, q in layer.posteriors().items():
            key = q.identity
            if key not in drawn:
                noise = torch.randn(q.mean.shape, generator=generator, dtype=q.mean.dtype, device=q.mean.device)
                drawn[key] = nn.Parameter(q.draw(noise).detach(), requires_grad=q.mean.requires_grad)
            weights[part] = drawn[key]
    for part, parameter in weights.items():
        plain.register_parameter(part, parameter)
    _take_place(plain, layer)
    return plain


def _take_place(new: nn.Module, old: nn.Module) -> None:
    """Give `new` the mode of `old`, its hooks (with handles that still remove them), and its role as a model."""
    new.train(old.training)
    for name in _HOOKS:
        setattr(new, name, getattr(old, name))
    for name in _ROLES:
        if hasattr(old, name):
            setattr(new, name, getattr(old, name))
