"""The whole state of any torch optimiser as tensors and JSON, for checkpoints that nothing has to unpickle.

`Optimizer.state_dict()` is made of dictionaries, lists, tuples, numbers, texts and tensors. `pack_state` gives the
tensors by name, and the rest as JSON in which each tensor is a reference to its name. Dictionaries may have numbers as
keys and tuples must stay tuples, so both are marked: ``{"dict": [[key, value], ...]}``, ``{"tuple": [...]}``,
``{"tensor": name, "shape": [...], "dtype": ...}``.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dubito.errors import RunError
from dubito.foreign import FAULTS, reason_of

PREFIX = "optimizer."
"""The prefix of the optimiser's tensors in a checkpoint."""
POSITIVE = ("step", "initial_variance")
NEVER_NEGATIVE = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "exp_inf")
"""Values of optimisers that are divided by or whose roots are taken."""


def pack_state(optimizer: Optimizer, network: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of an optimiser's state, by name, and everything else as a JSON object.

    >>> import torch
    >>> network = nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    >>> network(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    >>> sorted(pack_state(optimizer, network)[0])
    ['optimizer.state.0.momentum_buffer', 'optimizer.state.1.momentum_buffer']
    """
    tensors: dict[str, Tensor] = {}
    state = optimizer.state_dict()
    structure = _packed(state, PREFIX.rstrip("."), tensors)
    count = sum(len(group["params"]) for group in optimizer.param_groups)
    stateless = [index for index in range(count) if index not in state["state"]]
    return tensors, {
        **{"parameters": _parameters(optimizer, network), "structure": structure},
        "stateless": stateless,  # frozen parameters, and those that have no gradient
    }


def restore_state(
    optimizer: Optimizer, network: nn.Module, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]
) -> None:
    """Give an optimiser the state that `pack_state` has kept; a RunError says what does not fit.

    Everything is compared with what the optimiser itself makes in a step before anything is loaded. Its options stay
    those that it has; the learning rate and what else changes in a training are restored.
    """
    try:
        parameters, structure = notes["parameters"], notes["structure"]
        own = {name: tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
        if parameters != _parameters(optimizer, network):
            raise ValueError("it belongs to other parameters")
        state = _unpacked(structure, own)
        if own:
            raise ValueError(f"it has the unknown tensor {next(iter(own))}")
        fresh = optimizer.state_dict()["param_groups"]
        expected = _after_a_step(optimizer)
        groups = _with_progress(state["param_groups"], fresh, expected["param_groups"])
        _check(state["state"], expected["state"], notes.get("stateless"))
        optimizer.load_state_dict({"state": state["state"], "param_groups": groups})
    except FAULTS as error:
        raise RunError(f"The checkpoint's optimiser state does not fit this training: {reason_of(error)}.") from error


def _parameters(optimizer: Optimizer, network: nn.Module) -> list[list[Any]]:
    """Name, shape and type of every parameter in the optimiser's order."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    return [
        [names[id(parameter)], list(parameter.shape), str(parameter.dtype)]
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]


def _packed(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name, "shape": list(value.shape), "dtype": str(value.dtype)}
    if isinstance(value, Mapping):
        return {"dict": [[key, _packed(inner, f"{name}.{key}", tensors)] for key, inner in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [_packed(inner, f"{name}.{index}", tensors) for index, inner in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise RunError(f"The optimiser's state has a {type(value).__name__} at {name}, which a checkpoint cannot hold.")


def _unpacked(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `_packed`; each tensor is taken out of `tensors`."""
    if isinstance(value, list):
        return [_unpacked(inner, tensors) for inner in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(_unpacked(inner, tensors) for inner in value["tuple"])
    if "dict" in value:
        return {key: _unpacked(inner, tensors) for key, inner in value["dict"]}
    tensor = tensors.pop(value["tensor"])
    if list(tensor.shape) != value["shape"] or str(tensor.dtype) != value["dtype"]:
        raise ValueError(f"{value['tensor']} is {tensor.dtype} {tuple(tensor.shape)}, not {value['dtype']}")
    return tensor


def _after_a_step(optimizer: Optimizer) -> dict[str, Any]:
    """The state that the optimiser has after a step with gradients of zero, which tells what a checkpoint must have.

    Parameters and gradients are as before afterwards.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    before = [(parameter.detach().clone(), parameter.grad) for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        optimizer.step()
        return optimizer.state_dict()
    finally:
        with torch.no_grad():
            for parameter, (value, gradient) in zip(parameters, before, strict=True):
                parameter.copy_(value)
                parameter.grad = gradient


def _with_progress(found: Any, fresh: list[dict[str, Any]], stepped: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The optimiser's own groups, with what changes in a training as the checkpoint has it."""
    groups = []
    for stored, own, later in zip(found, fresh, stepped, strict=True):
        if stored.keys() != own.keys() or stored["params"] != own["params"]:
            raise ValueError("its groups of parameters are others")
        changing = [name for name in own if name == "lr" or own[name] != later[name]]
        for name in changing:
            _check_value(name, stored[name], later[name])
        groups.append({**own, **{name: stored[name] for name in changing}})
    return groups


def _check(state: Any, expected: Mapping[int, Mapping[str, Any]], stateless: Sequence[int] | None) -> None:
    """Compare the state of every parameter with what the optimiser makes; torch checks nothing before it computes."""
    missing = expected.keys() - state.keys() - set(stateless or ())
    if expected and (not state or (missing and stateless is not None)):
        raise ValueError(f"it has nothing for parameter {min(missing or expected)}")
    for index, values in state.items():
        if index not in expected or values.keys() != expected[index].keys():
            raise ValueError(f"it has other values for parameter {index!r} than the optimiser")
        for name, value in values.items():
            _check_value(name, value, expected[index][name], f" of parameter {index}")


def _check_value(name: str, value: Any, expected: Any, owner: str = "") -> None:
    """A ValueError unless a value has the type, shape and dtype that is expected, is finite and of a fitting sign."""
    if type(value) is not type(expected):
        raise ValueError(f"{name}{owner} is a {type(value).__name__}, not a {type(expected).__name__}")
    if isinstance(value, Tensor):
        if value.shape != expected.shape or value.dtype != expected.dtype:
            raise ValueError(
                f"{name}{owner} is {value.dtype} {tuple(value.shape)}, not {expected.dtype} {tuple(expected.shape)}"
            )
    elif not isinstance(value, (int, float)):
        if value != expected:
            raise ValueError(f"{name}{owner} is {reprlib.repr(value)}")
        return
    numbers = value if isinstance(value, Tensor) else torch.tensor(float(value))
    if not bool(numbers.isfinite().all()):
        raise ValueError(f"{name}{owner} has values that are not finite")
    if (name in POSITIVE and not bool((numbers > 0).all())) or (name in NEVER_NEGATIVE and bool((numbers < 0).any())):
        raise ValueError(f"{name}{owner} has values that are too small")
