"""Parameter servers: ranks that receive everybody's part, add it up, and send the sum back."""

from __future__ import annotations

import numpy as np

from stepladder.parallel.collectives.schedule import Schedule, add, copy


def parameter_server(num_ranks: int) -> Schedule:
    """Return one parameter server, in two steps: rank 0 receives from all others, then sends.

    All p - 1 messages of a step share the server's connection, so its time grows with p.

    Source: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", OSDI.
    """
    workers = np.arange(1, num_ranks)
    push, pull = add(workers, 0, first=0), copy(0 * workers, workers, first=0)
    return Schedule("parameter_server", num_ranks, 1, [push, pull] if num_ranks > 1 else [])


def sharded_parameter_server(num_ranks: int) -> Schedule:
    """Return a parameter server on each rank, in 2 (p - 1) steps.

    Rank r is the server of chunk r. In step t, each rank sends to the rank t + 1 places further on
    the chunk that it serves, so that no server receives two messages at once; then the sums go back
    in the same order. Each rank sends as many bytes as in a ring, but to all others.

    Source: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", OSDI;
        with a server on each worker as in Chen et al. 2015, "MXNet", arXiv:1512.01274.
    """
    rank = np.arange(num_ranks)
    servers = [(rank + step) % num_ranks for step in range(1, num_ranks)]
    push = [add(rank, server, first=server) for server in servers]
    pull = [copy(rank, worker, first=rank) for worker in servers]
    return Schedule("sharded_parameter_server", num_ranks, num_ranks, [*push, *pull])
