"""Butterflies: in each step, ranks exchange with a partner twice as far away as before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepladder.parallel.collectives.schedule import Numbers, Schedule, add, aligned, copy


def recursive_doubling(num_ranks: int) -> Schedule:
    """Return recursive doubling, in log2(p) steps: partners exchange all of the tensor.

    After step k, each rank has the sum of 2^(k + 1) ranks. Fewest steps of all, and the most bytes.
    If p is no power of two, ranks beyond the largest one below p first send their tensor to another
    rank, and get the sums at the end.

    Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication
        Operations in MPICH", IJHPCA 19(1), section 4.1.
    """
    ranks, before, after = _folded(num_ranks, num_chunks=1)
    index = np.arange(len(ranks))
    exchanges = [
        add(ranks, ranks[index ^ distance], first=0) for distance in _distances(len(ranks))
    ]
    return Schedule("recursive_doubling", num_ranks, 1, [*before, *exchanges, *after])


def halving_doubling(num_ranks: int) -> Schedule:
    """Return recursive halving and doubling, in 2 log2(p) steps.

    Reduce-scatter: partners 1, 2, 4, ... ranks apart exchange halves of what they still add up,
    each half as long as the one before. All-gather: the same steps in reverse, with the sums. Each
    rank sends 2 (p - 1) / p of the tensor, as in a ring, but in fewer steps. If p is no power of
    two, ranks beyond the largest one below p first send their tensor to another rank, and get the
    sums at the end.

    Source: Rabenseifner 2004, "Optimization of Collective Reduction Operations", ICCS; Goyal et al.
        2017, "Accurate, Large Minibatch SGD", section 4, arXiv:1706.02677.
    """
    num_core = 1 << (num_ranks.bit_length() - 1)
    ranks, before, after = _folded(num_ranks, num_chunks=num_core)
    halving, doubling, _, _ = _halved(ranks, num_chunks=num_core)
    steps = [*before, *halving, *doubling, *after]
    return Schedule("halving_doubling", num_ranks, num_core, steps)


def binary_blocks(num_ranks: int) -> Schedule:
    """Return recursive halving and doubling in blocks whose sizes are powers of two.

    11 ranks are blocks of 8, 2 and 1. Each block does a reduce-scatter. Then the smallest block
    sends its sums to the ranks of the next larger one that add up the same chunks, and so on to the
    largest; the results return the same way, and each block does its all-gather. No rank sits out.

    Source: Rabenseifner and Träff 2004, "More Efficient Reduction Algorithms for Non-Power-of-Two
        Number of Processors in Message-Passing Parallel Systems", EuroPVM/MPI, section 3.
    """
    sizes = [1 << bit for bit in range(num_ranks.bit_length()) if num_ranks >> bit & 1][::-1]
    starts = np.cumsum([0, *sizes])
    num_chunks = sizes[0]
    blocks = [np.arange(start, start + size) for start, size in zip(starts, sizes, strict=False)]
    halved = [_halved(block, num_chunks=num_chunks) for block in blocks]
    up, down = [], []
    for number in range(len(blocks) - 1, 0, -1):  # from the smallest block to the largest
        _, _, lows, highs = halved[number]
        _, _, larger_lows, larger_highs = halved[number - 1]
        small, large = np.nonzero(
            (larger_lows[None] >= lows[:, None]) & (larger_highs[None] <= highs[:, None])
        )
        parts = larger_lows[large], larger_highs[large]
        up.append(add(blocks[number][small], blocks[number - 1][large], *parts))
        down.append(copy(blocks[number - 1][large], blocks[number][small], *parts))
    halving = aligned([one[0] for one in halved], at_end=True)
    doubling = aligned([one[1] for one in halved])
    steps = [*halving, *up, *down[::-1], *doubling]
    return Schedule("binary_blocks", num_ranks, num_chunks, steps)


def _distances(num_ranks: int) -> list[int]:
    return [1 << level for level in range(num_ranks.bit_length() - 1)]


def _folded(num_ranks: int, *, num_chunks: int) -> tuple[Numbers, list[Numbers], list[Numbers]]:
    """Return the ranks that take part, as many as a power of two, and a step before and after.

    With r ranks too many, ranks 1, 3, ... 2 r - 1 send all they have to the rank before them, sit
    out, and receive the result at the end.
    """
    num_extra = num_ranks - (1 << (num_ranks.bit_length() - 1))
    if not num_extra:
        return np.arange(num_ranks), [], []
    even = 2 * np.arange(num_extra)
    ranks = np.concatenate([even, np.arange(2 * num_extra, num_ranks)])
    before = add(even + 1, even, 0, num_chunks)
    after = copy(even, even + 1, 0, num_chunks)
    return ranks, [before], [after]


def _halved(
    ranks: Numbers, *, num_chunks: int
) -> tuple[Sequence[Numbers], Sequence[Numbers], Numbers, Numbers]:
    """Return the steps of reduce-scatter and all-gather, and the chunks of each rank in between.

    Args:
        ranks: as many as a power of two.
        num_chunks: at least as many.
    """
    index = np.arange(len(ranks))
    lows, highs = np.zeros_like(index), np.full_like(index, num_chunks)
    halving, doubling = [], []
    for distance in _distances(len(ranks)):
        partner = ranks[index ^ distance]
        middles = (lows + highs) // 2
        is_upper = index & distance != 0
        sent = np.where(is_upper, lows, middles), np.where(is_upper, middles, highs)
        lows, highs = np.where(is_upper, middles, lows), np.where(is_upper, highs, middles)
        halving.append(add(ranks, partner, *sent))
        doubling.append(copy(ranks, partner, lows, highs))
    return halving, doubling[::-1], lows, highs
