"""Two binary trees at once, each with half of the tensor."""

from __future__ import annotations

from stepladder.parallel.collectives.pipeline import Tree, reduce_and_broadcast
from stepladder.parallel.collectives.schedule import Schedule


def double_tree(num_ranks: int, num_segments: int = 2) -> Schedule:
    """Return two binary trees in which no rank has children in both.

    In one binary tree, half of the ranks are leaves, which only send what is their own and so use
    half of their connection. Here the leaves of one tree are the inner ranks of the other, and each
    tree carries every second segment.

    Args:
        num_ranks: p.
        num_segments: parts of the tensor, at least 2.

    Source: Sanders, Speck and Träff 2009, "Two-Tree Algorithms for Full Bandwidth Broadcast,
        Reduction and Scan", Parallel Computing 35(12); NCCL 2.4 uses it between hosts.
    """
    first = _in_order_parents(num_ranks)
    if num_ranks % 2:  # shifted by one: leaves have even numbers, inner ranks odd ones
        second = [(first[(rank + 1) % num_ranks] - 1) % num_ranks for rank in range(num_ranks)]
    else:  # mirrored
        second = [num_ranks - 1 - parent for parent in reversed(first)]
    steps = reduce_and_broadcast([Tree(first), Tree(second)], num_segments)
    return Schedule("double_tree", num_ranks, num_segments, steps)


def _in_order_parents(num_ranks: int) -> list[int]:
    """Return the parents in a binary search tree over the ranks, whose leaves are even.

    The rank 2^k (2 j + 1) - 1 is at level k: its lowest k bits are ones. Leaves are at level 0.
    """
    parents = list(range(num_ranks))

    def hang(low: int, high: int, parent: int | None) -> None:
        """Put the ranks from `low`, without `high`, below a parent."""
        if low >= high:
            return
        size = high - low
        root = low + (1 << (size.bit_length() - 1)) - 1  # the largest 2^k - 1 within
        parents[root] = root if parent is None else parent
        hang(low, root, root)
        hang(root + 1, high, root)

    hang(0, num_ranks, None)
    return parents
