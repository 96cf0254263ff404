"""From images to columns: the one function beneath `dubito predict`, and what Spark or webdataset call.

    predict = make_predict_fn("runs/first")
    columns = predict([first_bytes, second_bytes])      # {"label": array(["7", "2"], ...), "confidence": ...}

Ray Data makes a `BatchPredictor` an actor and calls it with columns:

    images = ray.data.read_images("s3://bucket/photos", mode="RGB", size=(224, 224))   # or read_parquet, ...
    images.map_batches(
        BatchPredictor, fn_constructor_args=("runs/photos",), fn_constructor_kwargs={"image": "image"},
        compute=ray.data.ActorPoolStrategy(size=8), batch_size=1024,
    ).write_parquet("s3://bucket/predictions")

An image that cannot be read is a row with its `error`, whose numbers are NaN and whose words are None.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dubito.data import images_at_once, normalize
from dubito.data.reading import read_ahead
from dubito.errors import DubitoError, OptionError, unknown
from dubito.evaluation.calibration import NO_CLASS, Conformal
from dubito.models.trust import trusting
from dubito.prediction import Prediction, Predictor
from dubito.prediction.calibrated import calibrate
from dubito.prediction.pictures import read_picture
from dubito.runs.attached import data_of, require_data
from dubito.runs.run import Run
from dubito.saving import open_folder, saved_temperature
from dubito.scores import SCORES

if TYPE_CHECKING:
    from dubito.runs.description import DataDescription

Columns = dict[str, npt.NDArray[Any]]
"""Columns by name, all equally long: numbers in single precision, words as objects."""
MEASURES = ("confidence", "aleatoric", "epistemic", "novelty", "entropy", "mutual_information")
DECIDED = ("decision", "reason")
"""Columns of runs that have a rule."""
DOUBT = "doubt"
"""The column of a score that has none of its own, where rows are to be sorted by it: the larger, the more doubtful."""
SMALL = 64
"""Pixels a side of images that are decoded sooner than a thread is told to."""


class PredictFunction:
    """Images in, columns out.

    Args:
        predict: gives the prediction of (N, C, H, W) bytes.
        data: how to prepare the images.
        decides: whether predictions have decisions.
        conformal: gives each image its conformal set, if that is wanted.
        temperature: calibrates the probabilities; None leaves them.
        batch_size: images at once, or fewer if they are large; it does not change the predictions.
        doubt: one of the scores of :mod:`dubito.scores`, to be a column too.
    """

    def __init__(
        self,
        predict: Callable[[Tensor], Prediction],
        data: DataDescription,
        *,
        decides: bool = False,
        conformal: Conformal | None = None,
        temperature: float | None = None,
        batch_size: int = 256,
        doubt: str | None = None,
    ) -> None:
        self.predict, self.data, self.decides, self.doubt = predict, data, decides, doubt
        self.conformal, self.temperature = conformal, temperature
        self.batch_size = images_at_once(data.size, batch_size)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        named = ["label", *MEASURES, *(DECIDED if self.decides else ()), "error"]
        named += ["conformal"] if self.conformal else []
        named += [DOUBT] if self.doubt else []
        return named + [f"p_{name}" for name in self.data.class_names]

    def __call__(self, images: Any, names: Sequence[str] | None = None) -> Columns:
        """The columns of images.

        Args:
            images: a list, or an array of objects, of paths, bytes of files, images of Pillow and arrays (H, W, 3); an
                array (N, H, W, 3) or (N, H, W) of bytes; or a tensor (N, C, size, size) of bytes as the network takes
                it, which is not prepared.
            names: what errors call the images.
        """
        count = len(images)
        columns: Columns = {name: self._empty(name, count) for name in self.names}
        start = 0
        for batch, errors in self._batches(images, names):
            part = slice(start, start + len(errors))
            start = part.stop
            columns["error"][part] = errors
            if batch is not None:
                readable = np.array([error is None for error in errors])
                for name, values in self._predicted(batch).items():
                    columns[name][part][readable] = values
        return columns

    def _empty(self, name: str, count: int) -> npt.NDArray[Any]:
        words = name in ("label", "error", "conformal", *DECIDED)
        return np.full(count, None, object) if words else np.full(count, np.nan, np.float32)

    def _batches(
        self, images: Any, names: Sequence[str] | None
    ) -> Iterator[tuple[Tensor | None, Sequence[str | None]]]:
        """Batches of the images that can be read, and for each image of a batch why it cannot, or None."""
        if isinstance(images, Tensor):
            yield from ((batch, [None] * len(batch)) for batch in images.split(self.batch_size))
            return

        def read(number: int) -> Tensor | str:
            try:
                return read_picture(images[number], f"image {number}" if names is None else names[number], self.data)
            except (DubitoError, OSError) as error:
                return " ".join(str(error).split())

        # Threads are worth their while where a disk or a large image is waited for, not for small ones in memory.
        waits = len(images) and (isinstance(images[0], (str, os.PathLike)) or self.data.size > SMALL)
        numbers = range(len(images))
        results = read_ahead(read, numbers, ahead=self.batch_size) if waits else map(read, numbers)
        while found := list(islice(results, self.batch_size)):
            readable = [image for image in found if not isinstance(image, str)]
            errors = [image if isinstance(image, str) else None for image in found]
            yield torch.stack(readable) if readable else None, errors

    def _predicted(self, batch: Tensor) -> Columns:
        """The columns of images that can be read."""
        prediction = self.predict(batch)
        columns: Columns = {}
        if self.conformal is not None:
            sets = self.conformal.named(prediction.probs, self.data.class_names)
            columns["conformal"] = np.array([", ".join(row) or NO_CLASS for row in sets], object)
        if self.temperature is not None:
            prediction = calibrate(prediction, self.temperature)
        columns["label"] = np.array(self.data.class_names, object)[prediction.label.cpu().numpy()]
        measures = {name: getattr(prediction, name) for name in MEASURES}
        measures |= {DOUBT: SCORES[self.doubt](prediction)} if self.doubt else {}
        for name, values in measures.items():
            if values is not None:
                columns[name] = values.float().cpu().numpy()
        for name in DECIDED if self.decides else ():
            words = getattr(prediction, name)
            if words is not None:
                columns[name] = words
        for name, values in zip(self.data.class_names, prediction.probs.float().cpu().numpy().T, strict=True):
            columns[f"p_{name}"] = values
        return columns


def make_predict_fn(
    run: Run | str | os.PathLike[str],
    samples: int = 10,
    method: str = "weights",
    seed: int = 0,
    *,
    batch_size: int = 256,
    checkpoint: str = "best",
    device: str | torch.device = "cpu",
    calibrated: bool = False,
    conformal: bool = False,
    trust: bool = False,
    doubt: str | None = None,
) -> PredictFunction:
    """A function from images to the columns of their predictions, with novelty and decisions if the run has them.

    All processes that make it from the same run and settings use the same draws, so their rows can be ranked together.

    Spark calls it as ``predict_batch_udf(partial(make_predict_fn, run), ...)``, with arrays of bytes; webdataset as
    ``dataset.to_tuple("png").batched(256).map(lambda batch: predict(batch[0]))``.

    Args:
        run: a run, its folder, or a folder of :func:`dubito.save`.
        samples, method, seed, batch_size: as :class:`dubito.Predictor` takes them.
        checkpoint: ``best`` or ``last``.
        device: where the network computes; ``auto`` takes a GPU if there is one.
        calibrated: calibrate the probabilities, by the run's validation record.
        conformal: also give the conformal set of each image, likewise.
        trust: as :func:`dubito.load` takes it.
        doubt: one of the scores of :mod:`dubito.scores`, to be a column too.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    with trusting(trust):
        network, source = open_folder(run, checkpoint)
        network.float()  # as images are, in whatever precision it was saved
    predictor = Predictor(network.to(device), samples, method, seed, batch_size=batch_size)
    predictor.use_fitted(source, checkpoint)
    data = require_data(data_of(network), "A prediction of images")
    temperature = sets = None
    if isinstance(source, Run) and (calibrated or conformal):
        calibration = source.calibration()
        temperature, sets = calibration.temperature, Conformal.of(calibration)
    elif isinstance(source, Path):
        temperature = saved_temperature(source)
    for option, wanted, found in (("calibrated", calibrated, temperature), ("conformal", conformal, sets)):
        if wanted and found is None:
            raise OptionError(f"{option} cannot be used: {run} is a saved network without the data for it.")
    return PredictFunction(
        lambda images: predictor(normalize(images, data.mean, data.std)),
        data,
        decides=predictor.rule is not None,
        conformal=sets if conformal else None,
        temperature=temperature if calibrated else None,
        batch_size=batch_size,
        doubt=doubt,
    )


class BatchPredictor:
    """Columns in, columns out: the column of images is replaced by the columns of :func:`make_predict_fn`.

    Args:
        run: a run, its folder, or a folder of :func:`dubito.save`.
        image: the column of images: bytes of files, paths, or pixels.
        settings: as :func:`make_predict_fn` takes them.
    """

    def __init__(self, run: str | os.PathLike[str], image: str = "bytes", **settings: Any) -> None:
        self.image, self.predict = image, make_predict_fn(run, **settings)

    def __call__(self, batch: Mapping[str, Any]) -> Columns:
        """The columns of a batch without its images, and its predictions."""
        if self.image not in batch:
            raise OptionError(unknown("column of images", self.image, batch))
        kept = {name: np.asarray(column) for name, column in batch.items() if name != self.image}
        return {**kept, **self.predict(batch[self.image])}
