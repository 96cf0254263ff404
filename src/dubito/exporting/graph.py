"""The module that is exported: bytes of images in, the fields of a prediction out."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dubito.convert import deep_copy
from dubito.data import channel_constants, standardize
from dubito.errors import OptionError, choose
from dubito.exporting.description import What
from dubito.heads.split import AnyPrediction, Prediction
from dubito.prediction import Ensemble, Predictor, drawn_dropout
from dubito.prediction.calibrated import calibrate
from dubito.prediction.moments import LOGITS, logit_moments
from dubito.runs.run import DataDescription
from dubito.variational.posterior import posteriors

__all__ = ["OUTPUTS", "PredictionGraph", "make_graph"]

OUTPUTS = {
    "probabilities": "probs",
    "aleatoric": "aleatoric",
    "epistemic": "epistemic",
    "entropy": "entropy",
    "mutual_information": "mutual_information",
    "aleatoric_per_class": "aleatoric_per_class",
    "epistemic_per_class": "epistemic_per_class",
}
"""What a graph gives, in this order, and which field of a prediction it is."""
METHODS = {What.DRAWS: "weights", What.MOMENTS: "moments", What.MEAN: "mean"}
"""The method of :class:`dubito.Predictor` that a graph equals."""


def make_graph(
    network: nn.Module,
    data: DataDescription,
    what: What | str | None,
    samples: int,
    temperature: float | None = None,
) -> PredictionGraph:
    """The module to export for a network, which stays as it is.

    `what` None means draws, or the mean if the network has nothing to draw. `temperature` calibrates the probabilities.
    """
    if isinstance(network, Ensemble):
        raise OptionError(f"The network is an {type(network).__name__} of several; export its members one by one.")
    if samples < 1:
        raise OptionError(f"samples is {samples}, but draws need at least 1.")
    draws = _draws(network)
    kind = (What.DRAWS if draws else What.MEAN) if what is None else choose(What, what, "what")
    if kind is not What.MEAN and not draws:
        raise OptionError(
            f"what is {kind.value!r}, but the network has nothing to draw: it is a point estimate, so export 'mean'."
        )
    graph = MomentsGraph if kind is What.MOMENTS else DrawsGraph
    count, calibrated = samples if kind is What.DRAWS else 1, False if temperature is None else temperature
    return graph(Predictor(network, count, METHODS[kind], calibrated=calibrated), network, data)


def _draws(network: nn.Module) -> bool:
    """Whether two draws of the network can differ."""
    return bool(drawn_dropout(network)) or bool(posteriors(network))


class PredictionGraph(nn.Module, ABC):
    """Images (N, C, H, W) of bytes to the tensors that `OUTPUTS` names.

    Attributes:
        networks: the networks that make the prediction.
        predictor: what the graph must agree with.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, predictor: Predictor, networks: Sequence[nn.Module], data: DataDescription) -> None:
        super().__init__()
        self.predictor = predictor
        self.head = predictor.head
        if not self.head.classifies:
            raise OptionError(f"The network has the {self.head.name} head, but only classifiers can be exported.")
        self.networks = nn.ModuleList(networks).cpu().eval().requires_grad_(False)
        self.dtype = next((p.dtype for p in self.networks.parameters() if p.is_floating_point()), torch.float32)
        for name, constant in zip(("shift", "scale"), channel_constants(data.mean, data.std), strict=True):
            self.register_buffer(name, constant)

    @property
    def what(self) -> What:
        """Draws, moments or the mean."""
        return next(what for what, method in METHODS.items() if method == self.predictor.method)

    def prepare(self, images: Tensor) -> Tensor:
        """Images of bytes as the network takes them."""
        return standardize(images, self.shift, self.scale, self.dtype)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """The prediction's tensors, in the order of `OUTPUTS`."""
        prediction = self.predict(self.prepare(images))
        if self.predictor.temperature is not None:
            assert isinstance(prediction, Prediction)
            prediction = calibrate(prediction, self.predictor.temperature)
        return tuple(getattr(prediction, name).float() for name in OUTPUTS.values())

    @abstractmethod
    def predict(self, inputs: Tensor) -> AnyPrediction:
        """The prediction of normalised images."""


class DrawsGraph(PredictionGraph):
    """One plain network for each draw, or the single one of the mean: the networks of a predictor."""

    def __init__(self, predictor: Predictor, network: nn.Module, data: DataDescription) -> None:
        example = torch.zeros(1, data.channels, data.size, data.size, device=predictor.device)
        super().__init__(predictor, predictor.networks(example), data)

    def predict(self, inputs: Tensor) -> AnyPrediction:
        """One forward pass for each draw."""
        split = self.head.split()
        split.update(torch.stack([network(inputs) for network in self.networks]))
        return split.compute()


class MomentsGraph(PredictionGraph):
    """Means and variances in one pass."""

    def __init__(self, predictor: Predictor, network: nn.Module, data: DataDescription) -> None:
        super().__init__(predictor, [deep_copy(network)], data)
        for module in drawn_dropout(self.networks[0]):
            module.train()

    def predict(self, inputs: Tensor) -> AnyPrediction:
        """From propagated moments."""
        every = sys.maxsize if self.head.unit == "logit" else LOGITS
        split = self.head.split()
        split.update(logit_moments(self.networks[0], inputs, logits=every).points(self.predictor.samples))
        return split.compute()
