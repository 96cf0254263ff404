"""`dubito.load`: the network of a folder, be it a run or a saved network.

A folder may come from anybody. Its tensors are safetensors and the rest is JSON, which only says what to build from
dubito's own parts; their shapes are compared before memory is taken. Only a network that a function of some package
builds asks for trust, for that function is run.
"""

from __future__ import annotations

import hashlib
import os
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dubito.convert.structure import head_from, restructure
from dubito.errors import DubitoError, OptionError, RunError
from dubito.foreign import FAULTS, digest_of, read_json, reading, reason_of
from dubito.models import build
from dubito.models.ensemble import Ensemble, ensemble
from dubito.models.recipe import build_again
from dubito.models.trust import trusting
from dubito.runs.attached import attach_data
from dubito.runs.description import DataDescription
from dubito.runs.run import Run
from dubito.saving.saved import DESCRIPTION, TENSORS, VERSION, member_folder
from dubito.saving.tensors import read_tensors, unpack_tensors
from dubito.zoo import find

DEPTH = 8
"""Ensembles of ensembles, at most."""
Into = nn.Module | Sequence[nn.Module | None] | None


def load(
    path: str | os.PathLike[str], checkpoint: str = "best", *, into: Into = None, trust: bool = False
) -> nn.Module:
    """The network of a run folder, or of a folder that :func:`dubito.save` made, in evaluation mode.

    Args:
        path: the folder, or ``zoo:NAME`` for a trained network that comes with dubito.
        checkpoint: of a run: ``best``, the epoch with the lowest validation NLL, or ``last``.
        into: a network to load into, needed if :func:`dubito.models.build` did not build the saved one. A plain network
            is converted as the saved one was; a converted one must have the same posteriors. It is changed and
            returned. For an ensemble give a list of its members, with None for those that are built by name.
        trust: run the function that builds the network, if it was built as ``package.module:function``. Without it
            that is an error, unless you have trained with that function on this machine.

    >>> import tempfile
    >>> import dubito
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = dubito.save(dubito.models.build("lenet5", in_channels=1), folder)
    ...     type(load(place)).__name__
    'Network'
    """
    folder = find(path)
    if is_saved(folder):
        with trusting(trust):
            return read_network(folder, into)
    if into is not None:
        raise OptionError(f"{folder} is not a saved network, so into= cannot be used with it.")
    if folder.is_dir() and not (folder / "config.yaml").exists():
        raise RunError(
            f"{folder} is neither a run (it has no config.yaml) nor a saved network (it has no {DESCRIPTION})."
        )
    with trusting(trust):
        return Run.open(folder).load(checkpoint)


def open_folder(path: str | os.PathLike[str] | Run, checkpoint: str = "best") -> tuple[nn.Module, Run | Path]:
    """The network of a run or of a saved network's folder; with the run, or with that folder."""
    if isinstance(path, Run):
        return path.load(checkpoint), path
    folder = find(path)
    if not is_saved(folder):
        run = Run.open(folder)
        return run.load(checkpoint), run
    if checkpoint != "best":
        raise OptionError(
            f"checkpoint is {checkpoint!r}, but {folder} is a saved network, which has only one set of weights."
        )
    return read_network(folder), folder


def is_saved(folder: Path) -> bool:
    """Whether a folder is one that :func:`dubito.save` made; a run may have a file of the same name."""
    return (folder / DESCRIPTION).is_file() and not (folder / "config.yaml").exists()


def saved_fingerprint(folder: Path) -> str:
    """Tells whether saved networks are the same: the SHA-256 of all their files."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.suffix in (".json", ".safetensors"):
            with reading(file, "save the network again"):
                digest.update(bytes.fromhex(digest_of(file)))
    return digest.hexdigest()


def saved_temperature(folder: Path) -> float | None:
    """The temperature that calibrates a saved network, if its predictor was saved with it."""
    found = _read_description(folder).get("temperature")
    return float(found) if isinstance(found, (int, float)) else None


def read_network(folder: Path, into: Into = None, depth: int = 0) -> nn.Module:
    """The network that was saved in this folder."""
    content = _read_description(folder)
    if depth > DEPTH:
        raise RunError(f"{folder} is an ensemble inside {DEPTH} others, which is too deep.")
    try:
        if "members" in content:
            network: nn.Module = _read_ensemble(folder, content, into, depth)
        else:
            if isinstance(into, Sequence):
                raise RunError("it is a single network, so give one instance and no list")
            network = _read_single(folder, content, into)
        if content["data"] is not None:
            attach_data(network, DataDescription.of(content["data"]))
    except RunError as error:
        raise error if str(folder) in str(error) else _refusal(folder, content, error) from None
    except DubitoError as error:
        raise RunError(f"{folder} cannot be loaded: {error}") from None
    except FAULTS as error:
        raise RunError(f"{folder / DESCRIPTION} is damaged ({reason_of(error)}).") from error
    return network.eval()


def _read_description(folder: Path) -> dict[str, Any]:
    file = folder / DESCRIPTION
    try:
        content = read_json(file)
    except FileNotFoundError:
        raise RunError(f"{folder} is not a saved network: it has no {DESCRIPTION}.") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read ({reason_of(error)}).") from None
    if not isinstance(content, dict) or content.get("format") != "dubito network":
        raise RunError(f"{file} does not describe a network that dubito saved.")
    if content.get("version") != VERSION:
        raise RunError(
            f"{folder} was saved in version {reprlib.repr(content.get('version'))} of the format, but this dubito "
            f"reads {VERSION}."
        )
    return content


def _refusal(folder: Path, content: Mapping[str, Any], error: RunError) -> RunError:
    kind = content.get("class")
    known = isinstance(kind, str) and kind.isidentifier() and len(kind) < 100
    return RunError(f"{folder} ({kind if known else 'network'}) cannot be loaded: {reason_of(error)}.")


def _read_ensemble(folder: Path, content: Mapping[str, Any], into: Into, depth: int) -> Ensemble:
    heads = [head_from(head) for head in content["members"]]
    given: list[nn.Module | None] = [None] * len(heads)
    if into is not None:
        given = list(into.members) if isinstance(into, Ensemble) else list(into) if isinstance(into, Sequence) else []
        if len(given) != len(heads):
            raise RunError(f"it is an ensemble of {len(heads)} networks, so give as many instances in a list")
    members = [
        read_network(folder / member_folder(number), instance, depth + 1) for number, instance in enumerate(given)
    ]
    bare = any(getattr(member, "probability_head", None) is None for member in members)
    network = ensemble(members, head=heads[0] if bare else None)
    network.heads = tuple(heads)
    if content["draws_dropout"]:
        network.draws_dropout = True  # type: ignore[assignment]
    return network


def _read_single(folder: Path, content: Mapping[str, Any], into: nn.Module | None) -> nn.Module:
    tensors = unpack_tensors(read_tensors(folder / TENSORS), content["tensors"])
    if into is not None:
        return _fill(restructure(into, content["structure"], tensors), tensors)
    recipe = content["built_as"]
    if recipe is None:
        raise RunError("dubito cannot build a network of this class: give an instance, load(folder, into=...)")
    with torch.random.fork_rng(devices=[]):
        if not recipe["name"].startswith("hf:"):  # whose builder reads values
            with torch.device("meta"):
                hollow = restructure(build_again(build, recipe), content["structure"], tensors)
            _require_fit(hollow, tensors)
            if not content["tensors"]["tied"] and not _has_other_buffers(hollow):
                hollow.load_state_dict(tensors, assign=True)
                return _restore_frozen(hollow, content)
        network = build_again(build, recipe)
    return _fill(restructure(network, content["structure"], tensors), tensors)


def _has_other_buffers(network: nn.Module) -> bool:
    """Whether the network has buffers that are not in its state, so that they must be computed."""
    return any(part._non_persistent_buffers_set for part in network.modules())


def _restore_frozen(network: nn.Module, content: Mapping[str, Any]) -> nn.Module:
    frozen = set(content["structure"]["frozen"])
    for name, parameter in network.named_parameters():
        if parameter.is_floating_point() or parameter.is_complex():
            parameter.requires_grad_(name not in frozen)
    return network


def _fill(network: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """Copy the tensors into the network, in the types that they were saved in; tied ones stay tied."""
    _require_fit(network, tensors)
    with torch.no_grad():
        for name, own in network.state_dict(keep_vars=True).items():
            if own.dtype != tensors[name].dtype:
                own.data = own.data.to(tensors[name].dtype)
    network.load_state_dict(tensors)
    return network


def _require_fit(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """A RunError that names what the network lacks, has too much, or has in another shape."""
    own = network.state_dict()
    odd = [name for name, value in own.items() if not isinstance(value, Tensor)]
    missing, surplus = [n for n in own if n not in tensors], [n for n in tensors if n not in own]
    shapes = [n for n in own if n in tensors and n not in odd and own[n].shape != tensors[n].shape]
    kinds = [n for n in own if n in tensors and n not in odd and not _is_alike(own[n], tensors[n])]
    if odd:
        raise RunError(f"{odd[0]} of the instance is a {type(own[odd[0]]).__name__} and no tensor")
    if surplus or missing:
        parts = [f"the folder lacks {_some(missing)}"] if missing else []
        parts += [f"the instance has no {_some(surplus)}"] if surplus else []
        raise RunError(" and ".join(parts))
    if shapes:
        name = shapes[0]
        raise RunError(
            f"{name} was saved with shape {tuple(tensors[name].shape)}, but has {tuple(own[name].shape)} in the "
            f"instance{f'; so have {len(shapes) - 1} more' if len(shapes) > 1 else ''}"
        )

    if kinds:
        raise RunError(f"{kinds[0]} was saved as {tensors[kinds[0]].dtype}, but must be {own[kinds[0]].dtype}")
    spoilt = [name for name, _ in network.named_parameters() if not bool(tensors[name].isfinite().all())]
    if spoilt:
        raise RunError(f"{spoilt[0]} has values that are not finite")


def _is_alike(own: Tensor, saved: Tensor) -> bool:
    """Whether a tensor may take the place of another: both are of the same type, or floating point in a usual one."""
    usual = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return own.dtype == saved.dtype or (own.dtype in usual and saved.dtype in usual)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
