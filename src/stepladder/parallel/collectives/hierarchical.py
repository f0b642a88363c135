"""All-reduce in two levels: within each host, then between hosts."""

from __future__ import annotations

import numpy as np

from stepladder.parallel.collectives.schedule import Numbers, Schedule, add, copy


def hierarchical(num_ranks: int, num_local: int) -> Schedule:
    """Return rings within hosts around rings between them, in 2 (g - 1) + 2 (m - 1) steps.

    With m hosts of g ranks: a reduce-scatter within each host leaves each rank with 1 / g of the
    tensor, the sum over its host. The ranks of one place on all hosts add these up in a ring, and
    an all-gather within each host returns the result. Each host sends 2 (m - 1) / m of the tensor
    to others, whatever g is.

    Args:
        num_ranks: p, a multiple of `num_local`; host h has the ranks from h g to h g + g - 1.
        num_local: g, ranks on each host.

    Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 4, arXiv:1706.02677; Jia et
        al. 2018, "Highly Scalable Deep Learning Training System", arXiv:1807.11205.
    """
    num_hosts = num_ranks // num_local
    rank = np.arange(num_ranks)
    host, place = rank // num_local, rank % num_local
    beside = host * num_local + (place + 1) % num_local  # the next rank on this host
    across = (rank + num_local) % num_ranks  # the same place on the next host
    own = (place + 1) % num_local * num_hosts  # the first chunk that a rank adds up between hosts

    def part(step: int) -> tuple[Numbers, Numbers]:
        first = (place + step) % num_local * num_hosts
        return first, first + num_hosts

    steps = [add(rank, beside, *part(-step)) for step in range(num_local - 1)]
    steps += [add(rank, across, own + (host - step) % num_hosts) for step in range(num_hosts - 1)]
    steps += [
        copy(rank, across, own + (host + 1 - step) % num_hosts) for step in range(num_hosts - 1)
    ]
    steps += [copy(rank, beside, *part(1 - step)) for step in range(num_local - 1)]
    return Schedule("hierarchical", num_ranks, num_ranks, steps)
