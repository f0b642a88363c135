"""Reduction trees: sums flow from the leaves to the root, and the result flows back."""

from __future__ import annotations

from stepladder.parallel.collectives.pipeline import Tree, reduce_and_broadcast
from stepladder.parallel.collectives.schedule import Schedule


def reduction_tree(num_ranks: int, num_segments: int = 1) -> Schedule:
    """Return a binomial tree: reduce, then broadcast, in 2 ceil(log2(p)) steps.

    In step k of the reduction, every second rank that still adds sends its sum to the rank 2^k
    below it, and is done. The broadcast takes the same steps in reverse.

    Args:
        num_ranks: p.
        num_segments: parts of the tensor that follow each other through the tree.

    Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication
        Operations in MPICH", IJHPCA 19(1); Iandola et al. 2016, "FireCaffe", arXiv:1511.00175.
    """
    parents = [rank & (rank - 1) for rank in range(num_ranks)]  # 6 = 110 sends to 4 = 100
    steps = reduce_and_broadcast([Tree(parents)], num_segments)
    return Schedule("reduction_tree", num_ranks, num_segments, steps)


def binary_tree(num_ranks: int, num_segments: int = 1) -> Schedule:
    """Return a full binary tree: rank r receives from ranks 2 r + 1 and 2 r + 2.

    As a whole, a tensor takes more steps than in a binomial tree, because a rank receives from two
    others one after the other. But none receives from more, so that segments follow each other in
    every second step.

    Args:
        num_ranks: p.
        num_segments: parts of the tensor that follow each other through the tree.

    Source: Iandola et al. 2016, "FireCaffe", section 4, arXiv:1511.00175.
    """
    parents = [(rank - 1) // 2 if rank else 0 for rank in range(num_ranks)]
    steps = reduce_and_broadcast([Tree(parents)], num_segments)
    return Schedule("binary_tree", num_ranks, num_segments, steps)
