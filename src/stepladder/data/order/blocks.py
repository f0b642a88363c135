"""Blocks of rows that are cheap to read together, and windows of blocks, shuffled separately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepladder.data.order.bijection import Bijection


@dataclass(frozen=True)
class Blocks:
    """Positions of the blocks of a split.

    Attributes:
        starts: first row of each block, int64 (num_blocks,).
        sizes: used rows of each block, int64 (num_blocks,).
    """

    starts: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, sizes: Sequence[int] | np.ndarray) -> Blocks:
        """Return consecutive blocks with all of their rows."""
        ends = np.cumsum(sizes, dtype=np.int64)
        return cls(ends - sizes, np.asarray(sizes, dtype=np.int64))

    def sample(self, num_rows: int, key: tuple[str | int, ...]) -> Blocks:
        """Draw blocks until they have num_rows rows; the last one is truncated.

        Returns:
            The same blocks, with zero rows for those not drawn.
        """
        drawn = Bijection(len(self.sizes), key)(np.arange(len(self.sizes)))
        before = np.cumsum(self.sizes[drawn]) - self.sizes[drawn]
        sizes = np.zeros_like(self.sizes)
        sizes[drawn] = np.clip(num_rows - before, 0, self.sizes[drawn])
        return Blocks(self.starts, sizes)


@dataclass(frozen=True)
class Arrangement:
    """Concatenation of blocks in some order; maps positions to rows.

    Attributes:
        starts, sizes: first row and number of rows of each block, in that order.
    """

    starts: np.ndarray
    sizes: np.ndarray

    @cached_property
    def ends(self) -> np.ndarray:
        """Position after the last row of each block, int64 (num_blocks,)."""
        return np.cumsum(self.sizes)

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Return the row at each position, int64 (k,)."""
        turn = np.searchsorted(self.ends, positions, side="right")
        rows: np.ndarray = self.starts[turn] + positions - (self.ends[turn] - self.sizes[turn])
        return rows


class Windows:
    """The windowed order of one epoch: shuffled blocks, and shuffled rows within windows of blocks.

    Rows of a block, such as a file of a store, are cheap to read together. The blocks are shuffled
    and grouped into windows; the rows of a window are shuffled among themselves. At any time, rows
    are read from one window, or from two if a batch spans both.

    Args:
        blocks: blocks of the rows.
        window_rows: approximate rows of a window; windows are cut between blocks.
        key: key of this epoch.
    """

    def __init__(self, blocks: Blocks, window_rows: int, key: tuple[str | int, ...]) -> None:
        turns = Bijection(len(blocks.sizes), (*key, "blocks"))(np.arange(len(blocks.sizes)))
        turns = turns[blocks.sizes[turns] > 0]
        self._arrangement = Arrangement(blocks.starts[turns], blocks.sizes[turns])
        self._ends = window_ends(blocks.sizes[turns], window_rows)
        self._key = key

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Return the row at each position, int64 (k,)."""
        window = np.searchsorted(self._ends, positions, side="right")
        shuffled = np.empty_like(positions)
        for idx in np.unique(window).tolist():
            start = int(self._ends[idx - 1]) if idx else 0
            size = int(self._ends[idx]) - start
            here = window == idx
            within = Bijection(size, (*self._key, "window", idx))
            shuffled[here] = start + within(positions[here] - start)
        return self._arrangement.rows(shuffled)


def window_ends(sizes: Sequence[int] | np.ndarray, window_rows: int) -> np.ndarray:
    """Group consecutive blocks into windows of about equal size, without splitting a block.

    Returns:
        Position after the last row of each window, int64, ascending.
    """
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    num_windows = max(1, total // max(1, window_rows))
    middles = ends - np.asarray(sizes) / 2
    windows = np.minimum((middles * num_windows / total).astype(np.int64), num_windows - 1)
    lasts = np.flatnonzero(np.append(windows[1:] != windows[:-1], True))
    cut: np.ndarray = ends[lasts].astype(np.int64)
    return cut
