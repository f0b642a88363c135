"""Sources that yield the features of examples instead of the examples."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepladder.data.features.feature_files import Features
from stepladder.data.reading.examples import Examples, Source


class FeatureSource(Source):
    """Features of a source's rows, with the source's labels, fingerprint and names.

    The order of training is therefore the same on features as on the examples. Rows are read in the
    consumer's thread: they are small, and a thread would cost more than it saves.

    Attributes:
        base: source of the examples.
        is_held: whether features are in memory, so that reading only copies.
    """

    default_threads = 0
    is_held = True

    def __init__(self, base: Source) -> None:
        self.base = base
        self.fingerprint = base.fingerprint
        self.labels = base.labels
        self.block_rows = base.block_rows
        self.has_mixed_blocks = base.has_mixed_blocks
        self.is_near = base.is_near

    def __len__(self) -> int:
        return len(self.base)

    def describe(self, row: int) -> str:
        """Describe a row like its source."""
        return self.base.describe(row)

    @abstractmethod
    def read(self, rows: np.ndarray) -> Examples:
        """Return the features and targets of rows, in the given order."""


class HeldFeatures(FeatureSource):
    """Features in memory.

    Args:
        base: source of the examples.
        held: features and targets, one row for each of `rows`.
        rows: the rows of base, in the order of `held`; None: all rows in order.

    Attributes:
        features, targets: those of `held`; rows: their rows.
    """

    def __init__(self, base: Source, held: Features, rows: np.ndarray | None = None) -> None:
        super().__init__(base)
        self.features: Tensor = held.features
        self.targets: Tensor | None = held.targets
        self.rows = rows
        self._place: np.ndarray | None = None  # (len(base),): index of each row in `held`
        if rows is not None:
            self._place = np.full(len(base), -1, dtype=np.int64)
            self._place[rows] = np.arange(len(rows))

    def read(self, rows: np.ndarray) -> Examples:
        """Copy rows out of memory."""
        places = torch.from_numpy(rows if self._place is None else self._place[rows])
        features = self.features.index_select(0, places)
        return Examples(
            features, None if self.targets is None else self.targets.index_select(0, places)
        )


class LazyFeatures(FeatureSource):
    """Features that are computed on the first read.

    Args:
        base: source of the examples.
        make: returns them in memory; called once.
    """

    def __init__(self, base: Source, make: Callable[[], HeldFeatures]) -> None:
        super().__init__(base)
        self._make = make
        self._held: HeldFeatures | None = None

    def read(self, rows: np.ndarray) -> Examples:
        """Compute the features on the first call, and copy rows out of memory."""
        if self._held is None:
            self._held = self._make()
        return self._held.read(rows)


class FreshFeatures(FeatureSource):
    """Features that are computed on every read and not kept, for a rehearsal.

    Args:
        base: source of the examples.
        compute: returns the features and the targets of some rows.

    Attributes:
        num_rows, seconds: rows read so far, and the time it took.
    """

    is_held = False

    def __init__(self, base: Source, compute: Callable[[np.ndarray], tuple[Any, Any]]) -> None:
        super().__init__(base)
        self._compute = compute
        self.num_rows = 0
        self.seconds = 0.0

    def read(self, rows: np.ndarray) -> Examples:
        """Compute the features of rows."""
        start_s = time.perf_counter()
        features, targets = self._compute(rows)
        self.seconds += time.perf_counter() - start_s
        self.num_rows += len(rows)
        return Examples(features, targets)


def examples_of(source: Source | None) -> Source | None:
    """Return the source of the examples if a source yields features, else the source itself."""
    return source.base if isinstance(source, FeatureSource) else source
