"""The module that is exported: bytes of images in, the fields of a prediction out."""

from __future__ import annotations

import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from dubito.convert import deep_copy
from dubito.data import channel_constants, standardize
from dubito.decisions import SCORES, Rule
from dubito.errors import DubitoWarning, OptionError, choose
from dubito.exporting.description import FITTED, What
from dubito.heads.split import Prediction, Sampling
from dubito.prediction import Ensemble, Predictor, drawn_dropout, pool
from dubito.prediction.calibrated import calibrate
from dubito.prediction.moments import LOGITS, logit_moments
from dubito.prediction.novelty import Novelty, Observed, Observer
from dubito.runs.description import DataDescription
from dubito.runs.validation import Calibration
from dubito.variational.posterior import posteriors

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


@dataclass(frozen=True)
class Fitted:
    """What was fitted for a network; None for what a graph is to do without.

    Attributes:
        novelty: how unlike the training images an image is.
        rule: what to do with a prediction.
        calibration: of a run; its threshold decides which classes are in a conformal set.
        temperature: calibrates the probabilities that the graph gives. The others are about probabilities as they are.
    """

    novelty: Novelty | None = None
    rule: Rule | None = None
    calibration: Calibration | None = None
    temperature: float | None = None

    def names(self) -> list[str]:
        """The outputs that this adds, in order."""
        given = (self.novelty, self.rule, self.calibration)
        return [name for name, part in zip(FITTED, given, strict=True) if part is not None]


def make_graph(
    network: nn.Module,
    data: DataDescription,
    what: What | str | None,
    samples: int,
    fitted: Fitted | None = None,
) -> PredictionGraph:
    """The module to export for a network, which stays as it is.

    `what` None means draws, or the mean if the network has nothing to draw.
    """
    if samples < 1:
        raise OptionError(f"samples is {samples}, but draws need at least 1.")
    draws = _draws(network)
    kind = (What.DRAWS if draws else What.MEAN) if what is None else choose(What, what, "what")
    if kind is not What.MEAN and not draws:
        raise OptionError(
            f"what is {kind.value!r}, but the network has nothing to draw: it is a point estimate, so export 'mean'."
        )
    fitted = fitted or Fitted()
    if fitted.rule is not None and fitted.rule.needs_novelty and fitted.novelty is None:
        raise OptionError("The rule needs the novelty of an image, but none is exported: give novelty too.")
    count = samples if kind is What.DRAWS else 1
    calibrated = False if fitted.temperature is None else fitted.temperature
    predictor = Predictor(network, count, METHODS[kind], calibrated=calibrated)
    predictor.use(fitted.novelty)
    if fitted.rule is not None:
        if few := fitted.rule.warning(predictor.samples, predictor.sampling == Sampling.EXACT):
            warnings.warn(few, DubitoWarning, stacklevel=4)
        if not fitted.rule.can_decide(predictor.samples):
            fitted = replace(fitted, rule=None)
    return _graph(predictor, network, data, fitted)


def _graph(predictor: Predictor, network: nn.Module, data: DataDescription, fitted: Fitted) -> PredictionGraph:
    """The graph that equals a predictor of the network; what was fitted belongs to an ensemble, not to its members."""
    if isinstance(network, Ensemble):
        pairs = zip(predictor.members, network.members, strict=True)
        return EnsembleGraph(predictor, [_graph(own, member, data, Fitted()) for own, member in pairs], data, fitted)
    graph = MomentsGraph if predictor.method == METHODS[What.MOMENTS] else DrawsGraph
    return graph(predictor, network, data, fitted)


def _draws(network: nn.Module) -> bool:
    """Whether two draws of the network can differ; those of an ensemble are its members at least."""
    return isinstance(network, Ensemble) or bool(drawn_dropout(network)) or bool(posteriors(network))


class PredictionGraph(nn.Module, ABC):
    """Images (N, C, H, W) of bytes to the tensors that `outputs` names.

    Attributes:
        networks: the networks that make the prediction.
        observers: networks that make features alone, where the prediction has none for novelty.
        predictor: what the graph must agree with.
        fitted: what it knows besides the network.
        outputs: the names of what it gives.
    """

    shift: Tensor
    scale: Tensor

    def __init__(
        self, predictor: Predictor, networks: Sequence[nn.Module], data: DataDescription, fitted: Fitted
    ) -> None:
        super().__init__()
        self.predictor = predictor
        self.head = predictor.head
        if not self.head.classifies:
            raise OptionError(f"The network has the {self.head.name} head, but only classifiers can be exported.")
        self.outputs = [*OUTPUTS, *fitted.names()]
        self.fitted = fitted
        self.score = None if fitted.novelty is None else deep_copy(fitted.novelty.score).cpu()
        observers = self._observers(data) if fitted.novelty is not None else []
        self.observers = nn.ModuleList(observers).cpu().eval().requires_grad_(False)
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
        """The prediction's tensors, in the order of `outputs`."""
        inputs = self.prepare(images)
        seen: list[Observed] = []
        prediction = self.predict(inputs, seen)
        if self.score is not None:
            seen = seen or [observer(inputs) for observer in self.observers]
            prediction = replace(prediction, novelty=self.score(Observed.mean(seen)))
        found: dict[str, Tensor] = {}
        if prediction.novelty is not None:
            found["novelty"] = prediction.novelty.float()
        if self.fitted.rule is not None:
            found["decision"] = decision(self.fitted.rule, prediction)
        if self.fitted.calibration is not None:
            found["conformal"] = _conformal(self.fitted.calibration, prediction)
        if self.predictor.temperature is not None:
            prediction = calibrate(prediction, self.predictor.temperature)
        return (*(getattr(prediction, name).float() for name in OUTPUTS.values()), *found.values())

    @abstractmethod
    def predict(self, inputs: Tensor, seen: list[Observed]) -> Prediction:
        """The prediction of normalised images; `seen` gets the features that novelty needs, if it makes them."""

    def _observers(self, data: DataDescription) -> list[nn.Module]:
        """Networks that make the features for novelty."""
        novelty = self.fitted.novelty
        assert novelty is not None
        return [Observer(network, novelty.layers) for network in self.predictor.reference().networks(_example(data))]


def decision(rule: Rule, prediction: Prediction) -> Tensor:
    """(N,) what `rule` does, as a number: 0 accept, 1 review, 2 unfamiliar."""
    doubt = SCORES[rule.score](prediction)
    assert doubt is not None
    thresholds = torch.tensor(rule.thresholds, dtype=torch.float64)
    decided = (~(doubt.double() <= (thresholds[prediction.label] if rule.per_class else thresholds))).long()
    if rule.novelty_threshold is None:
        return decided
    assert prediction.novelty is not None
    unfamiliar = (prediction.novelty.double() > rule.novelty_threshold).long()
    return torch.maximum(decided, 2 * unfamiliar)


def _conformal(calibration: Calibration, prediction: Prediction) -> Tensor:
    """(N, C) whether a class is in the conformal set; without a threshold every class is."""
    threshold = float("inf") if calibration.threshold is None else calibration.threshold
    return 1 - prediction.probs.double() <= threshold


def _example(data: DataDescription) -> Tensor:
    return torch.zeros(1, data.channels, data.size, data.size)


class DrawsGraph(PredictionGraph):
    """One plain network for each draw, or the single one of the mean: the networks of a predictor."""

    def __init__(self, predictor: Predictor, network: nn.Module, data: DataDescription, fitted: Fitted) -> None:
        super().__init__(predictor, predictor.networks(_example(data).to(predictor.device)), data, fitted)
        if fitted.novelty is not None and predictor.measures_by_its_draws:
            first = [Observer(network, fitted.novelty.layers) for network in self.networks[:2]]
            self.networks, self.observers = nn.ModuleList([*first, *self.networks[2:]]), nn.ModuleList()

    def predict(self, inputs: Tensor, seen: list[Observed]) -> Prediction:
        """One forward pass for each draw."""
        outputs = []
        for network in self.networks:
            made = network(inputs)
            if isinstance(made, Observed):
                seen.append(made)
            outputs.append(made.outputs if isinstance(made, Observed) else made)
        split = self.head.split()
        split.update(torch.stack(outputs))
        return cast(Prediction, split.compute())


class MomentsGraph(PredictionGraph):
    """Means and variances in one pass."""

    def __init__(self, predictor: Predictor, network: nn.Module, data: DataDescription, fitted: Fitted) -> None:
        super().__init__(predictor, [deep_copy(network)], data, fitted)
        for module in drawn_dropout(self.networks[0]):
            module.train()

    def predict(self, inputs: Tensor, seen: list[Observed]) -> Prediction:
        """From propagated moments."""
        every = sys.maxsize if self.head.unit == "logit" else LOGITS
        split = self.head.split()
        split.update(logit_moments(self.networks[0], inputs, logits=every).points(self.predictor.samples))
        return cast(Prediction, split.compute())


class EnsembleGraph(PredictionGraph):
    """The graphs of all members, which count alike."""

    def __init__(
        self, predictor: Predictor, graphs: Sequence[PredictionGraph], data: DataDescription, fitted: Fitted
    ) -> None:
        super().__init__(predictor, [network for graph in graphs for network in graph.networks], data, fitted)
        self.graphs = nn.ModuleList(graphs)  # which share their networks with this one

    def predict(self, inputs: Tensor, seen: list[Observed]) -> Prediction:
        """The mixture of what the members predict."""
        parts = [cast(PredictionGraph, graph).predict(inputs, []) for graph in self.graphs]
        return pool(parts, [1.0] * len(parts))
