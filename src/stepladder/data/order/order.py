"""Which example stands at which position of an epoch: a pure function of a few plain values.

The golden vectors in the tests freeze it: a change needs a new order version.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepladder.config.choices import OrderMode
from stepladder.data.order.bijection import Bijection
from stepladder.data.order.windows import Arrangement, Blocks, Windows

ORDER_VERSION = 1


@dataclass(frozen=True)
class Order:
    """The order of an epoch, for every epoch: position to row.

    Depends on nothing but its fields and the epoch: not on threads, ranks, batch size or restarts.

    Attributes:
        seed: chooses the shuffles.
        num_examples: rows of the split.
        mode: global (shuffled over the whole split), windowed or sequential.
        fingerprint: identity of the data; other data, other order.
        fraction: share of the rows that is used, in (0, 1]; the same rows in every epoch.
        fraction_seed: chooses those rows, independently of seed.
        block_rows: sizes of blocks of rows that are cheap to read together, in the order of rows;
            empty where there are none. Windowed order takes them.
        window_rows: of windowed order: rows that are shuffled together, about.
        is_sample_of_blocks: whether a fraction is of whole blocks, and not of rows.
        version: of this order's arithmetic.
    """

    seed: int
    num_examples: int
    mode: OrderMode
    fingerprint: str
    fraction: float = 1.0
    fraction_seed: int = 42
    block_rows: tuple[int, ...] = ()
    window_rows: int = 0
    is_sample_of_blocks: bool = False
    version: int = ORDER_VERSION

    def __post_init__(self) -> None:
        if self.num_examples < 1:
            raise ValueError(f"num_examples is {self.num_examples}, not 1 or more")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction is {self.fraction}, not in (0, 1]")
        if self.version != ORDER_VERSION:
            raise ValueError(f"order version {self.version} is not known; this is {ORDER_VERSION}")
        if self.mode is OrderMode.AUTO:
            raise ValueError("auto is resolved before an order is made")
        if self.mode is OrderMode.WINDOWED and self.window_rows < 1:
            raise ValueError(f"window_rows is {self.window_rows}, not 1 or more")
        takes_blocks = self.mode is OrderMode.WINDOWED or self.is_sample_of_blocks
        if takes_blocks and sum(self.block_rows) != self.num_examples:
            raise ValueError("block_rows do not add up to num_examples")

    @property
    def num_samples(self) -> int:
        """Positions of an epoch: num_examples, or the sampled share of them."""
        return max(1, round(self.num_examples * self.fraction))

    def samples(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """Give the rows at positions [start, stop) of an epoch.

        Sequential order is stored order; of a sample of rows, the order in which they were drawn.

        Shapes: int64 (stop - start,).
        """
        if not 0 <= start <= stop <= self.num_samples:
            raise ValueError(f"[{start}, {stop}) is not within [0, {self.num_samples})")
        positions = np.arange(start, stop, dtype=np.int64)
        if self.mode is OrderMode.WINDOWED:
            rows = self._windows(epoch).rows(positions)
            return rows if self._drawn_rows is None else self._drawn_rows[rows]
        if self.mode is OrderMode.GLOBAL:
            positions = self._shuffle(epoch)(positions)
        if self.fraction == 1:
            return positions
        return self._files.rows(positions) if self.is_sample_of_blocks else self._draw(positions)

    def _shuffle(self, epoch: int) -> Bijection:
        key = (self.version, "order", self.mode.value, self.seed, epoch, self.fingerprint)
        return Bijection(self.num_samples, (*key, self.num_samples))

    @cached_property
    def _draw(self) -> Bijection:
        key = (self.version, "fraction", self.fraction_seed, self.fingerprint)
        return Bijection(self.num_examples, (*key, self.num_examples))

    def _windows(self, epoch: int) -> Windows:
        """Lay out an epoch; that of the last call is kept, as epochs are read piece by piece."""
        known = self.__dict__.get("_known_windows")
        if known is None or known[0] != epoch:
            key = (self.version, "order", self.mode.value, self.seed, epoch, self.fingerprint)
            known = epoch, Windows(self._blocks, self.window_rows, (*key, self.num_samples))
            self.__dict__["_known_windows"] = known
        windows: Windows = known[1]
        return windows

    @cached_property
    def _blocks(self) -> Blocks:
        """The blocks that an epoch is made of."""
        blocks = Blocks.of(self.block_rows)
        if self.fraction == 1:
            return blocks
        if self._drawn_rows is not None:
            counts = np.searchsorted(self._drawn_rows, np.append(blocks.starts, self.num_examples))
            return Blocks.of(np.diff(counts))
        key = (self.version, "fraction", "blocks", self.fraction_seed, self.fingerprint)
        return blocks.sample(self.num_samples, (*key, len(self.block_rows)))

    @cached_property
    def _drawn_rows(self) -> np.ndarray | None:
        """The rows of a sample of rows, as stored, which windows of it are made of; else None."""
        if self.fraction == 1 or self.is_sample_of_blocks:
            return None
        return np.sort(self._draw(np.arange(self.num_samples, dtype=np.int64)))

    @cached_property
    def _files(self) -> Arrangement:
        """The rows of a sample of blocks, as stored."""
        used = np.flatnonzero(self._blocks.sizes)
        return Arrangement(self._blocks.starts[used], self._blocks.sizes[used])


def rank_slice(num_in_batch: int, rank: int, world_size: int) -> tuple[int, int]:
    """Give the contiguous part [start, stop) of a global batch that belongs to a rank.

    Parts differ by at most one example; the first ranks have the larger ones. A part may be empty.
    """
    share, extra = divmod(num_in_batch, world_size)
    start = rank * share + min(rank, extra)
    return start, start + share + (rank < extra)
