"""`dubito.save`: any network as a folder that :func:`dubito.load` opens."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from dubito.convert.structure import head_to_dict, structure
from dubito.errors import OptionError
from dubito.files import refuse_existing, write_atomically
from dubito.models.ensemble import Ensemble
from dubito.models.recipe import recipe
from dubito.runs.attached import data_of, describe_data
from dubito.runs.description import DataDescription
from dubito.saving.tensors import pack_tensors

DESCRIPTION = "network.json"
TENSORS = "network.safetensors"
FITTED = ("novelty.safetensors", "decision.json")
"""What was fitted for the network, where it was; called as in a run folder."""
VERSION = 1


class Fitted(Protocol):
    """What a :class:`dubito.Predictor` tells of what was fitted for it."""

    temperature: float | None

    def fitted_files(self) -> Mapping[str, bytes]:
        """Files by their names: the novelty and the rule, where there are any."""


def save(
    model: nn.Module,
    folder: str | os.PathLike[str],
    data: DataDescription | None = None,
    *,
    predictor: Fitted | None = None,
    overwrite: bool = False,
    **fields: Any,
) -> Path:
    """Save any network, converted or not, in a folder: its tensors as safetensors, everything else as JSON.

    Kept are the head, which parameters have posteriors, of which family, with which prior and estimator, what is
    frozen, MC dropout, members of an ensemble, and what the images are like. :func:`dubito.load` gives it back.

    Args:
        model: the network.
        folder: where; it is made, and must be empty unless `overwrite`.
        data: what its images are like; None for the description that the network carries, if any.
        predictor: a :class:`dubito.Predictor` of the network. Its novelty, its rule for decisions and its calibration,
            where it has them, are kept too, and ``Predictor(folder)`` has them again.
        overwrite: replace a network that was saved there before.
        fields: the description by its fields, such as `class_names`, `size`, `mean` and `std`: see
            :func:`dubito.attach_data`.

    >>> import tempfile
    >>> import torch, dubito
    >>> network = dubito.to_bayesian(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), head="softmax")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = save(network, folder, class_names=["cat", "dog"], size=2)
    ...     again = dubito.load(place, into=nn.Sequential(nn.Flatten(), nn.Linear(12, 2)))
    >>> image = torch.randn(1, 3, 2, 2)
    >>> torch.equal(dubito.predict(again, image).probs, dubito.predict(network, image).probs)
    True
    """
    place = Path(folder)
    if not isinstance(model, nn.Module):
        raise OptionError(f"model is a {type(model).__name__}, but must be a module.")
    if data is not None and fields:
        raise OptionError(f"data is a whole description already, so leave out {', '.join(fields)}.")
    described = data or (describe_data(model, **fields) if fields else data_of(model))
    if overwrite:
        (place / DESCRIPTION).unlink(missing_ok=True)  # while it is written, the folder holds no network
        for name in FITTED:
            (place / name).unlink(missing_ok=True)
    else:
        refuse_existing(place, "choose another folder, or give overwrite=True")
    content: dict[str, Any] = {"format": "dubito network", "version": VERSION, "class": type(model).__name__}
    if isinstance(model, Ensemble):
        content["members"] = [head_to_dict(head) for head in model.heads]
        content["draws_dropout"] = bool(getattr(model, "draws_dropout", False))
        for number, member in enumerate(model.members):
            save(member, place / member_folder(number), overwrite=overwrite)
    else:
        tensors, notes = pack_tensors(model)
        content |= {"built_as": recipe(model), "structure": structure(model), "tensors": notes}
        write_atomically(place / TENSORS, tensors)
    content["data"] = None if described is None else asdict(described)
    content["temperature"] = None if predictor is None else predictor.temperature
    for name, file in ({} if predictor is None else predictor.fitted_files()).items():
        write_atomically(place / name, file)
    # Last, so that a folder with a description is whole.
    write_atomically(place / DESCRIPTION, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return place


def member_folder(number: int) -> str:
    """The folder of a member of an ensemble."""
    return f"member{number}"
