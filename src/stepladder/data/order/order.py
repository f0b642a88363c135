"""The order of the examples of an epoch: a pure function of a few plain values.

Golden vectors in the tests pin it: a change needs a new order version.

Three parts: a permutation of a range without a table (`Bijection`), windows of blocks that are
shuffled separately (`Windows`), and the order of a run (`Order`), which chooses between them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepladder.config.choices import OrderMode

ORDER_VERSION = 1

_SMALL = 256  # the smallest domain of the network
NUM_ROUNDS = 8  # BLAKE2b gives 64 bytes: a 64-bit key for each round


@dataclass(frozen=True)
class Bijection:
    """A permutation of range(n), keyed by plain values, with O(1) cost at any size.

    A keyed Feistel network permutes the smallest power of four that is at least n and 256; values
    outside range(n) are permuted again until they are inside (cycle walking), which is still a
    bijection. Uses only integers and BLAKE2b, so it is the same on all machines and versions.

    Attributes:
        n: size of the domain, 1 or more.
        key: values that determine the permutation; hashed as JSON, so 1 and "1" differ.

    Source: Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains", CT-RSA (methods 2, 3).
    """

    n: int
    key: tuple[str | int, ...]

    @cached_property
    def _round_keys(self) -> list[np.uint64]:
        text = json.dumps(self.key, separators=(",", ":")).encode()
        digest = hashlib.blake2b(
            text, digest_size=8 * NUM_ROUNDS, person=b"stepladder/order"
        ).digest()
        return list(np.frombuffer(digest, dtype="<u8").astype(np.uint64))

    @cached_property
    def _half_bits(self) -> int:
        # Two halves of at least 4 bits: with fewer, small n are not shuffled uniformly.
        return max(4, ((self.n - 1).bit_length() + 1) // 2)

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Map positions to values.

        Args:
            positions: integers in [0, n), any number.

        Shapes: (k,) to int64 (k,).
        """
        if self.n <= _SMALL:
            return np.take(self._all, positions)
        values = self._permute(positions.astype(np.uint64))
        outside = np.flatnonzero(values >= self.n)
        while outside.size:
            walked = self._permute(values[outside])
            values[outside] = walked
            outside = outside[walked >= self.n]
        return values.astype(np.int64)

    @cached_property
    def _all(self) -> np.ndarray:
        """The table of a small domain, where single walks would be long."""
        network = self._permute(np.arange(_SMALL, dtype=np.uint64)).tolist()
        values = []
        for position in range(self.n):
            value = network[position]
            while value >= self.n:
                value = network[value]
            values.append(value)
        return np.array(values, dtype=np.int64)

    def _permute(self, values: np.ndarray) -> np.ndarray:
        """Permute [0, 4 ** half_bits) by a balanced Feistel network."""
        half = np.uint64(self._half_bits)
        mask = np.uint64((1 << self._half_bits) - 1)
        left, right = values >> half, values & mask
        for key in self._round_keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        return (left << half) | right


def _mix(x: np.ndarray) -> np.ndarray:
    """Spread each bit over all 64. Source: Steele et al. 2014, SplitMix64, OOPSLA (mix13)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed


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
        takes_blocks = self.mode is OrderMode.WINDOWED or self.is_sample_of_blocks
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
        """Return the windows of an epoch; cached, as an epoch is read in pieces."""
        known = self.__dict__.get("_known_windows")
        if known is None or known[0] != epoch:
            key = (self.version, "order", self.mode.value, self.seed, epoch, self.fingerprint)
            known = epoch, Windows(self._blocks, self.window_rows, (*key, self.num_samples))
            self.__dict__["_known_windows"] = known
        windows: Windows = known[1]
        return windows

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


def rank_slice(num_in_batch: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return the contiguous part [start, stop) of a global batch that belongs to a rank.

    Parts differ by at most one example; the first ranks have the larger ones. A part may be empty.
    """
    share, extra = divmod(num_in_batch, world_size)
    start = rank * share + min(rank, extra)
    return start, start + share + (rank < extra)
