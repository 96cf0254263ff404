"""The structure of a network as plain data, and another instance of it made to fit.

What a state dict does not tell: which parameters have posteriors, of which family, with which prior and estimator;
heads, MC dropout, and what is frozen. :func:`structure` writes it down as JSON has it, and :func:`restructure` gives it
to a plain instance of the same network, or to a converted one. No code is stored: an object of a class that dubito does
not know has to be part of the instance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dubito.convert.bayesian import begin_passes, give_posteriors, has_passes
from dubito.errors import RunError
from dubito.estimators import ESTIMATORS, Estimator, make_estimator
from dubito.heads import HEADS, Head, attach_head
from dubito.layers import BayesLayer, drawn_parameters
from dubito.variational.families import FAMILIES
from dubito.variational.posterior import Posterior, posteriors
from dubito.variational.prior import PRIORS, Prior

KNOWN_PRIORS: dict[str, type[Prior]] = {kind.__name__: kind for kind in PRIORS.values()}
"""Priors that need no code of the user's."""


def structure(network: nn.Module) -> dict[str, Any]:
    """What makes the network more than a plain instance with weights.

    >>> import dubito
    >>> found = structure(dubito.to_bayesian(nn.Sequential(nn.Linear(2, 3)), head="softmax"))
    >>> list(found["drawing"]["0"]["parameters"]), found["heads"]
    (['weight', 'bias'], {'': {'name': 'softmax'}})
    """
    names = {id(q): name for name, q in posteriors(network).items()}
    modules = dict(network.named_modules())
    return {
        "heads": {name: head_to_dict(part.probability_head) for name, part in modules.items() if _has_head(part)},
        "draws_dropout": [name for name, part in modules.items() if getattr(part, "draws_dropout", False)],
        "passes": [name for name, part in modules.items() if has_passes(part)],
        "drawing": {name: _drawing(part, names) for name, part in modules.items() if drawn_parameters(part)},
        "posteriors": {name: _posterior(q) for name, q in posteriors(network).items()},
        "frozen": [name for name, p in network.named_parameters() if not p.requires_grad],
    }


def _has_head(module: nn.Module) -> bool:
    return isinstance(getattr(module, "probability_head", None), Head)


def _drawing(module: nn.Module, names: Mapping[int, str]) -> dict[str, Any]:
    found = drawn_parameters(module)
    return {
        "parameters": {name: names[id(q)] for name, (q, _) in found.items()},
        "estimator": _options(next(iter(found.values()))[1].estimator),
    }


def head_to_dict(head: Head) -> dict[str, Any]:
    """A head by its name and options.

    >>> from dubito.heads import SoftplusHead
    >>> head_to_dict(SoftplusHead(beta=2.0))
    {'name': 'softplus', 'beta': 2.0}
    """
    return _options(head)


def head_from(content: Mapping[str, Any]) -> Head:
    """The head that :func:`head_to_dict` described."""
    options = dict(content)
    name = options.pop("name")
    if name not in HEADS:
        raise RunError(f"the network has the head {name!r}, which dubito does not know: attach it to the instance")
    return HEADS[name](**options)


def _options(thing: Head | Estimator) -> dict[str, Any]:
    return {"name": thing.name, **(asdict(thing) if is_dataclass(thing) else {})}


def _posterior(q: Posterior) -> dict[str, Any]:
    return {
        "family": q.name,
        "initial_std": q.initial_std,
        "prior": type(q.prior).__name__,
        "given_prior": _given_prior(q._given_prior[0]),
    }


def _given_prior(given: float | str | Prior) -> Any:
    """A prior as it was given: a number, a name, or a class with numbers; None stands for the prior as it is bound."""
    if not isinstance(given, Prior):
        return given
    attributes = {"FanInPrior": ("gain",), "EmpiricalPrior": ("std",), "ScaleMixturePrior": ("pi", "std_1", "std_2")}
    kind = type(given).__name__
    if type(given) is not KNOWN_PRIORS.get(kind) or kind == "GaussianPrior":
        return None
    values = {name: getattr(given, name) for name in attributes.get(kind, ())}
    return {"name": kind, **{name: None if v is None else float(v) for name, v in values.items()}}


def restructure(network: nn.Module, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """`network` itself made to fit what :func:`structure` found, ready for the state dict `tensors`.

    Parameters without a posterior get one; those that have one keep it if it is of the same family. A RunError says
    what does not fit. A network that is a single layer may become another, so use what is returned.
    """
    network = _with_posteriors(network, content)
    found = posteriors(network)
    surplus = [name for name in found if name not in content["posteriors"]]
    if surplus:
        raise RunError(f"{surplus[0]} of the instance is a posterior, but that parameter had none when it was saved")
    for name, described in content["posteriors"].items():
        if name not in found:
            raise RunError(f"the instance has no parameter for the posterior {name}")
        _restore_posterior(found[name], name, described, tensors)
    for name, drawing in content["drawing"].items():
        for _, part in drawn_parameters(_part(network, name)).values():
            part.estimator = _estimator(drawing["estimator"], part.estimator)
    _restore_roles(network, content)
    return network


def _part(network: nn.Module, name: str) -> nn.Module:
    try:
        return network.get_submodule(name)
    except AttributeError:
        raise RunError(f"the instance ({type(network).__name__}) has no module {name!r}") from None


def _with_posteriors(network: nn.Module, content: Mapping[str, Any]) -> nn.Module:
    """Convert what had posteriors and has none, a group of equal options at a time."""
    groups: list[tuple[dict[str, Any], dict[str, list[str]]]] = []
    for name, drawing in content["drawing"].items():
        part, wanted = _part(network, name), drawing["parameters"]
        missing = [parameter for parameter in wanted if parameter not in drawn_parameters(part)]
        if not missing or isinstance(part, BayesLayer):
            continue
        absent = [p for p in missing if not isinstance(part._parameters.get(p), Tensor)]
        if absent:
            raise RunError(f"{name or 'the instance'} ({type(part).__name__}) has no parameter {absent[0]!r}")
        options = _layer_options(drawing, content["posteriors"])
        same = next((places for known, places in groups if known == options), None)
        if same is None:
            groups.append((options, same := {}))
        same[name] = missing
    for options, places in groups:
        described = dict(options)
        given = {"posterior": FAMILIES[described["posterior"]], "prior": _make_prior(described["prior"])}
        estimator = _estimator(described["estimator"], None)
        network = give_posteriors(network, places, {**described, **given, "estimator": estimator})  # type: ignore[typeddict-item]
    return network


def _layer_options(drawing: Mapping[str, Any], described: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a layer, as far as JSON tells them."""
    parameters = drawing["parameters"]
    first = described[next(iter(parameters.values()))]
    if first["family"] not in FAMILIES:
        raise RunError(
            f"its posteriors are of the family {first['family']!r}, which dubito does not know: give an instance that "
            "is converted already"
        )
    return {
        "posterior": first["family"],
        "initial_std": _number(first["initial_std"]),
        "prior": first["given_prior"],
        "estimator": drawing["estimator"],
        "bayesian_bias": "bias" in parameters,
    }


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{value!r} is not a standard deviation")
    return float(value)


def _make_prior(given: Any) -> float | str | Prior:
    if given is None:
        return "standard"  # until the bound one is put in its place
    if not isinstance(given, dict):
        return float(given) if isinstance(given, (int, float)) else str(given)
    options = dict(given)
    return KNOWN_PRIORS[options.pop("name")](**options)


def _estimator(described: Mapping[str, Any], own: Estimator | None) -> Estimator:
    options = dict(described)
    name = options.pop("name")
    if name in ESTIMATORS:
        return make_estimator(name, **options)
    if own is not None and own.name == name:
        return own
    raise RunError(f"it has the estimator {name!r}, which dubito does not know: give an instance that has it")


def _restore_posterior(q: Posterior, name: str, described: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    if q.name != described["family"]:
        raise RunError(f"{name} is of the family {described['family']!r}, but that of the instance is {q.name!r}")
    q.initial_std = _number(described["initial_std"])
    kind = described["prior"]
    if kind in KNOWN_PRIORS:
        q.prior = _bound_prior(kind, f"{name}.prior.", tensors)
    elif type(q.prior).__name__ != kind:
        raise RunError(f"{name} has the prior {kind}, which dubito does not know: give an instance that has it")
    given = described["given_prior"]
    q._given_prior = (q.prior if given is None else _make_prior(given),)


def _bound_prior(kind: str, prefix: str, tensors: Mapping[str, Tensor]) -> Prior:
    prior = KNOWN_PRIORS[kind]()
    for name, _ in list(prior.named_buffers()):
        prior.register_buffer(name, torch.empty_like(tensors[prefix + name]))
    return prior


def _restore_roles(network: nn.Module, content: Mapping[str, Any]) -> None:
    for name, described in content["heads"].items():
        part = _part(network, name)
        own = getattr(part, "probability_head", None)
        if described["name"] not in HEADS and own is not None and own.name == described["name"]:
            continue
        attach_head(part, head_from(described))
    for name, part in network.named_modules():
        if bool(getattr(part, "draws_dropout", False)) != (name in content["draws_dropout"]):
            part.draws_dropout = name in content["draws_dropout"]
    for name in content["passes"]:
        begin_passes(_part(network, name))
    for name, parameter in network.named_parameters():
        if parameter.is_floating_point() or parameter.is_complex():
            parameter.requires_grad_(name not in content["frozen"])
