"""The network that answers: a run's network, frozen as predictors, and one prediction for several jobs at once."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor

from dubito.data import DATASETS
from dubito.decisions.rule import METHOD, find_rule
from dubito.errors import DubitoError, OptionError, unknown
from dubito.prediction import Prediction, Predictor
from dubito.prediction.dropout import drawn_dropout
from dubito.prediction.novelty import FALSE_ALARM
from dubito.prediction.predictor import MEMORY
from dubito.runs.attached import data_of, require_data
from dubito.runs.run import Run
from dubito.serving.batching import Job, Predicted
from dubito.serving.limits import Limits
from dubito.serving.refusal import busy
from dubito.variational.posterior import posteriors

METHODS = ("weights", "local", "moments", "mean")
"""How a request may be predicted."""
DRAWING = ("weights", "local")
"""The methods that draw: the others do not depend on a number of draws or a seed."""
MAX_DRAWS_SHOWN = 100
"""Draws of an image that an answer holds."""
PASSES = 2048
"""About how many forward passes of single images are made between two checks of the deadline."""
PREDICTORS = 8
"""Predictors that are kept, besides the server's own."""
OVERHEAD = 4
"""Draws' worth of bytes that a predictor takes besides: means, standard deviations, and the pair for novelty."""


class Predictors:
    """Predictors of one network, made when first asked for; those used last are kept.

    A predictor keeps its drawn weights, so both their number and their bytes are bounded. The first one that is made,
    the server's own, is kept for good. Threads can share them.

    Args:
        network: shared by all predictors, so nobody may change it.
        most: predictors that are kept besides the server's own.
        most_bytes: what these may take together. One that takes more makes its weights again for every batch.
        prepare: what is done with a new predictor.
    """

    def __init__(
        self,
        network: torch.nn.Module,
        most: int = PREDICTORS,
        most_bytes: int = Limits.max_kept_bytes,
        prepare: Callable[[Predictor], None] = lambda predictor: None,
    ) -> None:
        self._network = network
        self._prepare = prepare
        self._bytes_per_draw = sum(q.mean.numel() * q.mean.element_size() for q in posteriors(network).values())
        self._most, self._most_bytes = most, most_bytes
        self._lock = threading.Lock()
        self._own: tuple[tuple[str, int, int], Predictor] | None = None
        self._kept: OrderedDict[tuple[str, int, int], Predictor] = OrderedDict()

    def __call__(self, method: str, samples: int = 1, seed: int = 0) -> Predictor:
        """The predictor with these settings."""
        key = (method, samples, seed) if method in DRAWING else (method, 1, 0)
        with self._lock:
            if self._own is None:
                self._own = key, self._make(key, MEMORY)
            if self._own[0] == key:
                return self._own[1]
            found = self._kept.pop(key, None)
            if found is None:
                self._make_room(self._bytes_of(key))
                found = self._make(key, self._most_bytes)
            self._kept[key] = found
            return found

    def forget(self) -> None:
        """Keep the server's own predictor alone."""
        with self._lock:
            self._kept.clear()

    def _make(self, key: tuple[str, int, int], memory: int) -> Predictor:
        method, samples, seed = key
        predictor = Predictor(self._network, samples, method, seed, memory=memory, _share=True)
        self._prepare(predictor)
        return predictor

    def __len__(self) -> int:
        return len(self._kept) + (self._own is not None)

    def _make_room(self, size: int) -> None:
        """Drop the predictors that were used longest ago, until there is room for one of so many bytes."""
        while self._kept and (
            len(self._kept) >= self._most or sum(map(self._bytes_of, self._kept)) + size > self._most_bytes
        ):
            self._kept.popitem(last=False)

    def _bytes_of(self, key: tuple[str, int, int]) -> int:
        method, samples, _ = key
        drawn = samples * self._bytes_per_draw if method == "weights" else 0
        return (drawn if drawn <= self._most_bytes else 0) + OVERHEAD * self._bytes_per_draw


class ServedModel:
    """A network, ready to predict.

    Args:
        model: a run, or any network that says what its images are like; see :func:`dubito.attach_data`.
        samples: draws, unless a request says otherwise.
        method: ``auto`` (which is ``weights``), ``weights``, ``local``, ``moments`` or ``mean``, unless a request says
            otherwise.
        checkpoint: of a run: ``best`` or ``last``.
        device: where the network computes.
        fitted: the folder that a network was saved in with its novelty and its rule, if any.
        kept_bytes: what predictors with other settings than these may take together.
    """

    def __init__(
        self,
        model: Run | torch.nn.Module,
        samples: int = 10,
        method: str = "auto",
        checkpoint: str = "best",
        device: str | torch.device = "cpu",
        fitted: Path | None = None,
        kept_bytes: int = Limits.max_kept_bytes,
    ) -> None:
        self._fitted = fitted
        self._first: Predictor | None = None
        self.run = run = model if isinstance(model, Run) else None
        self.data = run.data if run else require_data(data_of(model), "Serving")
        self.samples = samples
        self.checkpoint = checkpoint
        network = model.load(checkpoint) if isinstance(model, Run) else deepcopy(model)
        network.eval().requires_grad_(False).to(device)
        self._facts = _facts(model, network)
        self.methods = self._methods(network)
        if method not in ("auto", *self.methods):
            raise OptionError(unknown("method", method, ("auto", *self.methods)))
        self.method = "weights" if method == "auto" else method
        self.predictors = Predictors(network, most_bytes=kept_bytes, prepare=self._use_novelty)
        self.rule = find_rule(run, checkpoint=checkpoint) if run else self.predictors(METHOD, samples).rule
        self.head = self.predictors(self.method, samples).head
        self.novelty = self.predictors(self.method, samples).novelty
        plain = self.predictors("mean").networks()
        self.parameters = sum(parameter.numel() for part in plain for parameter in part.parameters())

    @property
    def name(self) -> str:
        """The name of the model: that of its run folder, or of its class."""
        return self.run.path.resolve().name if self.run else self._facts["model"]

    @property
    def title(self) -> str:
        """The model with what it is and what it was trained on, where that is known."""
        what = f"{self._facts['inference']} {self._facts['model']}"
        return f"{self.name} ({what}{f' on {self.data_name}' if self.data.name else ''})"

    @property
    def data_name(self) -> str:
        """What the images are called, without the place of their folder."""
        return without_folder(self.data.name)

    @property
    def false_alarm(self) -> float:
        """The share of usual images that are called unlike the training images: the rule's, if it refuses any."""
        return FALSE_ALARM if self.rule is None or self.rule.false_alarm is None else self.rule.false_alarm

    @property
    def novelty_limit(self) -> float:
        """Images with more novelty are called unlike the training images; a decision never says otherwise."""
        if self.rule is not None and self.rule.novelty_threshold is not None:
            return self.rule.novelty_threshold
        return math.inf if self.novelty is None else self.novelty.threshold()

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes, in the network's order."""
        return self.data.class_names

    def warning(self, method: str, samples: int) -> str:
        """What to know about decisions on predictions by so many draws; nothing if they are enough."""
        return "" if self.rule is None or method != METHOD else self.rule.warning(samples)

    def choose(self, method: str, draws: bool = False) -> str:
        """The method that a request gets; ``auto`` is the server's, or ``weights`` if draws are asked for."""
        if method != "auto":
            return method
        return "weights" if draws and self.method not in DRAWING else self.method

    def describe(self) -> dict[str, Any]:
        """The description of the model that /model gives."""
        data = self.data
        return {
            "name": self.name,
            **self._facts,
            "data": self.data_name,
            "class_names": list(self.class_names),
            "channels": data.channels,
            "size": data.size,
            "fit": data.fit,
            "head": self.run.config.head if self.run else self.head.name,
            "parameters": self.parameters,
            "samples": self.samples,
            "method": self.method,
            "methods": self.methods,
            "decision": None if self.rule is None else self.rule.describe(),
            "draw": data.channels == 1 and data.name in DATASETS,
        }

    def prepare(self, images: Tensor) -> Tensor:
        """Float images (N, C, H, W) in [0, 1] as the network takes them."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.data.mean, self.data.std))
        return (images - mean) / std

    def predict(self, jobs: Sequence[Job]) -> Predicted:
        """The prediction of all images of jobs with the same method, draws and seed, in their order."""
        first = jobs[0]
        predictor = self.predictors(first.method, first.samples, first.seed)
        wanted = any(job.draws for job in jobs)
        parts: list[Prediction] = []
        draws: list[Tensor] = []
        # What a predictor says of an image does not depend on its company, so that any parts will do.
        for images in torch.cat([job.images for job in jobs]).split(max(1, PASSES // predictor.samples)):
            if time.monotonic() > max(job.deadline for job in jobs):
                raise busy("The prediction took too long; ask for fewer images or draws, or try again later.")
            parts.append(predictor(images).to("cpu"))
            if wanted:
                # A network that has nothing to draw has one draw, whatever was asked for.
                draws.append(predictor.draws(images)[: min(parts[-1].samples, MAX_DRAWS_SHOWN)].cpu())
        whole = Prediction.cat(parts)
        if self.rule is not None and first.method == METHOD and self.rule.suits(whole):
            whole = self.rule.apply(whole)
        return Predicted(whole, torch.cat(draws, 1) if draws else None)

    def _methods(self, network: torch.nn.Module) -> list[str]:
        """The methods that suit the network: tried on a black image."""
        if self._facts["inference"] != "vi":
            return ["weights", "mean"]  # without a posterior `local` is the same, and moments have nothing to follow
        image = torch.zeros(1, self.data.channels, self.data.size, self.data.size)
        return [method for method in METHODS if _works(network, method, image)]

    def _use_novelty(self, predictor: Predictor) -> None:
        """What the first predictor reads is shared by the others: it may hold features of thousands of images."""
        if self._first is not None:
            predictor.use(self._first.novelty, self._first.rule if predictor.method == METHOD else None)
            return
        self._first = predictor
        if self.run:
            predictor.use_novelty(self.run, self.checkpoint)
        elif self._fitted:
            predictor.use_saved(self._fitted)


def _facts(model: Run | torch.nn.Module, network: torch.nn.Module) -> dict[str, str]:
    """What kind of network it is, and how it was trained."""
    if isinstance(model, Run):
        return {"model": without_folder(model.config.model), "inference": model.config.inference}
    inference = "vi" if posteriors(network) else "dropout" if drawn_dropout(network, None) else "frequentist"
    return {"model": type(network).__name__, "inference": inference}


def without_folder(name: str) -> str:
    """The name of a network or of data without a place on this machine, which is nobody's business.

    >>> without_folder("hf:/home/me/vit"), without_folder("../birds"), without_folder("cifar10")
    ('hf:vit', 'birds', 'cifar10')
    """
    kind, colon, place = name.rpartition(":")
    return kind + colon + PurePath(place).name


def _works(network: torch.nn.Module, method: str, image: Tensor) -> bool:
    try:
        Predictor(network, 2, method)(image)
    except DubitoError:
        return False
    return True
