"""A permutation of a range without a table; golden vectors in the tests pin it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

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
        """Permute [0, 4 ** half_bits)."""
        return _network(values, self._round_keys, self._half_bits)


def map_all(bijections: Sequence[Bijection], positions: np.ndarray) -> np.ndarray:
    """Map positions by many bijections of the same domain; equal to calling each of them.

    For domains of some hundreds, calls of NumPy take most of the time of a single one.

    Shapes: positions integers (k,); returns int64 (bijections, k).
    """
    first = bijections[0]
    if first.n <= _SMALL:
        return np.stack([one(positions) for one in bijections])
    keys = np.array([one._round_keys for one in bijections])  # (bijections, rounds)
    owners = np.repeat(np.arange(len(bijections)), len(positions))
    values = np.tile(positions.astype(np.uint64), len(bijections))
    at = np.arange(len(values))
    while at.size:
        rounds = [keys[owners[at], turn] for turn in range(NUM_ROUNDS)]
        walked = _network(values[at], rounds, first._half_bits)
        values[at] = walked
        at = at[walked >= first.n]
    return values.astype(np.int64).reshape(len(bijections), -1)


def _network(
    values: np.ndarray, round_keys: Sequence[np.uint64 | np.ndarray], half_bits: int
) -> np.ndarray:
    """Permute [0, 4 ** half_bits) by a balanced Feistel network."""
    half, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> half, values & mask
    for key in round_keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << half) | right


def _mix(x: np.ndarray) -> np.ndarray:
    """Spread each bit over all 64. Source: Steele et al. 2014, SplitMix64, OOPSLA (mix13)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed
