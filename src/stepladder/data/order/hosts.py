"""Divide the rows of an epoch among hosts, by blocks such as the files of a store."""

from __future__ import annotations

import itertools
from functools import cached_property

import numpy as np

from stepladder.data.order.bijection import Bijection
from stepladder.data.order.blocks import Arrangement, Blocks


def rank_slice(num_in_batch: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return the contiguous part [start, stop) of a global batch that belongs to a rank.

    Parts differ by at most one example; the first ranks have the larger ones. A part may be empty.
    """
    share, extra = divmod(num_in_batch, world_size)
    start = rank * share + min(rank, extra)
    return start, start + share + (rank < extra)


def part_of_rank(
    num_in_batch: int, rank: int, world_size: int, *, num_hosts: int = 1
) -> tuple[int, int]:
    """Return the part [start, stop) of a global batch that belongs to a rank.

    If the ranks divide evenly into hosts, a batch is divided among the hosts first, so that the
    examples of a host do not depend on how many ranks it has. Otherwise as `rank_slice`.
    """
    if world_size % num_hosts:
        return rank_slice(num_in_batch, rank, world_size)
    ranks_per_host = world_size // num_hosts
    host, local_rank = divmod(rank, ranks_per_host)
    start, stop = rank_slice(num_in_batch, host, num_hosts)
    low, high = rank_slice(stop - start, local_rank, ranks_per_host)
    return start + low, start + high


class HostShares:
    """The rows of each host, the same in every epoch, and their positions in its batches.

    The blocks are shuffled once and cut into one share per host. A share has exactly as many rows
    as the host has positions in the batches of an epoch, so a block at a cut belongs to two hosts.

    Args:
        blocks: blocks of the rows.
        num_hosts: number of hosts.
        batch_size: examples of a global batch; the last batch of an epoch may be smaller.
        key: values that determine the shares.

    Attributes:
        of_host: blocks of each host, in stored order; some may be empty.
    """

    def __init__(
        self, blocks: Blocks, *, num_hosts: int, batch_size: int, key: tuple[str | int, ...]
    ) -> None:
        self._batch_size = batch_size
        self._num_full, num_last = divmod(int(blocks.sizes.sum()), batch_size)
        self._full = _cuts(batch_size, num_hosts)  # (num_hosts + 1,): starts of parts of a batch
        self._last = _cuts(num_last, num_hosts)
        ends = self._num_full * self._full + self._last
        self.of_host = _cut(blocks, ends, Bijection(len(blocks.sizes), (*key, "hosts")))

    def places(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the host of each position of an epoch, and the position within its share.

        Shapes: int64 (k,) to two of int64 (k,).
        """
        batch, within = np.divmod(positions, self._batch_size)
        is_last = batch == self._num_full
        host = np.where(
            is_last,
            np.searchsorted(self._last[1:], within, side="right"),
            np.searchsorted(self._full[1:], within, side="right"),
        )
        start = np.where(is_last, self._last[host], self._full[host])
        return host, batch * np.diff(self._full)[host] + within - start

    @cached_property
    def in_order(self) -> tuple[Arrangement, ...]:
        """The rows of each host in stored order."""
        return tuple(Arrangement(blocks.starts, blocks.sizes) for blocks in self.of_host)


def _cuts(num_in_batch: int, num_hosts: int) -> np.ndarray:
    """Return where the parts of a batch start and end, int64 (num_hosts + 1,)."""
    stops = [rank_slice(num_in_batch, host, num_hosts)[1] for host in range(num_hosts)]
    return np.array([0, *stops], dtype=np.int64)


def _cut(blocks: Blocks, cuts: np.ndarray, shuffle: Bijection) -> tuple[Blocks, ...]:
    """Cut shuffled blocks at positions, cuts[0] = 0 to cuts[-1], the number of rows."""
    turns = shuffle(np.arange(len(blocks.sizes)))
    starts, sizes = blocks.starts[turns], blocks.sizes[turns]
    ends = np.cumsum(sizes)
    shares = []
    for low, high in itertools.pairwise(cuts.tolist()):
        begins = np.maximum(ends - sizes, low)
        left = np.minimum(ends, high) - begins
        mine = np.flatnonzero(left > 0)
        first_rows = starts[mine] + begins[mine] - (ends - sizes)[mine]
        stored = np.argsort(first_rows)
        shares.append(Blocks(first_rows[stored], left[mine][stored]))
    return tuple(shares)
