"""Predictions for datasets of Ray Data, whose `map_batches` makes one predictor an actor and calls it with columns.

images = ray.data.read_images("s3://bucket/photos", mode="RGB", size=(224, 224))   # or read_parquet, ...
images.map_batches(
    BatchPredictor, fn_constructor_args=("runs/photos",), fn_constructor_kwargs={"image": "image"},
    compute=ray.data.ActorPoolStrategy(size=8), batch_size=1024,
).write_parquet("s3://bucket/predictions")
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from dubito.errors import OptionError, unknown
from dubito.tables.columns import Columns, make_predict_fn


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
