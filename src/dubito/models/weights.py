"""Weights that a training starts from: a .safetensors file, a plain state dict of torch, or a run folder.

Prefixes that wrappers leave (``module.``) and outer dictionaries (``{"state_dict": ...}``) are taken away. Of a
Bayesian network the posterior means are taken. Nothing is unpickled but tensors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dubito.errors import DataError, OptionError
from dubito.foreign import FAULTS, parse_json, read_tensors, reason_of
from dubito.zoo import find

SHOWN = 10
"""How many names of a kind a message lists."""
LONGEST = 100
"""Letters of a name that a message shows."""

OUTER = ("state_dict", "model_state_dict", "model", "net", "network", "weights")
"""Keys under which checkpoints keep a state dict."""

DEEPEST = 8
"""Dictionaries in each other around a state dict; one may even hold itself."""

PREFIXES = ("module.", "_orig_mod.", "network.", "model.")
"""What wrappers put before every name."""

MEANS = (
    (re.compile(r"(^|\.)posteriors\.(weight|bias)\.mean$"), r"\1\2"),
    (re.compile(r"(^|\.)parametrizations\.(\w+)\.0\.posterior\.mean$"), r"\1\2"),
    (re.compile(r"(^|\.)point_bias$"), r"\1bias"),
)
"""Names of posterior means, and those of the weights that they are the means of."""

OBJECT = re.compile(r"GLOBAL (\S+)")
"""What torch names if a file holds more than tensors."""

DRAWN = re.compile(r"(^|\.)(posteriors\.(weight|bias)|parametrizations\.\w+\.0\.posterior)\.")


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a file or run folder by their names in a plain network."""
    if not os.fspath(path):
        raise OptionError("init is empty, but must be a file of weights, a run folder, zoo:NAME or none.")
    file = find(path).expanduser()
    if file.is_dir():
        file = _in_folder(file)
    if not file.is_file():
        raise DataError(f"init is {path}, but there is no such file or run folder.")
    tensors = _read_safetensors(file) if file.suffix == ".safetensors" else _read_torch(file)
    return _plain(_without_prefixes(tensors))


def load_weights(
    network: nn.Module, tensors: Mapping[str, Tensor], source: str = "the file", classifier: str | None = None
) -> list[str]:
    """Load tensors into a plain network of the same names and shapes; returns the names that were not loaded.

    These can only belong to the `classifier`, the layer that makes the logits, if the tensors have nothing for it or
    another number of classes. Any other difference is an error that lists what is missing, unexpected or of the wrong
    shape, name by name.

    >>> network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 10))
    >>> trained = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).state_dict()
    >>> load_weights(network, trained, classifier="1")
    ['1.weight', '1.bias']
    """
    own = network.state_dict()
    given = _renamed(tensors, own)
    last = [name for name in own if classifier is not None and name.rpartition(".")[0] == classifier]
    missing = [name for name in own if name not in given and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in given if name not in own]
    reshaped = [name for name in own if name in given and own[name].shape != given[name].shape]
    fresh = [name for name in last if name in missing or name in reshaped]
    lines = [
        _listed("missing", [name for name in missing if name not in fresh]),
        _listed("unexpected", unexpected),
        _listed(
            "of another shape",
            [
                f"{name} {tuple(given[name].shape)} instead of {tuple(own[name].shape)}"
                for name in reshaped
                if name not in fresh
            ],
        ),
    ]
    odd = [name for name in own if name in given and name not in reshaped and not _is_alike(given[name], own[name])]
    lines.append(_listed("of another type, or not finite", odd))
    if any(lines):
        raise DataError(f"The weights of {source} do not fit the network: {'; '.join(line for line in lines if line)}.")
    fitting = {name: tensor for name, tensor in given.items() if name not in fresh}
    network.load_state_dict(fitting, strict=False)
    return fresh


def _is_alike(given: Tensor, own: Tensor) -> bool:
    """Whether a tensor may be copied into another one: both whole or both floating point, and finite."""
    if given.layout is not torch.strided or given.is_meta or given.is_complex():
        return False
    return given.is_floating_point() == own.is_floating_point() and bool(given.float().isfinite().all())


def _listed(what: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} {what} ({', '.join(name[:LONGEST] for name in names[:SHOWN])}{more})"


def _in_folder(folder: Path) -> Path:
    """The file of weights in a run folder, or in one of Hugging Face."""
    for name in ("best.safetensors", "last.safetensors", "model.safetensors"):
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"init is {folder}, but that folder has no best.safetensors, so it is not a trained run.")


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from dubito.convert import unpack

    def wanted(names: list[str]) -> list[str]:  # of a run's file, which has the state of its optimiser beside
        return [name for name in names if name.startswith("network.")] or names

    try:
        tensors, text = read_tensors(file, wanted=wanted)
        return unpack(tensors, parse_json(text or "{}").get("pruned", {}))
    except FAULTS as error:
        raise DataError(f"init is {file}, which cannot be read: {reason_of(error)}.") from None


def _read_torch(file: Path) -> dict[str, Tensor]:
    try:
        content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        # Torch raises errors of many types, among them UnpicklingError for whatever is no tensor; what it advises then,
        # to load the file with weights_only=False, is not safe.
        found = OBJECT.search(str(error))
        what = f"holds an object of {found[1]}" if found else "is no file of torch.save, or a damaged one"
        raise DataError(
            f"init is {file}, which {what}: it must contain only tensors, as torch.save(network.state_dict(), file) "
            "writes them."
        ) from None
    for _ in range(DEEPEST):
        if not isinstance(content, Mapping):
            break
        tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
        inner = next((content[key] for key in OUTER if isinstance(content.get(key), Mapping)), None)
        if inner is None and tensors:
            return tensors
        content = inner
    raise DataError(f"init is {file}, but there is no state dict in it.")


def _without_prefixes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without a prefix that all their names share."""
    for prefix in PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors):
            return _without_prefixes({name.removeprefix(prefix): tensor for name, tensor in tensors.items()})
    return tensors


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the plain network: of each posterior the mean."""
    plain = {}
    for name, tensor in tensors.items():
        for pattern, place in MEANS:
            name = pattern.sub(place, name)
        if not DRAWN.search(name):
            plain[name] = tensor
    return plain


def _renamed(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the names of a network whose own share a prefix."""
    prefix = "model."
    wrapped = bool(own) and all(name.startswith(prefix) for name in own)
    return {(prefix + name if wrapped and name not in own else name): tensor for name, tensor in tensors.items()}
