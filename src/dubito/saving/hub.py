"""Saved networks by the conventions of Hugging Face's hub: folders with a card, downloaded and uploaded by name.

A repository is a folder of :func:`dubito.save`, or a run folder. Only the files that dubito reads are downloaded;
nothing is unpickled, and no code of the repository is run unless it is trusted (``trust=True``).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from dubito.errors import OptionError, RunError, missing
from dubito.files import write_atomically
from dubito.foreign import read_json
from dubito.runs.description import DataDescription
from dubito.runs.run import Run
from dubito.saving.loading import Into, is_saved, load
from dubito.saving.saved import DESCRIPTION, save
from dubito.zoo import SCHEME, find

CARD = "README.md"
READ = ("*.json", "*.yaml", "*.safetensors", "metrics.csv", "posterior.csv", CARD)
"""What a repository may hold of a network."""
LEFT = ("last.safetensors", "environment.json", "evaluation.*")
"""What a run has besides: the state of its training, its machine, and an evaluation that needs its images."""


def save_pretrained(model: nn.Module, folder: str | os.PathLike[str], **options: Any) -> Path:
    """Save a network as :func:`dubito.save` does, with a card, README.md, that says how to load it.

    Args:
        model: the network.
        folder: where. A card that is there already stays.
        options: those of :func:`dubito.save`.

    >>> import dubito
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = save_pretrained(dubito.models.build("lenet5", in_channels=1), Path(folder) / "mine")
    ...     (place / "README.md").exists(), type(from_pretrained(place)).__name__
    (True, 'Network')
    """
    place = save(model, folder, **options)
    if not (place / CARD).exists():
        write_atomically(place / CARD, _card(place.resolve().name, _saved_data(place)))
    return place


def from_pretrained(
    name: str | os.PathLike[str],
    *,
    into: Into = None,
    trust: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
) -> nn.Module:
    """The network of a folder or, if there is none of that name, of a repository on Hugging Face's hub.

    Args:
        name: a folder of :func:`dubito.save`, a run folder, ``zoo:NAME``, or a repository such as ``me/mnist``.
        into, trust: as :func:`dubito.load` takes them.
        revision: a branch, tag or commit of the repository.
        token, cache_dir, force_download, local_files_only: as ``huggingface_hub.snapshot_download`` takes them.
    """
    if os.path.isdir(name) or os.fspath(name).startswith(SCHEME):
        return load(name, into=into, trust=trust)
    with _hub(os.fspath(name)) as hub:
        folder = hub.snapshot_download(
            os.fspath(name),
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            allow_patterns=[*READ, *(f"*/{pattern}" for pattern in READ)],
        )
    return load(folder, into=into, trust=trust)


def push_to_hub(
    model: nn.Module | str | os.PathLike[str],
    name: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    commit_message: str = "A network that dubito saved",
    create_pr: bool | None = None,
    **options: Any,
) -> str:
    """Upload a network to a repository of Hugging Face's hub, which is made if there is none; returns the commit's URL.

    Args:
        model: a network, a folder that :func:`dubito.save` made, or a run folder. Of a run, its weights are uploaded
            with what was fitted to them, but neither the state of its training nor the description of its machine.
        name: the repository, such as ``me/mnist``.
        private, token, create_pr: as ``huggingface_hub.HfApi`` takes them.
        revision: the branch; None for ``main``.
        commit_message: of the one commit that is made.
        options: those of :func:`dubito.save`, for a network.
    """
    with tempfile.TemporaryDirectory() as parent:
        place = Path(parent) / name.rpartition("/")[2]
        if isinstance(model, nn.Module):
            save_pretrained(model, place, **options)
        elif options:
            raise OptionError(
                f"{', '.join(options)} {'is' if len(options) == 1 else 'are'} for a network, not a folder."
            )
        else:
            _copy(find(model), place)
        with _hub(name) as hub:
            api = hub.HfApi(token=token)
            repository = api.create_repo(repo_id=name, private=private, exist_ok=True).repo_id
            return str(
                api.upload_folder(
                    repo_id=repository,
                    repo_type="model",
                    folder_path=place,
                    commit_message=commit_message,
                    revision=revision,
                    create_pr=create_pr,
                )
            )


def _copy(folder: Path, place: Path) -> None:
    """A run or a saved network without what only its training needs, and with a card."""
    if is_saved(folder):
        data = _saved_data(folder)
    else:
        run = Run.open(folder)
        run.calibration()  # an error if it is not trained to its end
        data = run.data
    shutil.copytree(folder, place, ignore=_left_out)
    if not (place / CARD).exists():
        write_atomically(place / CARD, _card(place.name, data))


def _saved_data(folder: Path) -> DataDescription | None:
    """What the images of a saved network are like, where it says so."""
    described = read_json(folder / DESCRIPTION)["data"]
    return None if described is None else DataDescription.of(described)


def _left_out(folder: str, names: list[str]) -> set[str]:
    kept = {name for name in names if any(Path(name).match(pattern) for pattern in READ)}
    kept -= {name for name in names if any(Path(name).match(pattern) for pattern in LEFT)}
    return {name for name in names if name not in kept and not (Path(folder) / name).is_dir()}


@contextmanager
def _hub(name: str) -> Iterator[Any]:
    """The package huggingface_hub; what goes wrong with it becomes one sentence."""
    try:
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ModuleNotFoundError:
        raise missing("Hugging Face's hub", "huggingface_hub", "hf") from None
    try:
        yield huggingface_hub
    except HFValidationError:
        raise OptionError(f"{name!r} is neither a folder nor the name of a repository, such as me/mnist.") from None
    except LocalEntryNotFoundError:
        raise RunError(f"{name} is not a folder, and the repository is neither in the cache nor reachable.") from None
    except HfHubHTTPError as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise RunError(f"Hugging Face's hub refused {name}: {reason[0].rstrip('.')}.") from None
    except OSError as error:
        raise RunError(f"Hugging Face's hub cannot be reached for {name}: {error}.") from None


def front_matter(**facts: Any) -> str:
    """The YAML that begins a card, by the hub's conventions for models.

    >>> front_matter(datasets=["mnist"]).splitlines()[:2]
    ['---', 'library_name: dubito']
    """
    import yaml

    tags = ["bayesian", "uncertainty", "image-classification"]
    content = {"library_name": "dubito", "pipeline_tag": "image-classification", "tags": tags, **facts}
    return f"---\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}---\n"


def _card(name: str, data: DataDescription | None) -> str:
    """A card with what is known of a saved network."""
    facts = [] if data is None else [f"- Trained on: {Path(data.name).name or 'unknown'}"]
    if data is not None:
        facts += [f"- Images: {data.channels} x {data.size} x {data.size}", f"- Classes: {', '.join(data.class_names)}"]
    lines = [
        front_matter(),
        f"# {name}",
        "",
        "An image classifier that says how far to trust it, saved by dubito.",
        "",
        *facts,
        *([""] if facts else []),
        "```python",
        "import dubito",
        "",
        f'model = dubito.from_pretrained("{name}")  # a folder, or OWNER/{name} on the hub',
        "prediction = dubito.predict(model, images)",
        "```",
    ]
    return "\n".join(lines) + "\n"
