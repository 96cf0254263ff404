"""What every head has: a likelihood, a split of uncertainty, and facts about itself.

A head says how a network's outputs become a prediction, one and the same in training and prediction. Code outside this
folder asks a head about itself (`classifies`, `unit`) and never which one it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

from torch import Tensor
from typing_extensions import Unpack

from dubito.errors import OptionError, ShapeError
from dubito.heads.categorical import LabelOptions, categorical_log_likelihood
from dubito.heads.split import AnyPrediction, Decomposition
from dubito.softplus import at_least_single


class Split(Protocol):
    """Takes in draws of a network's outputs, block by block, and gives their prediction."""

    def update(self, outputs: Tensor) -> None:
        """Take in a block of draws (T, N, ...)."""

    def compute(self) -> AnyPrediction:
        """The prediction from all draws so far."""


class Head(ABC):
    """Turns a network's outputs into a likelihood and a prediction.

    Attributes:
        name: what it is called in settings.
        classifies: whether the outputs stand for classes.
        unit: what the two uncertainties of its prediction are variances of.
    """

    name: ClassVar[str]
    classifies: ClassVar[bool]
    unit: ClassVar[str]

    @abstractmethod
    def log_likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """log p(y | outputs) of each example, in nats: shape (N,)."""

    @abstractmethod
    def split(self, covariance: bool = False, sampling: str = "independent") -> Split:
        """A fresh accumulator of draws; with `covariance` its prediction has whole matrices.

        `sampling` says how the draws depend on each other: see :class:`~dubito.heads.split.Sampling`.
        """

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Log-probabilities (N, C, ...), for heads that classify."""
        raise OptionError(f"The {self.name} head has no class probabilities: use softplus, softmax or kendall_gal.")

    def probs(self, outputs: Tensor) -> Tensor:
        """Probabilities (N, C, ...), for heads that classify."""
        return self.log_probs(outputs).exp()

    def num_outputs(self, num_classes: int) -> int:
        """How many outputs the network needs for so many classes or targets."""
        return num_classes


class ClassificationHead(Head):
    """A head whose likelihood is categorical; the class axis is 1, as in torch's losses."""

    classifies = True
    unit = "probability"

    @abstractmethod
    def log_probs(self, outputs: Tensor) -> Tensor:
        """Log-probabilities, shape (N, C, ...), in at least float32."""

    def log_likelihood(self, outputs: Tensor, targets: Tensor, **options: Unpack[LabelOptions]) -> Tensor:
        """Log-probability of the targets: class numbers (N, ...) or class probabilities (N, C, ...).

        Pixels of a dense output are summed, for each is an observation of its own. The options are class weights,
        a label to ignore and label smoothing: see :class:`~dubito.heads.categorical.CategoricalLikelihood`.
        """
        return categorical_log_likelihood(self.log_probs(outputs), targets, **options)

    def split(self, covariance: bool = False, sampling: str = "independent") -> Split:
        """The split of probabilities by Kwon et al."""
        return Decomposition(covariance, sampling, self.probs)


def with_class_axis(outputs: Tensor) -> Tensor:
    """The outputs in at least float32; an error if axis 1 is no class axis."""
    if outputs.dim() < 2 or outputs.shape[1] == 0:
        raise ShapeError(f"The outputs have shape {tuple(outputs.shape)}, but need a batch and a class axis: (N, C).")
    if not outputs.is_floating_point():
        raise ShapeError(
            f"The outputs are {outputs.dtype}, but must be floating point: give the network's raw outputs."
        )
    if outputs.shape[1] == 1:
        raise ShapeError(
            f"The outputs have shape {tuple(outputs.shape)}, but a single class always has probability 1: "
            "give the network one output per class, and two for a yes or no."
        )
    return at_least_single(outputs)
