"""Memory of a reader: batch buffers, and decoded pictures kept in memory."""

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
    """Pool of uint8 tensors; one is returned when the last tensor that shares it is freed.

    Args:
        shape: shape of the largest tensor.
        capacity: maximum number of free buffers that are kept.
        is_pinned: use pinned memory. It comes from torch's own cache, which knows whether a copy
            to the device is still in flight.
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
        # Runs in the thread that drops the last reference: a single append, which needs no lock.
        weakref.finalize(loan, self._free.append, block).atexit = False
        return torch.from_numpy(loan)


class MemoryPictures(PictureSource):
    """Rows of a source, kept in memory.

    Args:
        source: the source; row numbers are those of the source.
        rows: the rows that are kept, each once.
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
        """Describe a row like its source."""
        return self.source.describe(row)

    def fill(self, start: int) -> ReadCost:
        """Read the rows of one task from the source into memory, starting at an index in memory."""
        part = slice(start, start + self.source.rows_per_task)
        return self.source.read_into(self.rows[part], self.pictures[part])

    def read_into(self, rows: np.ndarray, out: np.ndarray) -> ReadCost:
        """Copy rows out of memory."""
        start_s = time.perf_counter()
        places = rows if len(self.rows) == len(self) else np.searchsorted(self.rows, rows)
        # mode="clip": with the default, numpy copies through an extra buffer
        np.take(self._flat, places, axis=0, out=out.reshape(len(rows), -1), mode="clip")
        return ReadCost(fetch_s=time.perf_counter() - start_s, num_bytes=out.nbytes)


def decoded_bytes(source: PictureSource, *, fraction: float = 1.0) -> int:
    """Return the memory that the decoded pictures of a source take."""
    return math.ceil(len(source) * fraction) * math.prod(source.picture_shape)


def resolve_where(source: Source, where: Where, *, fraction: float = 1.0) -> Where:
    """Resolve `auto`: memory if the decoded pictures fit in a quarter of the free memory.

    Args:
        source: the source.
        where: the user's choice; returned unchanged unless it is auto.
        fraction: fraction of the source that will be used.
    """
    if where is not Where.AUTO:
        return where
    if not isinstance(source, PictureSource):
        return Where.STREAM
    fits = decoded_bytes(source, fraction=fraction) <= MEMORY_FRAC * available_memory_bytes()
    return Where.MEMORY if fits else Where.STREAM
