"""Validations as a run reads them: pictures that memory holds are decoded by the first one only."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stepladder.config.choices import Where
from stepladder.config.recipe import Recipe
from stepladder.data.reading.examples import PictureSource, ReadCost
from stepladder.data.reading.reader import Reader, Source
from stepladder.training.setup.build import make_held_out_reader


class KeptPictures(PictureSource):
    """A source whose rows stay in memory once they were read; it takes what is looked at.

    Args:
        source: where they are read from.
    """

    def __init__(self, source: PictureSource) -> None:
        self.source = source
        self.fingerprint = source.fingerprint
        self.labels = source.labels
        self.picture_shape = source.picture_shape
        self.rows_per_task = source.rows_per_task
        self._pictures = np.empty((len(source), *source.picture_shape), dtype=np.uint8)
        self._is_here = np.zeros(len(source), dtype=bool)

    def __len__(self) -> int:
        return len(self.source)

    def hold(self, rows: NDArray[np.int64]) -> None:
        """Read those of these rows that are not here yet."""
        missing = rows[~self._is_here[rows]]
        for start in range(0, len(missing), self.rows_per_task):
            part = missing[start : start + self.rows_per_task]
            read = np.empty((len(part), *self.picture_shape), dtype=np.uint8)
            self.source.read_into(part, read)
            self._pictures[part] = read
            self._is_here[part] = True

    def read_into(self, rows: np.ndarray, out: np.ndarray) -> ReadCost:
        """Copy rows out of memory, those that are not here by way of it."""
        start_s = time.perf_counter()
        self.hold(rows)
        np.take(self._pictures, rows, axis=0, out=out, mode="clip")
        return ReadCost(fetch_s=time.perf_counter() - start_s, num_bytes=out.nbytes)


def open_validation(recipe: Recipe, source: Source | None) -> Reader | None:
    """Give the reader of a held-out split that reads no more of it than is looked at.

    None without a split.
    """
    if recipe.data.where is Where.MEMORY and isinstance(source, PictureSource):
        source = KeptPictures(source)
    streaming = replace(recipe, data=replace(recipe.data, where=Where.STREAM))
    return make_held_out_reader(streaming, source)


def hold_batches(reader: Reader, num_batches: int) -> None:
    """Read the first batches of a split where a run holds them in memory; else do nothing."""
    if isinstance(reader.source, KeptPictures):
        num_rows = min(num_batches * reader.global_batch_size, len(reader.source))
        reader.source.hold(np.arange(num_rows, dtype=np.int64))
