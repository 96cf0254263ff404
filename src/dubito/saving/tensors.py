"""The tensors of a network as one safetensors file: tied ones once, pruned ones packed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dubito import foreign
from dubito.convert.pruning import pack, unpack
from dubito.errors import OptionError, RunError
from dubito.foreign import reading


def pack_tensors(network: nn.Module) -> tuple[bytes, dict[str, Any]]:
    """A safetensors file with the network's state, and what is needed to unpack it.

    >>> tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> tied[1].weight = tied[0].weight
    >>> pack_tensors(tied)[1]
    {'tied': {'1.weight': '0.weight'}, 'pruned': {}}
    """
    from safetensors.torch import save

    first: dict[tuple[Any, ...], str] = {}
    own: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    for name, value in network.state_dict().items():
        tensor = _storable(name, value)
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) if tensor.numel() else (name,)
        if key in first:
            tied[name] = first[key]
        else:
            first[key] = name
            own[name] = tensor
    packed, pruned = pack({name: tensor.detach().cpu() for name, tensor in own.items()})
    # Two tensors may be views of one memory, which a file has no word for.
    whole = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in packed.items()}
    return save(whole), {"tied": tied, "pruned": pruned}


def _storable(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise OptionError(f"{name} of the network is a {type(value).__name__}, but only tensors can be saved.")
    if is_lazy(value):
        raise OptionError(f"{name} of the network has no values yet: pass one batch through the network first.")
    if value.is_meta or value.layout is not torch.strided or value.is_quantized:
        what = "on the meta device" if value.is_meta else f"of layout {value.layout} and type {value.dtype}"
        raise OptionError(f"{name} of the network is {what}, but only ordinary tensors can be saved.")
    return value


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    if not file.exists():
        raise RunError(f"{file.parent} has no {file.name}, so it is not whole: save the network again.")
    if not os.access(file, os.R_OK):
        raise RunError(f"{file} cannot be read: its permissions do not allow it.")
    with reading(file, "save the network again"):
        # Copies begin where torch likes its memory to begin, so that sums are rounded as they were.
        return {name: tensor.clone() for name, tensor in foreign.read_tensors(file)[0].items()}


def unpack_tensors(tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state dict that :func:`pack_tensors` packed."""
    whole = unpack(tensors, notes["pruned"])
    return whole | {name: whole[first] for name, first in notes["tied"].items()}
