"""An exported ONNX file, run by ONNX Runtime.

The file may come from anybody: only ONNX Runtime parses it, and its description is checked.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dubito.errors import DataError, ShapeError, missing
from dubito.exporting.description import KEY, Description
from dubito.exporting.graph import OUTPUTS
from dubito.foreign import reason_of
from dubito.prediction import Prediction

PER_CLASS = ("probabilities", "aleatoric_per_class", "epistemic_per_class", "conformal")
"""Outputs with a number for each class; the others have one for each image."""


class OnnxModel:
    """A network that `dubito export` wrote as ONNX.

    Args:
        content: the file, or its bytes.
    """

    def __init__(self, content: str | os.PathLike[str] | bytes) -> None:
        self.name = "The model" if isinstance(content, bytes) else str(content)
        self._session = _session(content, self.name)
        described = self._session.get_modelmeta().custom_metadata_map.get(KEY)
        if described is None:
            raise DataError(f"{self.name} was not exported by dubito; `dubito export RUN` makes a file that was.")
        try:
            self.description = Description.from_json(described)
        except DataError as error:
            raise DataError(f"{self.name} cannot be used: {reason_of(error)}.") from None
        self._require_interface()

    def _require_interface(self) -> None:
        data, size = self.description.data, self.description.data.size
        inputs = [(i.name, i.type, list(i.shape[1:])) for i in self._session.get_inputs()]
        outputs = [output.name for output in self._session.get_outputs()]
        expected = [*OUTPUTS, *self.description.fitted]
        if inputs != [("images", "tensor(uint8)", [data.channels, size, size])] or outputs != expected:
            raise DataError(
                f"{self.name} cannot be used: it takes {inputs} and gives {outputs}, which is not what its description "
                "says; export it again."
            )

    def predict(self, images: Tensor) -> Prediction:
        """The prediction of uint8 images (N, C, H, W), without any preparation; with a decision if there is a rule."""
        values = self.run(images)
        named: dict[str, Any] = {field: values[name] for name, field in OUTPUTS.items()}
        for derived in ("aleatoric", "epistemic"):
            del named[derived]
        samples, rule = self.description.samples or 1, self.description.rule
        prediction = Prediction(**named, novelty=values.get("novelty"), samples=samples)
        return rule.apply(prediction) if rule is not None and rule.suits(prediction) else prediction

    def run(self, images: Tensor) -> dict[str, Tensor]:
        """Every output of the file by its name, for uint8 images (N, C, H, W)."""
        data, size = self.description.data, self.description.data.size
        if images.dtype is not torch.uint8 or images.shape[1:] != (data.channels, size, size):
            raise ShapeError(
                f"The images are {images.dtype} {tuple(images.shape)}, but must be torch.uint8 "
                f"(N, {data.channels}, {size}, {size})."
            )
        try:
            outputs = self._session.run(None, {"images": images.numpy()})
        except Exception as error:  # whatever its graph does
            raise DataError(f"{self.name} cannot be run: {' '.join(str(error).split())}") from None
        values = dict(zip([*OUTPUTS, *self.description.fitted], map(torch.from_numpy, outputs), strict=True))
        classes, single = (len(images), len(data.class_names)), (len(images),)
        shapes = {**dict.fromkeys(values, single), **dict.fromkeys(PER_CLASS, classes)}
        if any(values[name].shape != shapes[name] for name in values):
            raise DataError(f"{self.name} cannot be used: its outputs do not have the shape of {classes[1]} classes.")
        return values


def _session(content: str | os.PathLike[str] | bytes, name: str) -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise missing("ONNX", error.name, "onnx") from None
    if not isinstance(content, bytes) and not Path(content).is_file():
        raise DataError(f"There is no file {name}; `dubito export RUN --out {name}` makes one.")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    options.intra_op_num_threads = torch.get_num_threads()
    source = content if isinstance(content, bytes) else os.fspath(content)
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise DataError(f"{name} cannot be read as an ONNX model: {' '.join(str(error).split())}") from None
