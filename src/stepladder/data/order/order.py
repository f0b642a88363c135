"""The order of the examples of an epoch: a pure function of a few plain values.

Golden vectors in the tests pin it: a change needs a new order version.

`Order` chooses between a permutation of all rows (bijection.py), windows of blocks that are
shuffled separately (blocks.py), and windows of the blocks of each host (hosts.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepladder.config.choices import OrderMode
from stepladder.data.order.bijection import Bijection, map_all
from stepladder.data.order.blocks import Arrangement, Blocks, Windows
from stepladder.data.order.hosts import HostShares

ORDER_VERSION = 1


@dataclass(frozen=True)
class Order:
    """The order of every epoch; maps positions to rows.

    Depends only on its fields and the epoch, not on threads, ranks, batch size or restarts.

    Attributes:
        seed: seed of the shuffles.
        num_examples: rows of the split.
        mode: global (shuffled over the whole split), windowed or sequential.
        fingerprint: identity of the data; different data have a different order.
        fraction: fraction of the rows to use, in (0, 1]; the same rows in every epoch.
        fraction_seed: seed for choosing these rows, independent of seed.
        block_rows: sizes of blocks of rows that are cheap to read together, in the order of rows;
            empty if the data has no blocks. Used by windowed order.
        window_rows: approximate rows of a window of windowed order.
        is_sample_of_blocks: whether a fraction samples whole blocks instead of rows.
        num_hosts: hosts among which the blocks are divided, the same in every epoch: each part of a
            global batch, divided by this number, has rows of one host's blocks only. Not for global
            order.
        batch_size: examples of a global batch; ignored unless num_hosts is above 1.
        version: version of this order.
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
    num_hosts: int = 1
    batch_size: int = 0
    version: int = ORDER_VERSION

    def __post_init__(self) -> None:
        if self.num_examples < 1:
            raise ValueError(f"num_examples must be at least 1, not {self.num_examples}")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be in (0, 1], not {self.fraction}")
        if self.version != ORDER_VERSION:
            raise ValueError(
                f"unknown order version {self.version}; the current version is {ORDER_VERSION}"
            )
        if self.mode is OrderMode.AUTO:
            raise ValueError("mode auto must be resolved before creating an order")
        if self.mode is OrderMode.WINDOWED and self.window_rows < 1:
            raise ValueError(f"window_rows must be at least 1, not {self.window_rows}")
        if self.num_hosts > 1 and (self.mode is OrderMode.GLOBAL or self.batch_size < 1):
            raise ValueError("several hosts need windowed or sequential order, and a batch_size")
        takes_blocks = self.mode is OrderMode.WINDOWED or self.is_sample_of_blocks
        takes_blocks = takes_blocks or self.num_hosts > 1
        if takes_blocks and sum(self.block_rows) != self.num_examples:
            raise ValueError("block_rows do not add up to num_examples")

    @property
    def num_samples(self) -> int:
        """Number of positions of an epoch: num_examples, or the sampled fraction of it."""
        return max(1, round(self.num_examples * self.fraction))

    def samples(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """Return the rows at positions [start, stop) of an epoch.

        Sequential order is stored order; for a sample of rows, the order in which they were drawn.

        Shapes: int64 (stop - start,).
        """
        if not 0 <= start <= stop <= self.num_samples:
            raise ValueError(f"[{start}, {stop}) is not within [0, {self.num_samples})")
        positions = np.arange(start, stop, dtype=np.int64)
        if self.num_hosts > 1:
            return self._as_stored(self._rows_by_host(epoch, positions))
        if self.mode is OrderMode.WINDOWED:
            return self._as_stored(self._windows(epoch)[0].rows(positions))
        if self.mode is OrderMode.GLOBAL:
            positions = self._shuffle(epoch)(positions)
        if self.fraction == 1:
            return positions
        return self._files.rows(positions) if self.is_sample_of_blocks else self._draw(positions)

    def rows_of_host(self, host: int) -> np.ndarray:
        """Return the rows of a host, in stored order, int64 (k,); the same in every epoch."""
        if self.num_hosts == 1:
            return replace(self, mode=OrderMode.SEQUENTIAL).samples(0, 0, self.num_samples)
        in_order = self._shares.in_order[host]
        num_rows = int(in_order.sizes.sum())
        return self._as_stored(in_order.rows(np.arange(num_rows, dtype=np.int64)))

    def first_row_of_host(self, host: int) -> int:
        """Return the first row of a host; 0 if it has none."""
        if self.num_hosts == 1 or not self._shares.of_host[host].sizes.size:
            return 0
        return int(self._as_stored(self._shares.of_host[host].starts[:1])[0])

    def _rows_by_host(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        hosts, places = self._shares.places(positions)
        rows = np.empty_like(positions)
        for host in np.unique(hosts).tolist():
            here = hosts == host
            share: Windows | Arrangement = (
                self._windows(epoch)[host]
                if self.mode is OrderMode.WINDOWED
                else self._shares.in_order[host]
            )
            rows[here] = share.rows(places[here])
        return rows

    @cached_property
    def _shares(self) -> HostShares:
        key = (self.version, "shares", self.seed, self.fingerprint, self.num_samples)
        num_hosts, batch_size = self.num_hosts, self.batch_size
        return HostShares(self._blocks, num_hosts=num_hosts, batch_size=batch_size, key=key)

    def _as_stored(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of the split for rows of the blocks of an epoch."""
        return rows if self._drawn_rows is None else self._drawn_rows[rows]

    def _shuffle(self, epoch: int) -> Bijection:
        key = (self.version, "order", self.mode.value, self.seed, epoch, self.fingerprint)
        return Bijection(self.num_samples, (*key, self.num_samples))

    @cached_property
    def _draw(self) -> Bijection:
        key = (self.version, "fraction", self.fraction_seed, self.fingerprint)
        return Bijection(self.num_examples, (*key, self.num_examples))

    def _windows(self, epoch: int) -> Mapping[int, Windows]:
        """Return the windows of an epoch by host; cached, as an epoch is read in pieces."""
        known = self.__dict__.get("_known_windows")
        if known is None or known[0] != epoch:
            key = (self.version, "order", self.mode.value, self.seed, epoch, self.fingerprint)
            known = epoch, self._make_windows((*key, self.num_samples))
            self.__dict__["_known_windows"] = known
        windows: Mapping[int, Windows] = known[1]
        return windows

    def _make_windows(self, key: tuple[str | int, ...]) -> dict[int, Windows]:
        if self.num_hosts == 1:
            return {0: Windows(self._blocks, self.window_rows, key)}
        return {
            host: Windows(blocks, self.window_rows, (*key, "host", host))
            for host, blocks in enumerate(self._shares.of_host)
            if len(blocks.sizes)
        }

    @cached_property
    def _blocks(self) -> Blocks:
        """The blocks of an epoch."""
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
        """Sorted rows of a sample of rows, for windows; else None."""
        if self.fraction == 1 or self.is_sample_of_blocks:
            return None
        return np.sort(self._draw(np.arange(self.num_samples, dtype=np.int64)))

    @cached_property
    def _files(self) -> Arrangement:
        """The rows of a sample of blocks, in stored order."""
        used = np.flatnonzero(self._blocks.sizes)
        return Arrangement(self._blocks.starts[used], self._blocks.sizes[used])


def samples_of(orders: Sequence[Order], epoch: int) -> np.ndarray:
    """Return the rows of an epoch in several orders of the same examples.

    Shapes: int64 (orders, num_samples).
    """
    first = orders[0]
    if first.mode is not OrderMode.GLOBAL or first.fraction < 1 or first.num_hosts > 1:
        return np.stack([order.samples(epoch, 0, order.num_samples) for order in orders])
    positions = np.arange(first.num_samples, dtype=np.int64)
    return map_all([order._shuffle(epoch) for order in orders], positions)
