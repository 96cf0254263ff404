"""Prediction: mean probabilities with aleatoric and epistemic uncertainty.

The mean is that of the drawn probabilities, never of the logits. Draws are accumulated block by block, so memory does
not grow with their number; images are taken in batches, so it does not grow with theirs either. How draws are made is
in :mod:`dubito.prediction.draws`, how to do without them in :mod:`dubito.prediction.moments`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from enum import Enum
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dubito.errors import OptionError, ShapeError, choose
from dubito.estimators.base import Estimator, forced, make_estimator
from dubito.heads import Head, resolve_head
from dubito.heads.split import Prediction
from dubito.layers.base import BayesLayer, posteriors_kept
from dubito.prediction.draws import Draws, Route, make_draws
from dubito.prediction.moments import Propagate, predict_moments

__all__ = ["PredictionMethod", "Predictor", "PredictsItself", "drawn_dropout", "predict", "predictor"]


class PredictionMethod(str, Enum):
    """How the predictive distribution is approximated."""

    SAMPLE = "sample"
    MOMENTS = "moments"


BatchPredictor = Callable[[Tensor], Prediction]
"""Predicts a batch of images; all batches of one predictor have their draws in common."""


class PredictsItself(ABC):
    """A network of networks, such as an ensemble, that predicts by its members."""

    @abstractmethod
    def predictor(
        self, *, head: str | Head | None, generator: torch.Generator | None, **options: Any
    ) -> AbstractContextManager[BatchPredictor]:
        """What :func:`predictor` gives, with its options."""


class Predictor:
    """A trained network, frozen with a method, a number of draws and a seed: a pure function of an image.

    Args:
        model: any module whose outputs have a class axis 1.
        samples: draws of the network.
        method: ``weights``, ``local``, ``moments`` or ``mean``.
        seed: fixes the draws.
        head: how outputs become probabilities; None for the model's own.
        batch_size: how many images at once; the result does not depend on it.
        dropout: whether dropout layers draw too (MC dropout); None for what the model was built for.
        covariance: also give the (N, C, C) matrices.
    """

    def __init__(
        self,
        model: nn.Module,
        samples: int = 10,
        method: str = "weights",
        seed: int = 0,
        *,
        head: str | Head | None = None,
        batch_size: int = 256,
        dropout: bool | None = None,
        covariance: bool = False,
    ) -> None:
        self.model, self.samples, self.method, self.seed = model, samples, method, seed
        self.batch_size, self.covariance = batch_size, covariance
        self.head = resolve_head(model, head)
        self._options = {"batch_size": batch_size, "dropout": dropout, "covariance": covariance, "head": head}

    def __call__(self, images: Tensor | Iterable[Any], *, progress: bool = False) -> Prediction:
        """The prediction of images (N, ...), or of an iterable of batches."""
        how = {"weights": ("sample", "weights", None), "local": ("sample", "loop", None)}
        how |= {"moments": ("moments", "loop", None), "mean": ("sample", "loop", "mean")}
        method, route, estimator = how[self.method]
        generator = torch.Generator().manual_seed(self.seed)
        return predict(
            self.model,
            images,
            self.samples,
            method,
            generator=generator,
            route=route,
            estimator=estimator,
            progress=progress,
            **self._options,
        )

    def draws(self, images: Tensor) -> Tensor:
        """The probabilities of each draw: (T, N, C)."""
        probs: list[Tensor] = []
        hook = self.model.register_forward_hook(lambda _, __, out: probs.append(self.head.probs(out)))
        try:
            self(images)
        finally:
            hook.remove()
        return torch.stack(probs)

    def networks(self) -> list[nn.Module]:
        """A plain network of torch for each draw, in evaluation mode."""
        from dubito.convert import to_deterministic

        generator = torch.Generator().manual_seed(self.seed)
        draw = self.method != "mean"
        return [to_deterministic(self.model, draw=draw, generator=generator).eval() for _ in range(self.samples)]


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
    route: str = "auto",
    dropout: bool | None = None,
    covariance: bool = False,
    progress: bool = False,
) -> Prediction:
    """Mean probabilities of images with their uncertainty, by draws of any network.

    Works in training and evaluation mode alike and leaves the mode, the global random state and all buffers as they
    were; predictions in several threads wait for each other. A network without anything to draw has epistemic
    uncertainty 0. With the kendall_gal head the two uncertainties are those of the logits.

    Args:
        model: any module whose outputs have a class axis 1.
        inputs: a tensor of images, or any iterable of batches: tensors, or tuples that start with one.
        samples: draws of the network.
        method: ``sample``, or ``moments``, which passes means and variances through the network instead of drawing.
        head: how outputs become probabilities; None for the model's own.
        generator: makes the draws reproducible. Without one they start from the global random state, which stays as
            it is: the same call gives the same result until the state moves on.
        batch_size: how many images at once. With ``weight`` draws the result does not depend on it.
        estimator: None for the one in force by :func:`dubito.estimator`, or else each layer's own, where `route` leaves
            it to the layers.
        route: how draws are made. ``loop``: one after the other by the layers' estimators. ``stacked``: many draws of
            few images as one large batch, the same draws by ``local``. ``weights``: the weights of a draw once for
            all images, in antithetic pairs; exact where ``local`` treats the positions of a convolution as independent.
            ``auto`` takes, if no estimator is asked for and all layers are ``local``, ``weights`` for 32 images at
            once or more, and ``stacked`` for fewer; ``loop`` otherwise. ``local`` finds less epistemic uncertainty than
            ``weights``, so name one route for predictions that are to be compared. See :mod:`dubito.prediction.draws`.
        dropout: whether dropout layers draw too (MC dropout); None for what the model was built for.
        covariance: also give the (N, C, C) matrices.
        progress: show a progress bar with the time left.

    >>> import dubito
    >>> model = dubito.attach_head(dubito.BayesLinear(4, 3), "softplus")
    >>> prediction = predict(model, torch.randn(5, 4), samples=20)
    >>> prediction.probs.shape, bool((prediction.epistemic > 0).all())
    (torch.Size([5, 3]), True)
    """
    if samples < 1:
        raise OptionError(f"samples is {samples}, but a prediction needs at least 1 draw.")
    if batch_size < 1:
        raise OptionError(f"batch_size is {batch_size}, but must be at least 1.")
    with (
        _one_at_a_time,
        predictor(
            model,
            samples=samples,
            method=choose(PredictionMethod, method, "method"),
            head=head,
            generator=generator,
            batch_size=batch_size,
            estimator=estimator,
            route=choose(Route, route, "route"),
            dropout=dropout,
            covariance=covariance,
        ) as predicted,
    ):
        parts = [predicted(batch) for batch in _batches(inputs, batch_size, progress)]
    if not parts:
        raise ShapeError("There are no images to predict: the inputs are empty.")
    return Prediction.cat(parts)


_one_at_a_time = RLock()
"""Held by a prediction: it changes modes and estimators of the network and seeds the global generators, and puts all of
them back at the end."""


def predictor(model: nn.Module, **options: Any) -> AbstractContextManager[BatchPredictor]:
    """What predicts batches of images while its context lasts, with the options of :func:`predict`."""
    return model.predictor(**options) if isinstance(model, PredictsItself) else _predictor(model, **options)


@contextmanager
def _predictor(
    model: nn.Module,
    *,
    samples: int,
    method: PredictionMethod,
    head: str | Head | None,
    generator: torch.Generator | None,
    batch_size: int,
    estimator: str | Estimator | None,
    route: Route,
    dropout: bool | None,
    covariance: bool,
) -> Iterator[BatchPredictor]:
    chosen = resolve_head(model, head)
    if not chosen.classifies:
        raise OptionError(
            f"predict got the {chosen.name} head, but gives class probabilities: use a classification head."
        )
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    propagate, draws = Propagate(), None

    def predicted(batch: Tensor) -> Prediction:
        nonlocal draws
        batch = batch.to(device)
        # For this batch alone: members of an ensemble may have layers in common, but not their modes.
        with _drawing(model, estimator, dropout):
            if method is PredictionMethod.MOMENTS:
                # A copy, for the network may change it in place.
                return predict_moments(model, batch.clone(), chosen, covariance=covariance, propagate=propagate)
            if draws is None:
                draws = make_draws(route, model, samples, generator, len(batch), batch_size, estimator is None)
            return _predict_batch(draws, batch, chosen, covariance)

    with torch.no_grad(), _isolated_random_state(device), posteriors_kept(model):
        yield predicted


def _predict_batch(draws: Draws, batch: Tensor, head: Head, covariance: bool) -> Prediction:
    """The prediction of one batch from blocks of draws (T, N, C, ...)."""
    split = head.split(covariance)
    with closing(draws.of(batch)) as blocks:
        for outputs in _joined(blocks):
            split.update(outputs)
    return split.compute()  # type: ignore[return-value]


TOGETHER = 1 << 16
"""Outputs of small blocks that become probabilities together, as most of their time would go into calls."""


def _joined(blocks: Iterable[Tensor]) -> Iterator[Tensor]:
    """The same draws in fewer blocks, as long as these stay small."""
    waiting: list[Tensor] = []
    for block in blocks:
        if waiting and sum(part.numel() for part in waiting) + block.numel() > TOGETHER:
            yield torch.cat(waiting)
            waiting.clear()
        waiting.append(block)
    if waiting:
        yield waiting[0] if len(waiting) == 1 else torch.cat(waiting)


def drawn_dropout(model: nn.Module, asked: bool | None = None) -> list[nn.Module]:
    """The dropout layers that a prediction draws: all, none, or those of the parts that are MC dropout."""
    parts = list(model.modules()) if asked is None else [model] if asked else []
    roots = [part for part in parts if asked or getattr(part, "draws_dropout", False)]
    return [module for root in roots for module in root.modules() if isinstance(module, _DropoutNd)]


@contextmanager
def _drawing(model: nn.Module, given: str | Estimator | None, dropout: bool | None) -> Iterator[None]:
    """Inside, the network is in evaluation mode but draws; afterwards every module has its mode back."""
    layers = [layer for layer in model.modules() if isinstance(layer, BayesLayer)]
    chosen = None if given is None else make_estimator(given)
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        for module in drawn_dropout(model, dropout):
            module.train()
        with forced({layer: chosen or layer.forced_estimator or layer.estimator for layer in layers}):
            yield
    finally:
        for module, training in modes:
            module.training = training


def _isolated_random_state(device: torch.device) -> Any:
    if device.type in ("cpu", "meta"):
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=[device], device_type=device.type)


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
