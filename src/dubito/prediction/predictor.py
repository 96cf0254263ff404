"""Predictors: a trained network, frozen with a method, a number of draws and a seed.

A predictor is a pure function from an image to a prediction. The same image has the same prediction alone or in a batch
of any size, in any order, thread or process. Mean probabilities are means of drawn probabilities, never of logits.
"""

from __future__ import annotations

import math
import os
import warnings
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from dubito.convert.deterministic import fill, plain_network
from dubito.errors import DubitoWarning, OptionError, ShapeError, choose
from dubito.heads import Head, resolve_head
from dubito.heads.split import AnyPrediction, Prediction, Sampling
from dubito.models.ensemble import Ensemble
from dubito.prediction.calibrated import calibrate
from dubito.prediction.draws import Draws, LocalDraws, MeanDraws, WeightDraws
from dubito.prediction.moments import MomentDraws
from dubito.prediction.novelty import (
    FILE,
    Novelty,
    Observed,
    find_layers,
    fit,
    multiplications,
    reference_numbers,
)
from dubito.prediction.pictures import Picture, as_pictures, read_pictures
from dubito.prediction.pooling import pool
from dubito.prediction.weights import seeds_of
from dubito.progress import track
from dubito.runs.attached import data_of, require_data
from dubito.variational.posterior import posteriors
from dubito.variational.unused import looked_at, unused, warn_of_unused

if TYPE_CHECKING:
    from dubito.decisions import Rule
    from dubito.runs.description import DataDescription
    from dubito.runs.run import Run

MEMORY = 1 << 30
"""Bytes of drawn weights that a predictor keeps unless asked."""
FIRST_IMAGES = 8
"""How many images the search for posteriors that are not used takes at most."""


class Method(str, Enum):
    """How the predictive distribution is computed."""

    WEIGHTS = "weights"
    LOCAL = "local"
    MOMENTS = "moments"
    MEAN = "mean"


class _Meter:
    """Measures the novelty of images in the features of two draws; threads can share it.

    Attributes:
        draws: they make the features; a prediction by the same draws has them already.
        novelty: what was fitted.
    """

    def __init__(self, draws: WeightDraws, novelty: Novelty, device: torch.device) -> None:
        self.draws = draws
        self.novelty = replace(novelty, score=novelty.score.to(device))
        draws.watch(novelty.layers)

    def __call__(self, images: Tensor, seen: list[Observed]) -> Tensor:
        """The novelty (N,) of images; `seen` may hold what a prediction by the meter's draws saw of them."""
        return self.novelty(seen[0] if seen else self.draws.observed(images))


class Predictor:
    """A copy of a network with a fixed method, number of draws and seed: call it with images.

    Later changes of `model` do not affect it. It does not change `model` or any random state. Threads can share it.

    Args:
        model: any module whose outputs have a class axis 1, an ensemble, a run or its folder.
        samples: draws of the network. In an ensemble they are divided equally among the members, rounded up, and each
            member has its own seed. A network with nothing to draw predicts once.
        method: ``weights``, draws of the posterior itself, in antithetic pairs, the same for every image.
            ``local``: draws of activations by the local reparameterisation trick; it treats the positions of a
            convolution as independent and so finds less epistemic uncertainty. ``moments``: means and variances in one
            pass, which treats units as independent within a layer but for the last ones (see
            :mod:`dubito.prediction.moments`). ``mean``: the posterior mean alone, without epistemic uncertainty.
        seed: fixes the draws.
        head: how outputs become a prediction; None for the model's own.
        batch_size: how many images at once; it does not change the predictions.
        dropout: whether dropout layers draw too (MC dropout); None for what the model was built for.
        covariance: also give the (N, C, C) matrices.
        calibrated: give calibrated probabilities (see :mod:`dubito.prediction.calibrated`): True by the temperature in
            the validation record of a run, fitted for 10 draws of the weights, or by that of a saved predictor; or a
            temperature.
        memory: bytes of drawn weights to keep; beyond it, they are made again from their seeds for every batch.

    >>> import dubito
    >>> model = dubito.attach_head(dubito.BayesLinear(4, 3), "softplus")
    >>> predictor = Predictor(model, samples=20)
    >>> images = torch.randn(5, 4)
    >>> bool((predictor(images).epistemic > 0).all())
    True
    >>> predictor.draws(images).shape
    torch.Size([20, 5, 3])
    """

    def __init__(
        self,
        model: nn.Module | str | os.PathLike[str] | Run,
        samples: int = 10,
        method: str = "weights",
        seed: int = 0,
        *,
        head: str | Head | None = None,
        batch_size: int = 256,
        dropout: bool | None = None,
        covariance: bool = False,
        calibrated: bool | float = False,
        memory: int = MEMORY,
        _share: bool = False,
    ) -> None:
        if samples < 1:
            raise OptionError(f"samples is {samples}, but a prediction needs at least 1 draw.")
        if batch_size < 1:
            raise OptionError(f"batch_size is {batch_size}, but must be at least 1.")
        self.method = choose(Method, method, "method").value
        self.samples = samples
        self.seed, self.batch_size, self.covariance = seed, batch_size, covariance
        self._members: list[Predictor] = []
        self._draws: Draws | None = None
        self._meter: _Meter | None = None
        self.rule: Rule | None = None
        source: Run | Path | None = None
        self.temperature = _temperature(model, calibrated)
        if not isinstance(model, nn.Module):
            from dubito.saving import open_folder

            if not isinstance(model, (str, os.PathLike)) and not hasattr(model, "config"):
                raise OptionError(f"model is a {type(model).__name__}, but must be a module, a run or its folder.")
            model, source = open_folder(model)
        self.data = data_of(model)
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        if isinstance(model, Ensemble):
            self.head = resolve_head(model)
            inherited = True if getattr(model, "draws_dropout", False) else dropout
            options: dict[str, Any] = {"dropout": inherited, "covariance": covariance, "_share": _share}
            share = math.ceil(samples / len(model.members))
            self._members = [
                Predictor(part, share, method, number, head=own, memory=memory // len(model.members), **options)
                for part, own, number in zip(
                    model.members, model.heads_for(head), seeds_of(seed, len(model.members)), strict=True
                )
            ]
            self.samples = sum(member.samples for member in self._members)
        else:
            self.head = resolve_head(model, head)
            self._model = weakref.ref(model)
            self._draws = _make_draws(model, samples, self.method, seed, dropout, memory, self.head, _share)
            self.samples = self._draws.samples
        if self.temperature is not None and not self.head.classifies:
            raise OptionError(f"The network has the {self.head.name} head, but only probabilities can be calibrated.")
        if source is not None:
            self.use_fitted(source)

    @property
    def sampling(self) -> str:
        """How the draws depend on each other: ``antithetic`` pairs, ``independent``, or ``exact`` if not random.

        Members of an ensemble have their own, and are independent of each other.
        """
        return Sampling.INDEPENDENT.value if self._draws is None else self._draws.sampling.value

    def __call__(self, images: Tensor | Picture | Iterable[Any], *, progress: bool = False) -> Any:
        """The prediction of images (N, ...), or of an iterable of batches: tensors, or tuples that start with one.

        Photographs are prepared as in the network's training, if it says how (:func:`dubito.attach_data`; networks of
        runs do): a path, the bytes of a file, an image of Pillow, an array (H, W, 3) of bytes, or a list of these.
        """
        parts = [self._predict(batch) for batch in self._batches(self._read(images), progress)]
        if not parts:
            raise ShapeError("There are no images to predict: the inputs are empty.")
        whole = type(parts[0]).cat(parts)  # type: ignore[arg-type]
        if not isinstance(whole, Prediction):
            return whole
        if self.data is not None and whole.probs.shape[1] != len(self.data.class_names):
            raise ShapeError(
                f"The network tells {whole.probs.shape[1]} classes apart, but {len(self.data.class_names)} class names "
                "come with it; give one for each class."
            )
        if self.rule is not None:
            if few := self.rule.warning(whole.samples, self.sampling == Sampling.EXACT):
                warnings.warn(few, DubitoWarning, stacklevel=2)
            if self.rule.suits(whole):
                whole = self.rule.apply(whole)  # fitted to probabilities as they are, so before they are calibrated
        return whole if self.temperature is None else calibrate(whole, self.temperature)

    def _read(self, images: Tensor | Picture | Iterable[Any]) -> Tensor | Iterable[Any]:
        """Tensors or batches as they are, photographs as batches."""
        pictures = None if isinstance(images, Tensor) else as_pictures(images)
        if pictures is None:
            return cast(Iterable[Any], images)
        return read_pictures(pictures, require_data(self.data, "Reading photographs"), self.batch_size)

    def draws(self, images: Tensor | Picture | Iterable[Any]) -> Tensor:
        """The probabilities of each draw (T, N, C, ...); for regression, the outputs of each draw.

        Members of an ensemble have equally many: those with fewer repeat theirs.
        """
        parts = [torch.cat(list(self._drawn(batch))) for batch in self._batches(self._read(images), False)]
        if not parts:
            raise ShapeError("There are no images to predict: the inputs are empty.")
        return torch.cat(parts, 1)

    @property
    def members(self) -> list[Predictor]:
        """The predictors of an ensemble's members; of a single network, this one."""
        return self._members or [self]

    def networks(self, example: Tensor | None = None) -> list[nn.Module]:
        """A plain network of torch for each draw, in evaluation mode: for export.

        Networks with MC dropout need an `example` image to make masks for.
        """
        if self._members:
            return [network for member in self._members for network in member.networks(example)]
        if not isinstance(self._draws, WeightDraws):
            raise OptionError(f"method is {self.method!r}, but only draws of weights are plain networks.")
        return self._draws.networks(example)

    @property
    def novelty(self) -> Novelty | None:
        """How novelty is measured, once it was fitted."""
        return None if self._meter is None else self._meter.novelty

    def fit_novelty(
        self,
        batches: Iterable[Any] | Tensor,
        held_out: Iterable[Any] | Tensor | None = None,
        *,
        seed: int = 0,
        weights: str | None = None,
        last: int | None = None,
    ) -> Novelty:
        """Learn what the training images look like; after that, predictions have a `novelty`.

        A trial on held-out images chooses the score and the layers; it needs no other data set
        (:mod:`dubito.prediction.novelty.trial`). Features are the mean over two draws, the first pair of seed 0, for
        every method; predictions by draws with that seed compute them anyway. An ensemble uses the features of its
        first member. A rule that looks at novelty does not fit the new one: it is dropped with a warning.

        Args:
            batches: training images as the network takes them, in random order: (images, labels), or images alone,
                for which the network's own predictions count as labels. The first 10,000 images are enough.
            held_out: the same for images that the network was not trained on. Without them a tenth of the training
                images is used, and false alarms are more frequent than stated.
            seed: of the choice of images and of the outliers made from them.
            weights: a name for the network's weights, kept with the result; a run's fingerprint.
            last: how many of the last layers are looked at; fewer take less room where it is kept. None for all.

        >>> import dubito
        >>> network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> predictor = Predictor(dubito.attach_head(network, "softmax"))
        >>> fitted = predictor.fit_novelty(torch.randn(300, 8), torch.randn(100, 8))
        >>> predictor(torch.randn(5, 8)).novelty.shape, 0 < fitted.percentile(fitted.held_out[50]) < 1
        (torch.Size([5]), tensor(True))
        """
        if not self.head.classifies:
            raise OptionError(f"The network has the {self.head.name} head, but novelty is measured for classifiers.")
        if last is not None and last < 1:
            raise OptionError(f"last is {last}, but at least 1 layer must be looked at.")
        training, apart = (None if given is None else self._labelled(given) for given in (batches, held_out))
        assert training is not None
        draws = self.reference()
        with torch.inference_mode(False), torch.no_grad():
            first = next(training, None)
            if first is None:
                raise ShapeError("There are no images to fit novelty on: the batches are empty.")
            few = first[0][:2].to(self.device)
            layers = find_layers(draws.mean_network(), few)[-last if last else None :]
            numbers = reference_numbers(multiplications(draws.mean_network(), few))
            draws.watch(layers)

            def observe(images: Tensor) -> Observed:
                return draws.observed(images.to(self.device))

            fitted = fit(observe, layers, self._reference_head, chain([first], training), apart, seed, numbers)
        fitted = replace(fitted, notes={**(fitted.notes or {}), "weights": weights})
        self._meter = _Meter(draws, fitted, self.device)
        if self.rule is not None and self.rule.needs_novelty:
            self.rule = None
            warnings.warn(
                "The predictor's rule was fitted to another novelty, so there are no decisions any more; fit a rule to "
                "new predictions (dubito.decisions.fit) and set predictor.rule to it.",
                DubitoWarning,
                stacklevel=2,
            )
        return fitted

    def measure_novelty(self, images: Tensor) -> Tensor | None:
        """(N,) the novelty of images alone, without a prediction; None if it was not fitted."""
        if self._meter is None:
            return None
        with torch.inference_mode(False), torch.no_grad():
            return torch.cat([self._meter(batch.to(self.device), []) for batch in self._batches(images, False)])

    def draws_and_novelty(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """The probabilities of each draw (T, N, C), and the novelty (N,) of images if it was fitted."""
        draws, novelty = [], []
        for batch in self._batches(images, False):
            seen: list[Observed] = []
            draws.append(torch.cat(list(self._drawn(batch, seen if self.measures_by_its_draws else None))))
            if self._meter is not None:
                with torch.inference_mode(False), torch.no_grad():
                    novelty.append(self._meter(batch.to(self.device), seen))
        return torch.cat(draws, 1), torch.cat(novelty) if novelty else None

    def use_fitted(self, source: Run | Path, checkpoint: str = "best") -> None:
        """Take the novelty and the rule of a run, or those that were saved with a network in its folder."""
        from dubito.decisions import find_rule

        if isinstance(source, Path):
            self.use_saved(source)
        else:
            self.use_novelty(source, checkpoint)
            self.rule = find_rule(source, self.method, checkpoint)

    def use_novelty(self, run: Run, checkpoint: str = "best") -> None:
        """Use the novelty that was fitted for a run's weights, if there is one."""
        file = run.path / FILE
        if not file.exists() or not self.head.classifies:
            return
        novelty = Novelty.load(file, self._reference_head)
        if novelty is not None and novelty.belongs_to(run.fingerprint(checkpoint)):
            self._meter = _Meter(self.reference(), novelty, self.device)

    def fitted_files(self) -> dict[str, bytes]:
        """What was fitted, as the files that :func:`dubito.save` writes for its argument `predictor`."""
        from dubito.decisions import FILE as RULE

        files = {} if self.novelty is None else {FILE: self.novelty.to_bytes()}
        return files if self.rule is None else {**files, RULE: self.rule.to_json().encode()}

    def use_saved(self, folder: str | os.PathLike[str]) -> None:
        """Take the novelty and the rule that were saved with a network: for one that was loaded into an instance."""
        from dubito.decisions import FILE as RULE
        from dubito.decisions import Rule
        from dubito.decisions.rule import METHOD

        novelty, rule = Path(folder) / FILE, Path(folder) / RULE
        if novelty.exists() and self.head.classifies:
            found = Novelty.load(novelty, self._reference_head)
            self._meter = None if found is None else _Meter(self.reference(), found, self.device)
        if rule.exists() and self.method == METHOD:
            self.rule = Rule.load(rule)

    def use(self, novelty: Novelty | None, rule: Rule | None = None) -> None:
        """Measure a novelty that was fitted for the same network, and decide by a rule."""
        self._meter = None if novelty is None else _Meter(self.reference(), novelty, self.device)
        self.rule = rule

    @property
    def measures_by_its_draws(self) -> bool:
        """Whether novelty comes from passes that a prediction makes anyway."""
        return self._meter is not None and self._meter.draws is self._draws

    def reference(self) -> WeightDraws:
        """The draws whose features novelty is measured in."""
        if self._members:
            return self._members[0].reference()
        assert self._draws is not None
        return self._draws.reference()

    @property
    def _reference_head(self) -> Head:
        """The head of the network that novelty is measured in."""
        return self._members[0]._reference_head if self._members else self.head

    def _labelled(self, given: Iterable[Any] | Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Batches with their labels, where there are any."""
        for item in self._items(given):
            labels = item[1] if isinstance(item, (tuple, list)) and len(item) > 1 else None
            yield _images(item), labels

    def _predict(self, batch: Tensor) -> AnyPrediction:
        with torch.inference_mode(False), torch.no_grad():
            if self._meter is None:
                return self._predict_alone(batch)
            seen: list[Observed] = []
            prediction = cast(Prediction, self._predict_alone(batch, seen if self.measures_by_its_draws else None))
            return replace(prediction, novelty=self._meter(batch.to(self.device), seen))

    def _predict_alone(self, batch: Tensor, seen: list[Observed] | None = None) -> Any:
        """Without novelty; `seen` gets the features that it needs."""
        if self._members:  # which count alike, however many draws they have
            parts: list[Any] = [member._predict(batch) for member in self._members]
            return pool(parts, [1.0] * len(parts))
        split = self.head.split(self.covariance, self.sampling)
        for block in self._outputs(batch, seen):
            split.update(block)
        return split.compute()

    def _drawn(self, batch: Tensor, seen: list[Observed] | None = None) -> Iterator[Tensor]:
        """Blocks of drawn probabilities, or of outputs where there are no classes; `seen` gets the first features."""
        with torch.inference_mode(False), torch.no_grad():
            if self._members:
                most = math.lcm(*(member.samples for member in self._members))
                for member in self._members:
                    for block in member._drawn(batch):
                        yield block.repeat(most // member.samples, *(1,) * (block.dim() - 1))
                return
            for block in self._outputs(batch, seen):
                if self.head.classifies:
                    block = self.head.probs(block.flatten(0, 1)).unflatten(0, block.shape[:2])
                yield block

    def _outputs(self, batch: Tensor, seen: list[Observed] | None = None) -> Iterator[Tensor]:
        assert self._draws is not None
        batch, model = batch.to(self.device), self._model()
        if model is not None and model not in looked_at:
            _look_for_unused(model, batch)
        if isinstance(self._draws, WeightDraws) and seen is not None:
            return self._draws.outputs(batch, seen)
        return self._draws.outputs(batch)

    def _batches(self, inputs: Tensor | Iterable[Any], progress: bool) -> Iterator[Tensor]:
        """Batches of at most `batch_size` images from a tensor or an iterable."""
        for item in track(self._items(inputs), "Predicting", shown=progress):
            images = _images(item)
            _require_pixels(images, self.data)
            yield from (part for part in images.split(self.batch_size) if len(part))

    def _items(self, inputs: Tensor | Iterable[Any]) -> Iterable[Any]:
        if isinstance(inputs, Tensor):
            return inputs.split(self.batch_size) if inputs.dim() else (inputs,)
        if isinstance(inputs, Iterable):
            return inputs
        raise ShapeError(f"The inputs are {inputs!r}, but must be a tensor of images or an iterable of batches.")


def _temperature(model: nn.Module | str | os.PathLike[str] | Run, calibrated: bool | float) -> float | None:
    """What calibrates the probabilities; None for nothing."""
    if calibrated is False:
        return None
    if calibrated is not True:
        return calibrated
    from dubito.runs.run import Run
    from dubito.saving.loading import is_saved, saved_temperature

    if isinstance(model, nn.Module):
        raise OptionError(
            "calibrated is True, but a module has no validation record: give a run, or the temperature that "
            "dubito.evaluation.calibration.fit_temperature finds."
        )
    if not isinstance(model, Run) and is_saved(Path(model)):
        found = saved_temperature(Path(model))
        if found is None:
            raise OptionError(f"calibrated is True, but {model} was saved without a calibrated predictor.")
        return found
    return (model if isinstance(model, Run) else Run.open(model)).calibration().temperature


def _images(item: Any) -> Tensor:
    """The images of a batch."""
    batch = item[0] if isinstance(item, (tuple, list)) and item else item
    if not isinstance(batch, Tensor) or batch.dim() == 0:
        raise ShapeError(
            f"The inputs hold a {type(batch).__name__}, but must be a tensor of images or an iterable of "
            "batches: tensors, or tuples that start with one."
        )
    return batch


def _require_pixels(batch: Tensor, data: DataDescription | None) -> None:
    """Refuse images that a network with this description of them cannot take."""
    if data is None:
        return
    if not batch.is_floating_point():
        raise ShapeError(
            f"The images are {batch.dtype}, but the network takes normalised floating-point pixels: give files or "
            "arrays, or dubito.data.normalize(images, mean, std) with the mean and std of the predictor's `data`."
        )
    if batch.dim() == 4 and batch.shape[1] != data.channels:
        raise ShapeError(
            f"The images have {batch.shape[1]} channels (shape {tuple(batch.shape)}), but the network takes "
            f"{data.channels}: give (N, {data.channels}, {data.size}, {data.size}), or convert them with "
            "dubito.data.with_channels before they are normalised."
        )


def _look_for_unused(model: nn.Module, batch: Tensor) -> None:
    """Once for a model: name the posteriors that its outputs for a few images do not depend on."""
    if torch.compiler.is_compiling():
        return
    looked_at.add(model)
    if not (found := posteriors(model)):
        return
    means = {q: q.mean.detach().requires_grad_() for q in found.values()}
    try:
        network, slots = plain_network(model, share=True)
        fill(slots, means)
        with torch.enable_grad():
            outputs = network.eval()(batch[:FIRST_IMAGES].clone())
    except Exception:  # not all can be differentiated; what else is wrong with it, the prediction itself will say
        return
    if isinstance(outputs, Tensor):
        names = unused(outputs, {name: means[q] for name, q in found.items()})
        warn_of_unused(names, "The prediction", "they have posteriors, whose uncertainty it lacks", stacklevel=2)


def _make_draws(
    model: nn.Module,
    samples: int,
    method: str,
    seed: int,
    dropout: bool | None,
    memory: int,
    head: Head,
    share: bool,
) -> Draws:
    if method == Method.MEAN:
        return MeanDraws(model, share=share)
    if method == Method.LOCAL:
        return LocalDraws(model, samples, seed, dropout=dropout, share=share)
    if method == Method.MOMENTS:
        return MomentDraws(model, every_logit=head.unit == "logit", dropout=dropout, share=share)
    return WeightDraws(model, samples, seed, dropout=dropout, memory=memory, share=share)


def predict(
    model: nn.Module | str | os.PathLike[str] | Run,
    inputs: Tensor | Iterable[Any],
    samples: int = 10,
    method: str = "weights",
    head: str | Head | None = None,
    seed: int = 0,
    *,
    batch_size: int = 256,
    dropout: bool | None = None,
    covariance: bool = False,
    progress: bool = False,
) -> Any:
    """Predict images in one call; for several calls, make a :class:`Predictor`.

    The model is not copied. If another thread trains it meanwhile, that can change the prediction.

    >>> import dubito
    >>> model = dubito.attach_head(dubito.BayesLinear(4, 3), "softplus")
    >>> prediction = predict(model, torch.randn(5, 4), samples=20)
    >>> prediction.probs.shape, bool((prediction.epistemic > 0).all())
    (torch.Size([5, 3]), True)
    """
    options: dict[str, Any] = {"batch_size": batch_size, "dropout": dropout, "covariance": covariance}
    return Predictor(model, samples, method, seed, head=head, **options, _share=True)(inputs, progress=progress)
