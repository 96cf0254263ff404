"""Image classifiers of Hugging Face transformers: ``hf:FOLDER``, ``hf:FILE.json`` or ``hf:NAME``.

A folder has a ``config.json`` and, for a trained network, its weights as safetensors. A file is such a configuration
alone, and so is the content of one in place of its name. A name is a type of network, such as ``vit`` or ``convnext``,
built as its configuration class has it with fresh weights, or a repository on the hub, such as
``google/vit-base-patch16-224``. Code that comes with a repository is never run, and weights are never unpickled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from dubito.convert import Logits
from dubito.errors import DubitoError, OptionError, missing, unknown
from dubito.foreign import parse_json, read_json
from dubito.models.parts import Activation, Norm
from dubito.models.registry import Inference, Plan

PREFIX = "hf:"
"""What the names of these networks start with."""

CLASSIFIER = re.compile(r"(^|\.|_)(classifier|head)(\.|$)")
"""Names of the layers that make logits."""

FETCHING = (
    *("attn_implementation", "_attn_implementation", "_attn_implementation_internal", "auto_map"),
    *("experts_implementation", "_experts_implementation", "_experts_implementation_internal", "quantization_config"),
    *("backbone", "backbone_kwargs", "use_pretrained_backbone", "use_timm_backbone", "_name_or_path"),
)
"""Names in a configuration that make transformers look on the hub."""

PLACES = "a folder with a config.json, such a file, a type such as vit, or a repository OWNER/NAME"
"""What may follow the prefix."""

LONGEST = 300
"""Characters that a sentence repeats."""

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(?<!\.json)")
"""Names that a repository on the hub may have: OWNER/NAME."""

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def hugging_face(name: str) -> Callable[[Plan], nn.Module]:
    """A builder of the network of that name, whose outputs are its logits."""
    source = name.removeprefix(PREFIX)

    def build(plan: Plan) -> nn.Module:
        model, fresh = _build(source, plan)
        network = Logits(model)
        network.portable_name = PREFIX + json.dumps(configuration(name))  # type: ignore[assignment]
        network.left_fresh = [f"model.{key}" for key in fresh]  # type: ignore[assignment]
        return network

    return build


def configuration(name: str) -> dict[str, Any]:
    """The configuration of a network, from which it can be built again without its folder."""
    content: dict[str, Any] = json.loads(_config(name.removeprefix(PREFIX)).to_json_string(use_diff=False))
    return content


def _build(source: str, plan: Plan) -> tuple[nn.Module, list[str]]:
    """The model, and the names of parameters that its weights do not have: those of the classifier alone."""
    config = _adapted(_config(source), source, plan)
    classifier = _transformers().AutoModelForImageClassification
    try:
        if not _has_weights(source):
            return classifier.from_config(config), []
        with _quiet():
            model, found = classifier.from_pretrained(
                source, config=config, use_safetensors=True, ignore_mismatched_sizes=True, output_loading_info=True
            )
    except Exception as error:  # whatever its code makes of the configuration
        raise OptionError(f"{PREFIX}{source[:LONGEST]} cannot be built: {_first_line(error)}") from error
    fresh = [*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])]
    wrong = [key for key in fresh if not CLASSIFIER.search(key)]
    if wrong:
        own = _config(source)
        size, channels = getattr(own, "image_size", plan.image_size), getattr(own, "num_channels", 3)
        raise OptionError(
            f"The weights of {PREFIX}{source} are for {channels} x {size} x {size} images, but these are "
            f"{plan.in_channels} x {plan.image_size} x {plan.image_size}, so these do not fit: {', '.join(wrong[:10])}."
        )
    return model, fresh


def _config(source: str) -> Any:
    """The configuration that a folder, a file or a name stands for."""
    transformers = _transformers()
    if not source.strip():
        raise OptionError(f"model is {PREFIX + source!r}, but after {PREFIX} comes {PLACES}.")
    try:
        if source.startswith("{"):
            return transformers.AutoConfig.for_model(**_harmless(parse_json(source)))
        path = Path(source).expanduser()
        if path.suffix == ".json" and path.is_file():
            return transformers.AutoConfig.for_model(**_harmless(read_json(path)))
        if path.is_dir():
            if not (path / "config.json").is_file():
                raise OptionError(f"model is {PREFIX + source!r}, but that folder has no config.json.")
            return transformers.AutoConfig.from_pretrained(str(path), local_files_only=True)
        if source in _types():
            return transformers.AutoConfig.for_model(source)
        if "/" not in source:
            raise OptionError(
                f"{unknown('hf', source, _types())[:-1]}, a folder with a config.json, or a repository OWNER/NAME."
            )
        if not REPOSITORY.fullmatch(source):
            raise OptionError(
                f"model is {(PREFIX + source)[:LONGEST]!r}, but there is no such folder or file: give {PLACES}."
            )
        return transformers.AutoConfig.from_pretrained(source)
    except DubitoError:
        raise
    except Exception as error:  # whatever its configuration makes of the values
        raise OptionError(
            f"model is {(PREFIX + source)[:LONGEST]!r}, which cannot be read: {_first_line(error)}"
        ) from error


def _harmless(content: Any) -> Any:
    """A configuration without what makes transformers fetch weights or code from the hub."""
    if isinstance(content, list):
        return [_harmless(value) for value in content]
    if not isinstance(content, dict):
        return content
    return {name: _harmless(value) for name, value in content.items() if name not in FETCHING}


def _adapted(config: Any, source: str, plan: Plan) -> Any:
    """The configuration for the plan's classes and images; what the network has no option for is refused."""
    if config.model_type not in _types():
        raise OptionError(
            f"{PREFIX}{source} is a {config.model_type}, and transformers has no image classifier of that type."
        )
    config.num_labels = plan.num_outputs
    if hasattr(config, "image_size"):
        config.image_size = plan.image_size
    if hasattr(config, "num_channels"):
        config.num_channels = plan.in_channels
    elif plan.in_channels != 3:
        raise OptionError(f"{PREFIX}{source} takes colour images, but these have {plan.in_channels} channel.")
    if plan.norm is not Norm.OWN:
        raise OptionError(f"norm is {plan.norm.value!r}, but {PREFIX}{source} has its own normalisation.")
    if plan.activation is not Activation.OWN:
        from transformers.activations import ACT2FN

        if not hasattr(config, "hidden_act") or plan.activation.value not in ACT2FN:
            raise OptionError(f"activation is {plan.activation.value!r}, which {PREFIX}{source} cannot have.")
        config.hidden_act = plan.activation.value
    if plan.inference is Inference.DROPOUT and hasattr(config, "hidden_dropout_prob"):
        config.hidden_dropout_prob = plan.dropout
    return config


def _has_weights(source: str) -> bool:
    if source.startswith("{"):
        return False
    path = Path(source).expanduser()
    if path.is_dir():
        return any((path / name).is_file() for name in WEIGHTS)
    return not path.is_file() and source not in _types()


def _types() -> list[str]:
    """The types of networks that classify images; a wrapper of another library is none."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS

    return [name for name in CLASSIFIERS if name != "timm_wrapper"]


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise missing("hf:", error.name, "hf") from None
    return transformers


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the notice about a fresh classifier, and without bars."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return f"{line[:LONGEST]} ..." if len(line) > LONGEST else f"{line}."
