"""The two formats: ONNX, and torch's own exported programs. Both are made from one graph, for any number of images."""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from dubito.decisions import Rule
from dubito.errors import DubitoError, OptionError, RunError, choose, missing
from dubito.exporting.description import KEY, Description, What
from dubito.exporting.graph import OUTPUTS, Fitted, PredictionGraph, make_graph
from dubito.exporting.onnx_model import OnnxModel
from dubito.files import write_atomically
from dubito.prediction.novelty import Novelty
from dubito.runs.attached import data_of, require_data
from dubito.runs.description import DataDescription
from dubito.runs.validation import Calibration
from dubito.saving import load

TOLERANCE = 1e-4
"""By how much the numbers of a file may differ from the predictor's."""
LARGEST = 2_000_000_000
"""Bytes of weights that fit into an ONNX file, a single protocol buffer."""


class Format(str, Enum):
    """The format of the file."""

    ONNX = "onnx"
    TORCH = "torch"


SUFFIXES = {Format.ONNX: ".onnx", Format.TORCH: ".pt2"}
"""The ending of a file."""


def export(
    model: nn.Module | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str | Format | None = None,
    what: str | What | None = None,
    samples: int = 10,
    rule: Rule | None = None,
    temperature: float | None = None,
    novelty: Novelty | None = None,
    calibration: Calibration | None = None,
) -> Path:
    """Write a network as one file that predicts as it does, without dubito, for images of the network's own size.

    Args:
        model: a classifier of images that says what they are like (:func:`dubito.attach_data`), or its folder.
        out: the file.
        format: ``onnx``, or ``torch`` for what `torch.export.load` reads; None goes by the ending of `out`, .onnx or
            .pt2.
        what: ``draws``, ``moments`` or ``mean``; None for the draws of a network that draws (a Bayesian one, MC
            dropout, an ensemble), and for the mean of any other.
        samples: draws in the graph, with ``draws``.
        rule: one more output, `decision`; `dubito predict` of the file then decides by it, with reasons. A warning says
            if the file has fewer draws than it was fitted to.
        temperature: calibrates the probabilities, see :mod:`dubito.prediction.calibrated`; a run has it as
            ``run.calibration().temperature``. None leaves them as they are.
        novelty: one more output, `novelty`; ``predictor.novelty`` once it was fitted.
        calibration: one more output, `conformal`, the sets of classes; a run has it as ``run.calibration()``.
    """
    file = Path(out)
    kinds = {suffix: kind for kind, suffix in SUFFIXES.items()}
    if format is None and file.suffix.lower() not in kinds:
        raise OptionError(f"{file} must end in {' or '.join(kinds)}, or give the format.")
    kind = choose(Format, kinds[file.suffix.lower()] if format is None else format, "format")
    network = model if isinstance(model, nn.Module) else load(model)
    data = require_data(data_of(network), "Exporting")
    content = export_bytes(network, data, kind, what, samples, rule, temperature, novelty, calibration)
    write_atomically(file, content)
    return file


def export_bytes(
    network: nn.Module,
    data: DataDescription,
    format: str | Format = "onnx",
    what: str | What | None = None,
    samples: int = 10,
    rule: Rule | None = None,
    temperature: float | None = None,
    novelty: Novelty | None = None,
    calibration: Calibration | None = None,
) -> bytes:
    """The content of a file that predicts as the network does, without dubito.

    Args:
        network: a classifier of images with a head of its own.
        data: class names, and how images are read and normalised; a run has it as ``run.data``.
        format: ``onnx``, or ``torch`` for what `torch.export.load` reads.
        what: ``draws``, ``moments`` or ``mean``; None for the draws of a network that draws (a Bayesian one, MC
            dropout, an ensemble), and for the mean of any other.
        samples: draws in the graph, with ``draws``.
        rule, temperature, novelty, calibration: as in :func:`export`.
    """
    kind = choose(Format, format, "format")
    if rule is not None and temperature is not None:
        raise OptionError("A rule is fitted to probabilities that are not calibrated: give rule or temperature.")
    graph = make_graph(network, data, what, samples, Fitted(novelty, rule, calibration, temperature))
    description = Description(
        what=graph.what,
        head=graph.head.name,
        data=data,
        samples=graph.predictor.samples if graph.what is What.DRAWS else None,
        rule=graph.fitted.rule,
        temperature=temperature,
        fitted=tuple(graph.fitted.names()),
        novelty=None if novelty is None else novelty.describe(),
        coverage=None if calibration is None else calibration.coverage,
    )
    wrong = description.mistake()
    if wrong:
        raise OptionError(f"The network cannot be exported: {wrong} in its data's description makes no sense.")
    return (_to_onnx if kind is Format.ONNX else _to_torch)(graph, description)


def _to_torch(graph: PredictionGraph, description: Description) -> bytes:
    """An ExportedProgram, as `torch.export.save` writes it, with the description as a file of it."""
    file = io.BytesIO()
    torch.export.save(_program(graph, description), file, extra_files={f"{KEY}.json": description.to_json()})
    return file.getvalue()


def _to_onnx(graph: PredictionGraph, description: Description) -> bytes:
    """An ONNX model that holds all its weights; its numbers are compared with the predictor's."""
    try:
        import onnx
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing("ONNX", error.name, "onnx") from None
    _require_small(graph)
    program = _program(graph, description)
    with _explained(graph, "ONNX"), _quiet():
        made = torch.onnx.export(
            program, dynamo=True, input_names=["images"], output_names=graph.outputs, verbose=False
        )
    assert made is not None
    model: Any = made.model_proto
    _tidy(model)
    model.metadata_props.add(key=KEY, value=description.to_json())
    onnx.checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString()
    _require_same(graph, OnnxModel(content), description)
    return content


def _program(graph: PredictionGraph, description: Description) -> torch.export.ExportedProgram:
    images = _images(description, 2)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), _explained(graph, "a graph"):
        classes = graph(images)[0].shape[1]  # an error of the network itself is plainer here
        if classes != len(description.data.class_names):
            raise OptionError(
                f"The network tells {classes} classes apart, but its data's description names "
                f"{len(description.data.class_names)}: give it one name for each class."
            )
        any_number = {0: torch.export.Dim("batch", min=1)}
        program = torch.export.export(graph, (images,), dynamic_shapes=(any_number,), strict=False)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def _images(description: Description, count: int) -> Tensor:
    shape = (count, description.data.channels, description.data.size, description.data.size)
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def _tidy(model: Any) -> None:
    """Remove notes about the source code that an operation came from, and name the batch axis."""
    del model.metadata_props[:], model.graph.metadata_props[:], model.graph.value_info[:]
    model.producer_name, model.producer_version = KEY, ""
    for part in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del part.metadata_props[:]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"


def _require_small(graph: PredictionGraph) -> None:
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*graph.parameters(), *graph.buffers()))
    if size > LARGEST:
        raise OptionError(
            f"The weights of the file would take {size / 1e9:.1f} GB, but an ONNX file holds at most 2 GB: give fewer "
            "samples, or what='moments'."
        )


def _require_same(graph: PredictionGraph, model: OnnxModel, description: Description) -> None:
    for count in (1, 3):
        images = _images(description, count)
        found, expected = model.predict(images), graph.predictor(graph.prepare(images))
        for name in [*OUTPUTS.values(), *({"novelty"} & set(graph.outputs))]:
            own = getattr(expected, name).cpu()
            worst = float((getattr(found, name) - own).abs().max())
            if not worst <= TOLERANCE * max(1.0, float(own.abs().max())):
                raise RunError(
                    f"The ONNX model was not written: its {name} differs from the network's by {worst:.2g}, more than "
                    f"{TOLERANCE:g}; try format='torch'."
                )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings about operators that it does not find."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _explained(graph: PredictionGraph, goal: str) -> Iterator[None]:
    """Turn an error inside into one that names the module that cannot be exported."""
    try:
        yield
    except DubitoError as error:
        text = str(error)
        for method, what in (("moments", "moments"), ("weights", "draws"), ("sample", "draws")):
            text = text.replace(f"method='{method}'", f"what='{what}'")
        raise type(error)(text) from error
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "").rstrip(".") or type(error).__name__
        raise OptionError(f"{_place(graph, error)} cannot become {goal}: {reason}.") from error


def _place(graph: PredictionGraph, error: BaseException) -> str:
    """The innermost module of the network that was running, or whose operation was being translated."""
    names = {id(part): name for network in graph.networks for name, part in network.named_modules()}
    found = ("", type(graph.networks[0]).__name__)
    for frame in _frames(error):
        running, node = frame.f_locals.get("self"), frame.f_locals.get("node")
        if isinstance(running, nn.Module) and id(running) in names:
            found = (names[id(running)], type(running).__name__)
        elif isinstance(node, torch.fx.Node):
            for path, kind in (node.meta.get("nn_module_stack") or {}).values():
                if inside := re.match(r"(?:graphs\.\d+\.)*networks\.\d+\.(.+)", path):
                    found = (inside[1], str(getattr(kind, "__name__", kind)).rpartition(".")[2])
    return f"{found[0]!r} ({found[1]})" if found[0] else f"The network ({found[1]})"


def _frames(error: BaseException | None) -> Iterator[Any]:
    """The frames of an error's traceback, after those of the errors that led to it."""
    if error is None:
        return
    yield from _frames(error.__cause__ or error.__context__)
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next
