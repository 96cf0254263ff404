"""The whole state of any torch optimiser as tensors and JSON, for checkpoints that nothing has to unpickle.

`Optimizer.state_dict()` is made of dictionaries, lists, tuples, numbers, texts and tensors. `pack_state` gives the
tensors by name, and the rest as JSON in which each tensor is a reference to its name. Dictionaries may have numbers as
keys and tuples must stay tuples, so both are marked: ``{"dict": [[key, value], ...]}``, ``{"tuple": [...]}``,
``{"tensor": name, "shape": [...], "dtype": ...}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dubito.errors import RunError

__all__ = ["PREFIX", "pack_state", "restore_state"]

PREFIX = "optimizer."
"""The prefix of the optimiser's tensors in a checkpoint."""


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
    structure = _packed(optimizer.state_dict(), PREFIX.rstrip("."), tensors)
    return tensors, {"parameters": _parameters(optimizer, network), "structure": structure}


def restore_state(
    optimizer: Optimizer, network: nn.Module, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]
) -> None:
    """Give an optimiser the state that `pack_state` has kept; a RunError says what does not fit."""
    try:
        parameters, structure = notes["parameters"], notes["structure"]
        own = {name: tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
        if parameters != _parameters(optimizer, network):
            raise ValueError("it belongs to other parameters")
        state = _unpacked(structure, own)
        if own:
            raise ValueError(f"it has the unknown tensor {next(iter(own))}")
        _check(state, optimizer)
        optimizer.load_state_dict(state)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise RunError(f"The checkpoint's optimiser state does not fit this training: {reason}.") from None


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


def _check(state: Any, optimizer: Optimizer) -> None:
    """Compare groups and shapes with the optimiser's own; torch checks neither before it computes with them."""
    fresh = optimizer.state_dict()["param_groups"]
    for found, expected in zip(state["param_groups"], fresh, strict=True):
        if found.keys() != expected.keys() or found["params"] != expected["params"]:
            raise ValueError("its groups of parameters are others")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameters[index].shape:
                raise ValueError(f"{name} of parameter {index} has the shape {tuple(value.shape)}")
