"""All-reduce in a ring: each rank sends to its right neighbour and receives from its left one."""

from __future__ import annotations

import numpy as np

from stepladder.parallel.collectives.schedule import Schedule, add, copy


def ring(num_ranks: int) -> Schedule:
    """Return the ring, in 2 (p - 1) steps: reduce-scatter, then all-gather.

    The tensor is divided into p chunks. In the first p - 1 steps each chunk travels once around the
    ring, and every rank adds its own part to it; rank r then has the sum of chunk r + 1. In the
    other p - 1 steps the sums travel once around the ring. Each rank sends 2 (p - 1) / p of the
    tensor, the least that is possible.

    Source: Patarasuk and Yuan 2009, "Bandwidth Optimal All-reduce Algorithms for Clusters of
        Workstations", JPDC 69(2); Gibiansky 2017, "Bringing HPC Techniques to Deep Learning"
        (Baidu).
    """
    rank = np.arange(num_ranks)
    right = (rank + 1) % num_ranks
    reduce_scatter = [
        add(rank, right, first=(rank - step) % num_ranks) for step in range(num_ranks - 1)
    ]
    all_gather = [
        copy(rank, right, first=(rank + 1 - step) % num_ranks) for step in range(num_ranks - 1)
    ]
    return Schedule("ring", num_ranks, num_ranks, [*reduce_scatter, *all_gather])
