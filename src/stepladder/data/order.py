"""Which example stands at which position of an epoch: a pure function, O(1) at any size.

A keyed Feistel network permutes the smallest power of four, from 256 on, that holds n; a value that
falls outside n is put through again until it is inside (cycle walking): still a bijection.
Integers and BLAKE2b only, so the order is the same on every machine and library version. The
golden vectors in the tests freeze it: a change needs a new order version.

Source: Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains", CT-RSA (methods 2 and 3).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepladder.config.choices import OrderMode

ORDER_VERSION = 1
_SMALL = 256  # the smallest domain of the network
NUM_ROUNDS = 8  # BLAKE2b gives 64 bytes: a 64-bit key for each round


@dataclass(frozen=True)
class Bijection:
    """A permutation of range(n), chosen by a key of plain values.

    Attributes:
        n: size of the domain, 1 or more.
        key: values that choose the permutation; hashed as JSON, so 1 and "1" differ.
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
        # Two halves of at least 4 bits: with fewer, tiny n are not shuffled evenly.
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
        """Tabulate a small domain: walks are long there, but all of them take 256 steps at most."""
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
class Order:
    """The order of an epoch, for every epoch: position to row.

    Depends on nothing but its fields and the epoch: not on threads, ranks, batch size or restarts.

    Attributes:
        seed: chooses the shuffles.
        num_examples: rows of the split.
        mode: global (shuffled over the whole split) or sequential.
        fingerprint: identity of the data; other data, other order.
        fraction: share of the rows that is used, in (0, 1]; the same rows in every epoch.
        fraction_seed: chooses those rows, independently of seed.
        version: of this file's arithmetic.
    """

    seed: int
    num_examples: int
    mode: OrderMode
    fingerprint: str
    fraction: float = 1.0
    fraction_seed: int = 42
    version: int = ORDER_VERSION

    def __post_init__(self) -> None:
        if self.num_examples < 1:
            raise ValueError(f"num_examples is {self.num_examples}, not 1 or more")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction is {self.fraction}, not in (0, 1]")
        if self.version != ORDER_VERSION:
            raise ValueError(f"order version {self.version} is not known; this is {ORDER_VERSION}")

    @property
    def num_samples(self) -> int:
        """Positions of an epoch: num_examples, or the sampled share of them."""
        return max(1, round(self.num_examples * self.fraction))

    def samples(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """Give the rows at positions [start, stop) of an epoch.

        With a fraction below 1, sequential order is the order in which rows were drawn.

        Shapes: int64 (stop - start,).
        """
        if not 0 <= start <= stop <= self.num_samples:
            raise ValueError(f"[{start}, {stop}) is not within [0, {self.num_samples})")
        positions = np.arange(start, stop, dtype=np.int64)
        if self.mode is OrderMode.GLOBAL:
            positions = self._shuffle(epoch)(positions)
        if self.fraction < 1:
            positions = self._draw(positions)
        return positions

    def _shuffle(self, epoch: int) -> Bijection:
        key = (self.version, "order", self.mode.value, self.seed, epoch, self.fingerprint)
        return Bijection(self.num_samples, (*key, self.num_samples))

    @cached_property
    def _draw(self) -> Bijection:
        key = (self.version, "fraction", self.fraction_seed, self.fingerprint)
        return Bijection(self.num_examples, (*key, self.num_examples))


def rank_slice(num_in_batch: int, rank: int, world_size: int) -> tuple[int, int]:
    """Give the contiguous part [start, stop) of a global batch that belongs to a rank.

    Parts differ by at most one example; the first ranks have the larger ones. A part may be empty.
    """
    share, extra = divmod(num_in_batch, world_size)
    start = rank * share + min(rank, extra)
    return start, start + share + (rank < extra)
