"""Random numbers of a sample: a pure function of (seed, epoch, sample id, purpose).

There is no generator and no state: a sample gets the same crop in any batch, on any rank, and after
a restart. The numbers must never change; golden vectors in the tests pin them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Uint64: TypeAlias = npt.NDArray[np.uint64]
Float64: TypeAlias = npt.NDArray[np.float64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: splitmix64's increment


class Purpose(IntEnum):
    """What a random number decides. A value is never reused for another purpose."""

    CROP = 1
    FLIP = 2
    RANDAUGMENT_OP = 3
    RANDAUGMENT_SIGN = 4
    MIXUP_SHARE = 5
    MIXUP_PARTNER = 6


def draw_bits(
    ids: npt.ArrayLike, *, seed: int, epoch: int, purpose: Purpose, num: int = 1
) -> Uint64:
    """Draw 64 random bits, num times for each sample.

    Each word is absorbed by h = mix((h xor word) + golden), a bijection of h, so samples of one
    (seed, epoch, purpose) never share a state.

    Args:
        ids: sample ids, (n,), any integers.
        seed: any integer; its low 64 bits are used.
        epoch: epoch, or the number of a cached view.
        purpose: what the number decides.
        num: number of draws for each sample.

    Returns:
        uint64 (n, num).

    Source: Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators", OOPSLA
    (mix: Stafford's variant 13).
    """
    key = np.zeros(1, dtype=np.uint64)
    for word in (seed, epoch, int(purpose)):
        key = _absorb(key, np.array([word & _MASK], dtype=np.uint64))
    samples = np.asarray(ids, dtype=np.int64).astype(np.uint64).reshape(-1, 1)
    return _absorb(_absorb(key, samples), np.arange(num, dtype=np.uint64).reshape(1, -1))


def draw_uniform(
    ids: npt.ArrayLike, *, seed: int, epoch: int, purpose: Purpose, num: int = 1
) -> Float64:
    """Draw uniform numbers in [0, 1), with 53 random bits each. See `draw_bits`.

    Returns:
        float64 (n, num).
    """
    bits = draw_bits(ids, seed=seed, epoch=epoch, purpose=purpose, num=num)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw_integers(
    ids: npt.ArrayLike, *, below: int, seed: int, epoch: int, purpose: Purpose, num: int = 1
) -> npt.NDArray[np.int64]:
    """Draw integers in [0, below). See `draw_bits`.

    Returns:
        int64 (n, num).
    """
    uniform = draw_uniform(ids, seed=seed, epoch=epoch, purpose=purpose, num=num)
    return (uniform * below).astype(np.int64)


def draw_symmetric_beta(
    ids: npt.ArrayLike, *, alpha: float, seed: int, epoch: int, purpose: Purpose
) -> Float64:
    """Draw from Beta(alpha, alpha), exactly and without rejection, from two uniform numbers.

        x = 1/2 + sign(cos 2 pi v) / (2 sqrt(1 + 1 / ((u^(-1/alpha) - 1) cos^2(2 pi v))))

    It is Bailey's Student t with 2 alpha degrees of freedom, mapped to (0, 1).

    Returns:
        float64 (n,), in [0, 1].

    Source: Devroye 1996, "Random Variate Generation in One Line of Code", WSC, section 4.
    """
    uniform = draw_uniform(ids, seed=seed, epoch=epoch, purpose=purpose, num=2)
    u, cosine = 1.0 - uniform[:, 0], np.cos(2 * np.pi * uniform[:, 1])
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        ratio = np.expm1(-np.log(u) / alpha) * cosine**2
        half_width = 0.5 / np.sqrt(1 + 1 / ratio)
    share: Float64 = 0.5 + np.sign(cosine) * np.nan_to_num(half_width, nan=0.0)
    return share


def _absorb(state: Uint64, word: Uint64) -> Uint64:
    return _mix((state ^ word) + np.uint64(_GOLDEN))


def _mix(x: Uint64) -> Uint64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
