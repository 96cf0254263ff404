"""The network that answers: a run's, its methods of prediction, and one prediction for several jobs at once."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from dubito.data import DATASETS, IMAGE_SIZE, normalize
from dubito.errors import DubitoError, OptionError, unknown
from dubito.heads import ClassificationHead, resolve_head
from dubito.models.architecture import architecture
from dubito.prediction import Prediction, PredictionMethod, predict
from dubito.runs.run import Run
from dubito.serving.batching import Job, Predicted
from dubito.serving.refusal import busy

__all__ = ["MAX_DRAWS_SHOWN", "ServedModel"]

METHODS = ("sample", "moments")
"""How a request may be predicted; ``auto`` takes the last that the network can do, as it needs fewest passes."""
STACK = 256
"""Copies of images that go through the network at once: the draws of few images are made in one pass."""
MAX_DRAWS_SHOWN = 100
"""Draws of an image that an answer holds."""


class ServedModel:
    """A run's network, ready to predict.

    Args:
        run: what is served.
        samples: draws, unless a request says otherwise.
        method: ``auto``, ``sample`` or ``moments``, unless a request says otherwise.
        checkpoint: ``best`` or ``last``.
        device: where the network computes.
    """

    def __init__(
        self,
        run: Run,
        samples: int = 10,
        method: str = "auto",
        checkpoint: str = "best",
        device: str | torch.device = "cpu",
    ) -> None:
        self.run = run
        self.samples = samples
        self.checkpoint = checkpoint
        self.network = run.load(checkpoint).requires_grad_(False).to(device)
        head = resolve_head(self.network, None)
        assert isinstance(head, ClassificationHead)
        self._head = head
        self._generator = torch.Generator().manual_seed(secrets.randbits(62))
        known = [kind.value for kind in PredictionMethod]
        self.methods = [name for name in METHODS if name in known and self._can(method=name)]
        # One route for every size of batch: with another for large ones, company would change an image's answer.
        self.route = "stacked" if self._can(route="stacked") else "loop"
        if method not in ("auto", *self.methods):
            raise OptionError(unknown("method", method, ("auto", *self.methods)))
        self.method = self.methods[-1] if method == "auto" else method

    @property
    def name(self) -> str:
        """What the model is called: its folder."""
        return self.run.path.resolve().name

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes, in the network's order."""
        return self.run.data.class_names

    def choose(self, method: str, draws: bool = False) -> str:
        """The method that a request gets; ``auto`` is the server's, or the one that draws if draws are asked for."""
        if method != "auto":
            return method
        return "sample" if draws else self.method

    def describe(self) -> dict[str, Any]:
        """What is known of the model."""
        config, data = self.run.config, self.run.data
        outputs = self._head.num_outputs(len(self.class_names))
        shapes = architecture(config.model).shapes(data.channels, outputs)
        return {
            "name": self.name,
            "model": config.model,
            "inference": config.inference,
            "data": data.name,
            "class_names": list(self.class_names),
            "channels": data.channels,
            "size": IMAGE_SIZE,
            "head": config.head,
            "parameters": sum(shape.weights for shape in shapes),
            "samples": self.samples,
            "method": self.method,
            "methods": self.methods,
            "draw": data.channels == 1 and data.name in DATASETS,
        }

    def prepare(self, images: Tensor) -> Tensor:
        """Float images (N, C, H, W) in [0, 1] as the network takes them."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.run.data.mean, self.run.data.std))
        return (images - mean) / std

    def prepare_bytes(self, images: Tensor) -> Tensor:
        """Images (N, C, H, W) of bytes as the network takes them."""
        return normalize(images, self.run.data.mean, self.run.data.std)

    def predict(self, jobs: Sequence[Job]) -> Predicted:
        """The prediction of all images of jobs that may be joined, in their order."""
        first = jobs[0]
        images = torch.cat([job.images for job in jobs])
        deadline = max(job.deadline for job in jobs)
        wanted = first.method == "sample" and any(job.draws for job in jobs)
        generator = self._generator if first.seed is None else torch.Generator().manual_seed(first.seed)
        outputs: list[Tensor] = []

        def watch(module: Any, inputs: Any, output: Tensor) -> None:
            if time.monotonic() > deadline:
                raise busy("The prediction took too long; ask for fewer images or draws, or try again later.")
            if wanted and sum(map(len, outputs)) < MAX_DRAWS_SHOWN:
                outputs.append(self._head.probs(output).unflatten(0, (-1, len(images))).cpu())

        hook = self.network.register_forward_hook(watch)
        try:
            prediction = self.predict_images(images, first.samples, first.method, generator)
        finally:
            hook.remove()
        if not outputs:
            return Predicted(prediction)
        # A network without anything to draw is asked twice, but has one draw.
        return Predicted(prediction, torch.cat(outputs)[: min(prediction.samples, MAX_DRAWS_SHOWN)])

    def predict_images(
        self, images: Tensor | Iterable[Tensor], samples: int, method: str, generator: torch.Generator
    ) -> Prediction:
        """The prediction of images as the network takes them, or of batches of them."""
        size = max(STACK, len(images)) if isinstance(images, Tensor) else STACK
        options: dict[str, Any] = {"generator": generator, "batch_size": size, "route": self.route}
        return predict(self.network, images, samples, method, **options).to("cpu")

    def _can(self, **option: str) -> bool:
        """Whether the network can be predicted so: tried on a black image."""
        if option.get("method") == "moments" and self.run.config.inference != "vi":
            return False  # there is nothing to propagate, or dropout, of which draws say more
        image = torch.zeros(1, self.run.data.channels, IMAGE_SIZE, IMAGE_SIZE)
        arguments: dict[str, Any] = {"generator": self._generator, **option}
        try:
            predict(self.network, image, 2, **arguments)
        except DubitoError:
            return False
        return True
