"""Predictions of many images as columns: reading images, predicting them, and writing parts, with any engine."""

from __future__ import annotations

from dubito.tables.columns import BatchPredictor, Columns, PredictFunction, make_predict_fn
from dubito.tables.parts import Parts
from dubito.tables.predicting import ChunkPredictor, predict_parts
from dubito.tables.sources import Chunk, Listing

__all__ = [
    "BatchPredictor",
    "Chunk",
    "ChunkPredictor",
    "Columns",
    "Listing",
    "Parts",
    "PredictFunction",
    "make_predict_fn",
    "predict_parts",
]
