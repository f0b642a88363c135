"""Memory of a reader: buffers of batches, a split held decoded, and the choice of holding it."""

from __future__ import annotations

import math
import time
import weakref
from collections import deque

import numpy as np
import torch
from torch import Tensor

from stepladder.config.choices import Where
from stepladder.data.reading.examples import PictureSource, ReadCost, Source
from stepladder.machine import available_memory_bytes

MEMORY_FRAC = 0.25


class Buffers:
    """Lend uint8 tensors; one comes back by itself when the last tensor that shares it is gone.

    Args:
        shape: of the largest loan.
        capacity: free buffers kept at most.
        is_pinned: lend page-locked memory. It then comes from torch's own cache, which knows
            whether a copy to the device is still under way; ours could not.
    """

    def __init__(self, shape: tuple[int, ...], *, capacity: int, is_pinned: bool) -> None:
        self._shape = shape
        self._is_pinned = is_pinned
        self._free: deque[np.ndarray] = deque(maxlen=capacity)

    def lend(self, num_rows: int) -> Tensor:
        """Return a tensor of the first `num_rows` rows, with any content."""
        if self._is_pinned:
            return torch.empty((num_rows, *self._shape[1:]), dtype=torch.uint8, pin_memory=True)
        try:
            block = self._free.pop()
        except IndexError:
            block = np.empty(self._shape, dtype=np.uint8)
        loan = block[:num_rows]  # the tensor's storage holds this view, and nothing else does
        # Runs in whatever thread drops the last reference: append alone, which needs no lock.
        weakref.finalize(loan, self._free.append, block).atexit = False
        return torch.from_numpy(loan)


class MemoryPictures(PictureSource):
    """Some rows of a source, held in memory.

    Args:
        source: what they are rows of; row numbers stay those of the source.
        rows: the rows that are held, each once.
    """

    def __init__(self, source: PictureSource, rows: np.ndarray) -> None:
        self.source = source
        self.fingerprint = source.fingerprint
        self.labels = source.labels
        self.picture_shape = source.picture_shape
        self.rows_per_task = 128
        self.rows = np.sort(rows)
        self.pictures = np.empty((len(rows), *source.picture_shape), dtype=np.uint8)  # (m, h, w, c)
        self._flat = self.pictures.reshape(len(rows), -1)

    def __len__(self) -> int:
        return len(self.source)

    def describe(self, row: int) -> str:
        """Name a row as its source does."""
        return self.source.describe(row)

    def fill(self, start: int) -> ReadCost:
        """Read a task's worth of the held rows from the source, by their place in memory."""
        part = slice(start, start + self.source.rows_per_task)
        return self.source.read_into(self.rows[part], self.pictures[part])

    def read_into(self, rows: np.ndarray, out: np.ndarray) -> ReadCost:
        """Copy rows out of memory."""
        start_s = time.perf_counter()
        places = rows if len(self.rows) == len(self) else np.searchsorted(self.rows, rows)
        # mode="clip": with the default, numpy copies by way of a buffer of its own
        np.take(self._flat, places, axis=0, out=out.reshape(len(rows), -1), mode="clip")
        return ReadCost(fetch_s=time.perf_counter() - start_s, num_bytes=out.nbytes)


def decoded_bytes(source: PictureSource, *, fraction: float = 1.0) -> int:
    """Forecast the memory that a source takes when it is held decoded."""
    return math.ceil(len(source) * fraction) * math.prod(source.picture_shape)


def resolve_where(source: Source, where: Where, *, fraction: float = 1.0) -> Where:
    """Turn `auto` into memory, if the decoded pictures take a quarter of what is free, or stream.

    Args:
        source: what will be read.
        where: what the user chose; anything but auto is given back.
        fraction: share of the source that will be used.
    """
    if where is not Where.AUTO:
        return where
    if not isinstance(source, PictureSource):
        return Where.STREAM
    fits = decoded_bytes(source, fraction=fraction) <= MEMORY_FRAC * available_memory_bytes()
    return Where.MEMORY if fits else Where.STREAM
