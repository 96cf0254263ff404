"""An exported ONNX file, run by ONNX Runtime.

The file may come from anybody: only ONNX Runtime parses it, and its description is checked.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dubito.errors import DataError, DubitoError, ShapeError
from dubito.exporting.description import KEY, Description
from dubito.exporting.graph import OUTPUTS
from dubito.prediction import Prediction

__all__ = ["OnnxModel"]


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
            raise DataError(f"{self.name} cannot be used: {error}.") from None
        self._require_interface()

    def _require_interface(self) -> None:
        data, size = self.description.data, self.description.data.size
        inputs = [(i.name, i.type, list(i.shape[1:])) for i in self._session.get_inputs()]
        outputs = [output.name for output in self._session.get_outputs()]
        if inputs != [("images", "tensor(uint8)", [data.channels, size, size])] or outputs != list(OUTPUTS):
            raise DataError(
                f"{self.name} cannot be used: it takes {inputs} and gives {outputs}, which is not what its description "
                "says; export it again."
            )

    def predict(self, images: Tensor) -> Prediction:
        """The prediction of uint8 images (N, C, H, W), without any preparation."""
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
        values: dict[str, Any] = dict(zip(OUTPUTS.values(), map(torch.from_numpy, outputs), strict=True))
        shape = (len(images), len(data.class_names))
        if any(values[n].shape != shape for n in ("probs", "aleatoric_per_class", "epistemic_per_class")) or any(
            values[n].shape != shape[:1] for n in ("entropy", "mutual_information")
        ):
            raise DataError(f"{self.name} cannot be used: its outputs do not have the shape of {shape[1]} classes.")
        for derived in ("aleatoric", "epistemic"):
            del values[derived]
        prediction, rule = Prediction(**values, samples=self.description.samples or 1), self.description.rule
        return rule.apply(prediction) if rule is not None and rule.suits(prediction) else prediction


def _session(content: str | os.PathLike[str] | bytes, name: str) -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise DubitoError(f"ONNX needs {error.name}, which is missing: pip install 'dubito[onnx]'.") from None
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
