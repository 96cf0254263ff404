"""Predicting chunks of images: what a worker does with a chunk, and what the driver does with its part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from dubito.engines import Engine
from dubito.progress import progress_bar
from dubito.tables.columns import Columns, PredictFunction, make_predict_fn
from dubito.tables.parts import Parts, text, to_parquet
from dubito.tables.sources import Chunk, Listing


class Part(NamedTuple):
    """A chunk's Parquet file, how many rows it has, and how many of them are errors."""

    content: bytes
    rows: int
    errors: int


@dataclass
class Total:
    """Rows of all parts, those of earlier attempts too, and those of this attempt."""

    rows: int = 0
    errors: int = 0
    parts: int = 0
    fresh: int = 0

    def add(self, rows: int, errors: int) -> None:
        """Count a part."""
        self.rows += rows
        self.errors += errors
        self.parts += 1


class ChunkPredictor:
    """Columns of whole chunks, with the images' names and, where they are known, their true classes."""

    def __init__(self, function: PredictFunction) -> None:
        self.function = function

    @classmethod
    def of_run(cls, run: str, **settings: Any) -> ChunkPredictor:
        """That of a run, with the settings of :func:`dubito.tables.make_predict_fn`."""
        import torch

        # Softplus outputs underflow to denormals, which cost a CPU several times an ordinary number.
        torch.set_flush_denormal(True)
        return cls(make_predict_fn(run, **settings))

    def __call__(self, chunk: Chunk) -> Columns:
        """The columns of a chunk: path, label, ..., error, truth, ..., the probabilities last."""
        images = chunk.read(self.function.data)
        found = self.function(images.pictures, images.names)
        columns: Columns = {"path": text(images.names)}
        for name in self.function.names:
            columns[name] = found[name]
            if name == "error":
                columns["truth"] = text(images.truths)
        return columns


def _to_part(predict: Callable[[Chunk], Columns], chunk: Chunk) -> Part:
    columns = predict(chunk)
    errors = sum(error is not None for error in columns["error"])
    return Part(to_parquet(columns), len(columns["path"]), errors)


def _part_maker(make: Callable[[], ChunkPredictor]) -> Callable[[Chunk], Part]:
    return partial(_to_part, make())


def predict_parts(engine: Engine, make: Callable[[], ChunkPredictor], listing: Listing, parts: Parts) -> Total:
    """Predict every chunk that has no part yet. Memory does not grow with the number of images."""
    total = _done(listing, parts)
    undone = (chunk for chunk in listing.chunks() if not parts.has(chunk.number))
    with progress_bar("Predicting", listing.images, done=total.rows, unit="images") as advance:
        for chunk, part in engine.map(partial(_part_maker, make), undone):
            parts.write(chunk.number, part.content)
            total.add(part.rows, part.errors)
            total.fresh += part.rows
            advance(part.rows)
    parts.finish(complete=True, rows=total.rows, errors=total.errors, parts=total.parts)
    return total


def _done(listing: Listing, parts: Parts) -> Total:
    """What earlier attempts have written."""
    total = Total()
    for chunk in listing.chunks():
        if parts.has(chunk.number):
            total.add(*parts.count(chunk.number))
    return total
