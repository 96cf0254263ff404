"""Prediction: mean probabilities with aleatoric and epistemic uncertainty, from draws of a network.

The mean is that of the drawn probabilities, never of the logits. Draws are accumulated one by one, so memory does not
grow with their number; images are taken in batches, so it does not grow with theirs either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dubito.divergence import describe_non_finite
from dubito.errors import NonFiniteError, OptionError, ShapeError, choose
from dubito.estimators import Estimator, Mean, Weight, estimator, make_estimator
from dubito.head import ClassificationHead, Head, KendallGalHead, resolve_head
from dubito.layers import BayesLayer
from dubito.uncertainty import Decomposition, LogitDecomposition, Prediction

__all__ = ["PredictionMethod", "predict"]


class PredictionMethod(str, Enum):
    """How the predictive distribution is approximated."""

    SAMPLE = "sample"


def predict(
    model: nn.Module,
    inputs: Tensor | Iterable[Any],
    samples: int = 10,
    method: str = "sample",
    head: str | Head | None = None,
    generator: torch.Generator | None = None,
    *,
    batch_size: int = 256,
    estimator: str | Estimator | None = None,
    dropout: bool | None = None,
    covariance: bool = False,
    progress: bool = False,
) -> Prediction:
    """Mean probabilities of images with their uncertainty, by draws of any network.

    Works in training and evaluation mode alike and leaves the mode, the global random state and all buffers as they
    were. A network without anything to draw has epistemic uncertainty 0. With the kendall_gal head the two
    uncertainties are those of the logits.

    Args:
        model: any module whose outputs have a class axis 1.
        inputs: a tensor of images, or any iterable of batches: tensors, or tuples that start with one.
        samples: draws of the network.
        method: ``sample``.
        head: how outputs become probabilities; None for the model's own.
        generator: makes the draws reproducible. Without one they start from the global random state, which stays as
            it is: the same call gives the same result until the state moves on.
        batch_size: how many images at once. With ``weight`` draws the result does not depend on it.
        estimator: None for each layer's own.
        dropout: whether dropout layers draw too (MC dropout); None for what the model was built for.
        covariance: also give the (N, C, C) matrices.
        progress: show a progress bar with the time left.

    >>> import dubito
    >>> model = dubito.attach_head(dubito.BayesLinear(4, 3), "softplus")
    >>> prediction = predict(model, torch.randn(5, 4), samples=20)
    >>> prediction.probs.shape, bool((prediction.epistemic > 0).all())
    (torch.Size([5, 3]), True)
    """
    choose(PredictionMethod, method, "method")
    if samples < 1:
        raise OptionError(f"samples is {samples}, but a prediction needs at least 1 draw.")
    if batch_size < 1:
        raise OptionError(f"batch_size is {batch_size}, but must be at least 1.")
    chosen = resolve_head(model, head)
    if not isinstance(chosen, ClassificationHead):
        raise OptionError(
            f"predict got the {chosen.name} head, but gives class probabilities: use a classification head."
        )
    dropout = bool(getattr(model, "draws_dropout", False)) if dropout is None else dropout
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    parts = []
    with torch.no_grad(), _drawing(model, estimator, dropout), _isolated_random_state(device):
        seeds = _Seeds(samples, generator, shared=_draws_do_not_depend_on_the_batch(model, dropout))
        for batch in _batches(inputs, batch_size, progress):
            parts.append(_predict_batch(model, batch.to(device), chosen, seeds.of_batch(), covariance))
    if not parts:
        raise ShapeError("There are no images to predict: the inputs are empty.")
    return Prediction.cat(parts)


def _predict_batch(
    model: nn.Module, batch: Tensor, head: ClassificationHead, seeds: list[int], covariance: bool
) -> Prediction:
    split: Decomposition | LogitDecomposition
    kendall_gal = isinstance(head, KendallGalHead)
    split = LogitDecomposition(covariance) if kendall_gal else Decomposition(covariance)
    first: Tensor | None = None
    for index, seed in enumerate(seeds):
        _seed(batch.device, seed)
        state = _random_state(batch.device)
        outputs = model(batch)
        _require_outputs(outputs, batch, model)
        # Equal outputs alone may be chance: two dropout masks are often the same.
        nothing_drawn = torch.equal(state, _random_state(batch.device)) and not kendall_gal
        if index == 1 and nothing_drawn and first is not None and torch.equal(first, outputs):
            break
        first = outputs if index == 0 else None
        probs = head.probs(outputs).unsqueeze(0)
        if isinstance(split, LogitDecomposition):
            assert isinstance(head, KendallGalHead)
            mean, variance = head.logit_moments(outputs)
            split.update(probs, mean.unsqueeze(0), variance.unsqueeze(0))
        else:
            split.update(probs)
    return split.compute()


def _require_outputs(outputs: Any, batch: Tensor, model: nn.Module) -> None:
    if not isinstance(outputs, Tensor):
        raise ShapeError(
            f"The model returned {type(outputs).__name__}, but predict needs a tensor of logits (N, C): wrap the model "
            "in one that returns it."
        )
    if outputs.dim() < 2 or outputs.shape[0] != batch.shape[0]:
        raise ShapeError(
            f"The model made outputs of shape {tuple(outputs.shape)} from inputs of shape {tuple(batch.shape)}, but "
            "logits need a batch and a class axis: (N, C)."
        )
    if not bool(outputs.isfinite().all()):
        raise NonFiniteError(f"The model's outputs are not finite: {describe_non_finite(model)}")


@contextmanager
def _drawing(model: nn.Module, given: str | Estimator | None, dropout: bool) -> Iterator[None]:
    """Inside, the network is in evaluation mode but draws; afterwards every module has its mode back."""
    chosen = None if given is None else make_estimator(given)
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        for module, _ in modes:
            if dropout and isinstance(module, _DropoutNd):
                module.train()
        with estimator(model, chosen):
            yield
    finally:
        for module, training in modes:
            module.training = training


def _draws_do_not_depend_on_the_batch(model: nn.Module, dropout: bool) -> bool:
    layers = [m for m in model.modules() if isinstance(m, BayesLayer)]
    if dropout and any(isinstance(m, _DropoutNd) for m in model.modules()):
        return False
    return all(layer.forced_estimator in (Weight(), Mean()) for layer in layers)


class _Seeds:
    """A seed for each draw: the same for every batch if only weights are drawn, else new ones for each batch."""

    def __init__(self, samples: int, generator: torch.Generator | None, shared: bool) -> None:
        device = "cpu" if generator is None else generator.device
        base = int(torch.randint(2**62, (), generator=generator, device=device))
        self._stream = torch.Generator().manual_seed(base)
        self._samples = samples
        self._shared = self._next() if shared else None

    def _next(self) -> list[int]:
        return torch.randint(2**62, (self._samples,), generator=self._stream).tolist()

    def of_batch(self) -> list[int]:
        return self._shared or self._next()


def _isolated_random_state(device: torch.device) -> Any:
    if device.type in ("cpu", "meta"):
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=[device], device_type=device.type)


def _seed(device: torch.device, seed: int) -> None:
    """Seed the global generators that layers on `device` draw from, and no others."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type not in ("cpu", "meta"):
        getattr(torch, device.type).manual_seed(seed)


def _random_state(device: torch.device) -> Tensor:
    """The state of the generator that layers on `device` draw from."""
    if device.type in ("cpu", "meta"):
        return torch.default_generator.get_state()
    return getattr(torch, device.type).get_rng_state(device)


def _batches(inputs: Tensor | Iterable[Any], batch_size: int, progress: bool) -> Iterator[Tensor]:
    """Batches of at most `batch_size` images from a tensor or an iterable, with a progress bar on request."""
    if isinstance(inputs, Tensor):
        source: Iterable[Any] = inputs.split(batch_size) if inputs.dim() else (inputs,)
    elif isinstance(inputs, Iterable):
        source = inputs
    else:
        raise ShapeError(f"The inputs are {inputs!r}, but must be a tensor of images or an iterable of batches.")
    with _progress_bar(_length(source)) if progress else nullcontext(lambda: None) as advance:
        for item in source:
            batch = item[0] if isinstance(item, (tuple, list)) and item else item
            if not isinstance(batch, Tensor) or batch.dim() == 0:
                raise ShapeError(
                    f"The inputs hold a {type(batch).__name__}, but must be a tensor of images or an iterable of "
                    "batches: tensors, or tuples that start with one."
                )
            yield from (part for part in batch.split(batch_size) if len(part))
            advance()


def _length(source: Iterable[Any]) -> int | None:
    try:
        return len(source)  # type: ignore[arg-type]
    except TypeError:  # a stream, or a DataLoader around one
        return None


@contextmanager
def _progress_bar(total: int | None) -> Iterator[Any]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Predicting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
