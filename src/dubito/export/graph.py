"""The module that is exported: bytes of images in, the fields of a prediction out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from dubito.convert import deep_copy, to_deterministic
from dubito.errors import OptionError, choose
from dubito.estimators import drawing_layers, forced
from dubito.export.description import What
from dubito.heads import ClassificationHead, resolve_head
from dubito.layers import BayesLayer
from dubito.prediction import Prediction, PredictsItself, drawn_dropout
from dubito.prediction.draws import GivenWeights
from dubito.prediction.moments import predict_moments, split_outputs
from dubito.runs.run import DataDescription
from dubito.variational.posterior import Identity, Parameterization, Posterior

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


def make_graph(network: nn.Module, data: DataDescription, what: What | str | None, samples: int) -> PredictionGraph:
    """The module to export for a network, which stays as it is; None asks for all that the network has to say."""
    if isinstance(network, PredictsItself):
        raise OptionError(f"The network is an {type(network).__name__} of several; export its members one by one.")
    head = resolve_head(network)
    if not isinstance(head, ClassificationHead):
        raise OptionError(f"The network has the {head.name} head, but only classifiers can be exported.")
    if samples < 1:
        raise OptionError(f"samples is {samples}, but draws need at least 1.")
    bayesian = any(isinstance(layer, BayesLayer) for layer in network.modules())
    richest = What.MOMENTS if bayesian else What.DRAWS if drawn_dropout(network) else What.MEAN
    kind = richest if what is None else choose(What, what, "what")
    if kind is not What.MEAN and richest is What.MEAN:
        raise OptionError(
            f"what is {kind.value!r}, but the network has nothing to draw: it is a point estimate, so export 'mean'."
        )
    if kind is What.DRAWS:
        return DrawsGraph(network, data, head, samples)
    return (MomentsGraph if kind is What.MOMENTS else MeanGraph)(network, data, head)


class PredictionGraph(nn.Module, ABC):
    """Images (N, C, 32, 32) of bytes to the tensors that `OUTPUTS` names."""

    what: ClassVar[What]
    samples: int | None = None
    shift: Tensor
    scale: Tensor

    def __init__(self, network: nn.Module, data: DataDescription, head: ClassificationHead) -> None:
        super().__init__()
        self.network = network.cpu().eval().requires_grad_(False)
        self.head = head
        self.dtype = next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)
        # (x / 255 - mean) / std
        for name, values in (("shift", data.mean), ("scale", data.std)):
            constant = torch.tensor(values, dtype=torch.float64).mul(255).float()
            self.register_buffer(name, constant.view(-1, 1, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """The prediction's tensors, in the order of `OUTPUTS`."""
        prediction = self.predict(((images.to(self.shift.dtype) - self.shift) / self.scale).to(self.dtype))
        return tuple(getattr(prediction, name).float() for name in OUTPUTS.values())

    @abstractmethod
    def predict(self, inputs: Tensor) -> Prediction:
        """The prediction of normalised images."""


class MeanGraph(PredictionGraph):
    """The posterior means: p(1 - p) is aleatoric, nothing is epistemic."""

    what = What.MEAN

    def __init__(self, network: nn.Module, data: DataDescription, head: ClassificationHead) -> None:
        super().__init__(to_deterministic(network), data, head)

    def predict(self, inputs: Tensor) -> Prediction:
        """Of one draw that is the mean."""
        return split_outputs(self.head, self.network(inputs).unsqueeze(0))


class MomentsGraph(PredictionGraph):
    """Means and variances in one pass."""

    what = What.MOMENTS

    def __init__(self, network: nn.Module, data: DataDescription, head: ClassificationHead) -> None:
        super().__init__(frozen(network), data, head)
        for module in drawn_dropout(self.network):
            module.train()

    def predict(self, inputs: Tensor) -> Prediction:
        """From propagated moments."""
        return predict_moments(self.network, inputs, self.head)


class DrawsGraph(PredictionGraph):
    """Draws of the weights in antithetic pairs, each for the whole batch, as `dubito predict` makes them."""

    what = What.DRAWS

    def __init__(self, network: nn.Module, data: DataDescription, head: ClassificationHead, samples: int) -> None:
        drawing = frozen(network)
        _draw_masks(drawing)
        super().__init__(drawing, data, head)
        self.samples = samples
        self._posteriors = _same_posteriors(drawing_layers(self.network))

    def predict(self, inputs: Tensor) -> Prediction:
        """One forward pass for each draw."""
        layers = drawing_layers(self.network)
        noise: list[dict[str, Tensor]] = []
        outputs = []
        for index in range(self.samples or 1):
            if index % 2 == 0:
                noise = _shared_noise(layers, self._posteriors)
            drawn = [layer.draw(eps, -1 if index % 2 else 1) for layer, eps in zip(layers, noise, strict=True)]
            with forced(dict.fromkeys(layers, GivenWeights(dict(zip(map(id, layers), drawn, strict=True))))):
                outputs.append(self.network(inputs))
        return split_outputs(self.head, torch.stack(outputs))


def _same_posteriors(layers: list[BayesLayer]) -> list[dict[str, int]]:
    """A number for each posterior of each layer, the same for those that layers of tied weights share."""
    numbers: dict[Identity, int] = {}
    return [
        {name: numbers.setdefault(q.identity, len(numbers)) for name, q in layer.posteriors().items()}
        for layer in layers
    ]


def _shared_noise(layers: list[BayesLayer], posteriors: list[dict[str, int]]) -> list[dict[str, Tensor]]:
    noise: dict[int, Tensor] = {}
    for layer, numbers in zip(layers, posteriors, strict=True):
        fresh = layer.weight_noise()
        noise |= {number: fresh[name] for name, number in numbers.items() if number not in noise}
    return [{name: noise[number] for name, number in numbers.items()} for numbers in posteriors]


class _DrawnMask(nn.Module):
    """Dropout in every mode, by plain operations: few runtimes draw in the operator of that name."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Zeros with that probability, and the others larger."""
        kept = (torch.rand_like(x) >= self.probability).to(x.dtype)
        return x * kept / (1 - self.probability)


def _draw_masks(network: nn.Module) -> None:
    """Replace the dropout that is drawn, under all its names."""
    drawn, masks = {id(module) for module in drawn_dropout(network)}, dict[int, _DrawnMask]()
    for name, module in list(network.named_modules(remove_duplicate=False)):
        if id(module) not in drawn:
            continue
        if type(module) is nn.Dropout:
            network.set_submodule(name, masks.setdefault(id(module), _DrawnMask(module.p)))
        else:
            raise OptionError(
                f"what='draws' cannot draw the masks of {name!r} ({type(module).__name__}); export 'mean'."
            )


class _KnownPosterior(Posterior):
    """A posterior whose free parameter is sigma itself."""

    @property
    def _wide_std(self) -> Tensor:
        return self.free


def frozen(network: nn.Module) -> nn.Module:
    """A copy whose layers hold mu and sigma and nothing else: no free parameter of sigma, and no prior."""
    network = deep_copy(network).requires_grad_(False)
    sigmas: dict[Identity, Tensor] = {}
    for layer in [part for part in network.modules() if isinstance(part, BayesLayer)]:
        _freeze(layer, sigmas)
    return network


def _freeze(layer: BayesLayer, sigmas: dict[Identity, Tensor]) -> None:
    """`sigmas` remembers those of layers before, for tied ones."""
    for name, q in layer.posteriors().items():
        sigma = sigmas.setdefault(q.identity, q.std.detach().clone())
        delattr(layer, f"{name}_{layer.parameterization.parameter}")
        layer.register_buffer(f"{name}_sigma", sigma)
    del layer.prior

    def posteriors() -> dict[str, Posterior]:
        return {
            name: _KnownPosterior(getattr(layer, f"{name}_mean"), getattr(layer, f"{name}_sigma"), Parameterization.STD)
            for name in layer.bayesian
        }

    layer.posteriors = posteriors  # type: ignore[method-assign]
