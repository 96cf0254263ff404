"""Evaluations as files: what is kept of them, and reading it again.

    evaluation.safetensors   predictions and labels, and of test and validation images the probabilities of each draw;
                             with them all that evaluation.json says
    evaluation.json          metrics, settings, and what the tensors belong to: for people and other programs

The first file is whole in itself and the only one that is read again, so that a process may end between the two.

The draws take 4 bytes a number: with 10 draws, 4 MB for 10,000 images of 10 classes and 40 MB for 100 classes.
They are kept so that intervals of later comparisons cover the draws. Images are read again from their data sets.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import reprlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dubito.class_names import check_class_names
from dubito.data import Dataset
from dubito.errors import DubitoWarning, RunError
from dubito.evaluation.images import images_again
from dubito.evaluation.noise import NoiseLevel
from dubito.evaluation.predictions import Evaluated
from dubito.files import write_atomically
from dubito.foreign import parse_json, read_tensors, read_text, reading
from dubito.runs.run import Run
from dubito.runs.validation import check_labels, stored_prediction
from dubito.zoo import refuse_to_change

FILE = "evaluation"
"""The name of both files, without suffix."""
_STORED = ("probs", "aleatoric_per_class", "epistemic_per_class", "entropy", "mutual_information")
_OPTIONAL = ("epistemic_unbiased_per_class", "novelty")
"""Not in every prediction."""
MOST = {"samples": 100_000, "bootstrap": 1_000_000, "batch_size": 2**20}
"""What settings are at most that another evaluation is made with."""


def write(folder: str | os.PathLike[str], fields: Mapping[str, Any]) -> None:
    """Write the fields of an evaluation into `folder`: atomically, for what is read again is one file."""
    from safetensors.torch import save

    folder = Path(folder)
    refuse_to_change(folder)
    parts: dict[str, Evaluated] = {"test": fields["test"], "validation": fields["validation"]}
    parts |= {f"ood/{name}": part for name, part in fields["ood"].items()}
    content = {
        "runs": [os.path.relpath(run.path.resolve(), folder.resolve()) for run in fields["runs"]],
        "parts": {key: _describe(part) for key, part in parts.items()},
        "noise": [asdict(level) for level in fields["noise"]],
        **{name: fields[name] for name in ("class_names", "metrics", "seconds")},
    }
    text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    tensors = {name: tensor for key, part in parts.items() for name, tensor in _tensors(key, part).items()}
    write_atomically(folder / f"{FILE}.safetensors", save(tensors, {"json": text}))
    write_atomically(folder / f"{FILE}.json", text)


def read(folder: str | os.PathLike[str], *, images: bool = True) -> dict[str, Any]:
    """The fields of the evaluation in a folder; without its images, no data set is needed."""
    folder = Path(folder)
    content, tensors = _read(folder)
    with reading(folder / f"{FILE}.safetensors", "run dubito evaluate again"):
        class_names = check_class_names(content["class_names"])
        _check_settings(content["metrics"]["settings"], len(content["runs"]))
        runs = tuple(Run.open(os.path.normpath(folder / path)) for path in content["runs"])
        places = content["metrics"]["settings"].get("places", {})
        parts = {}
        for key, part in content["parts"].items():
            labelled = not key.startswith("ood/")
            read_again = images and key != "validation"
            again = images_again(part["name"], runs[0], places, labelled=labelled) if read_again else None
            parts[key] = _stored(part, tensors, key, again, len(class_names))
        return {
            "runs": runs,
            "class_names": class_names,
            "test": parts.pop("test"),
            "validation": parts.pop("validation"),
            "ood": {key.removeprefix("ood/"): part for key, part in parts.items()},
            "noise": tuple(map(NoiseLevel.from_dict, content["noise"])),
            "metrics": content["metrics"],
            "seconds": content["seconds"],
        }


def _check_settings(settings: dict[str, Any], runs: int) -> None:
    """A ValueError if another evaluation could not be made with them."""
    if settings["checkpoint"] not in ("best", "last"):
        raise ValueError("its checkpoint is neither best nor last")
    if len(settings["runs"]) != runs or not all(isinstance(facts, dict) for facts in settings["runs"]):
        raise ValueError("it does not describe each of its runs")
    for name, most in MOST.items():
        value = settings.get(name, 1)
        if type(value) is not int or not 1 <= value <= most:
            raise ValueError(f"its {name} is {reprlib.repr(value)}, but must be an integer from 1 to {most}")


def _describe(part: Evaluated) -> dict[str, Any]:
    names = {"name": part.name, "images": len(part), "samples": part.prediction.samples}
    return names | {"members": part.members, "unit": part.unit, "temperature": part.temperature}


def _tensors(prefix: str, part: Evaluated) -> dict[str, Tensor]:
    tensors = {name: getattr(part.prediction, name) for name in (*_STORED, *_OPTIONAL)}
    tensors |= {"labels": part.labels, "draws": None if prefix.startswith("ood/") else part.draws}
    return {
        f"{prefix}/{name}": tensor.detach().cpu().contiguous() for name, tensor in tensors.items() if tensor is not None
    }


def _stored(
    description: dict[str, Any], tensors: dict[str, Tensor], prefix: str, again: Dataset | None, classes: int
) -> Evaluated:
    values = {name: tensors[f"{prefix}/{name}"] for name in _STORED}
    values |= {name: tensors[f"{prefix}/{name}"] for name in _OPTIONAL if f"{prefix}/{name}" in tensors}
    prediction = stored_prediction(values, description["samples"], classes)
    name, temperature = str(description["name"]), float(description.get("temperature", 1.0))
    members = tuple(map(int, description["members"]))
    labels, draws = tensors.get(f"{prefix}/labels"), tensors.get(f"{prefix}/draws")
    if labels is None and not prefix.startswith("ood/"):
        raise ValueError(f"it has no labels of its {prefix} images")
    if labels is not None:
        check_labels(labels, len(prediction), 2**31 if prefix.startswith("ood/") else classes)
    if min(members, default=1) < 1 or (draws is not None and sum(members) != len(draws)):
        raise ValueError(f"the draws of its {prefix} images are not those of its members")
    if draws is not None and (draws.shape[1:] != prediction.probs.shape or not bool(draws.isfinite().all())):
        raise ValueError(f"its draws have the shape {tuple(draws.shape)}, or are not finite")
    if description["unit"] not in ("probability", "logit") or not 0 < temperature < math.inf:
        raise ValueError(f"its {prefix} is not described")
    if again is not None and len(again) != len(values["probs"]):
        raise RunError(
            f"{name} has {len(again)} images now, but {len(values['probs'])} were evaluated; run dubito evaluate again."
        )
    return Evaluated(
        name=name,
        images=torch.zeros(0, dtype=torch.uint8) if again is None else again.images,
        labels=labels,
        prediction=prediction,
        draws=draws,
        members=members,
        unit=description["unit"],
        files=() if again is None else again.files,
        temperature=temperature,
    )


def is_kept(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds an evaluation."""
    return any((Path(folder) / f"{FILE}.{suffix}").exists() for suffix in ("safetensors", "json"))


@contextmanager
def if_writable(folder: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Inside, `what` the folder keeps is written; if the folder does not allow it, that is a warning and no error."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        warnings.warn(f"{folder} cannot be written, so its {what} is not kept.", DubitoWarning, stacklevel=4)


def describe(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What an evaluation says without its tensors, as evaluation.json has it."""
    return _read(Path(folder), tensors=False)[0]


def _read(folder: Path, *, tensors: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What an evaluation says, and its tensors."""
    if not is_kept(folder):
        raise RunError(f"{folder} has no evaluation yet; run `dubito evaluate {folder}`.")
    with reading(f"{folder / FILE}.*", "run dubito evaluate again"):
        stored, kept = read_tensors(folder / f"{FILE}.safetensors", "json", None if tensors else lambda names: [])
        content = parse_json(_text(folder, kept))
        if not all(isinstance(run, str) for run in content["runs"]) or not isinstance(content["metrics"], dict):
            raise ValueError("it does not say what was evaluated")
        return content, stored


def _text(folder: Path, kept: str) -> str:
    """What the tensors were kept with. A kill may have left evaluation.json without it, which then gets it.

    Earlier versions kept only the digest of that file.
    """
    file = folder / f"{FILE}.json"
    text = ""
    with suppress(OSError, ValueError):
        text = read_text(file)
    if hashlib.sha256(text.encode()).hexdigest() == kept:
        return text
    if not kept.startswith("{"):
        raise RunError(
            f"The two files {folder / FILE}.* do not belong to the same evaluation; run dubito evaluate again."
        )
    if text != kept:
        with suppress(OSError):
            write_atomically(file, kept)
    return kept
