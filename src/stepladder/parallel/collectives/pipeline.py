"""Send segments of a tensor through trees, one behind the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepladder.parallel.collectives.schedule import Numbers


@dataclass(frozen=True)
class Tree:
    """A tree over all ranks.

    Attributes:
        parents: of each rank; the root is its own parent.
    """

    parents: Sequence[int]

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """Return (child, parent) of all ranks but the root.

        Those nearest to the root come first, and of these, those with the most levels below them.
        """
        depths = [len(self._ancestors(rank)) for rank in range(len(self.parents))]
        heights = [0] * len(depths)
        for rank, depth in enumerate(depths):
            for ancestor in self._ancestors(rank):
                heights[ancestor] = max(heights[ancestor], depth - depths[ancestor])
        order = sorted(range(len(depths)), key=lambda rank: (depths[rank], -heights[rank], rank))
        return [(rank, self.parents[rank]) for rank in order if depths[rank]]

    def _ancestors(self, rank: int) -> list[int]:
        found = []
        while self.parents[rank] != rank:
            rank = self.parents[rank]
            found.append(rank)
        return found


class _Ports:
    """The steps in which each rank sends and receives: at most one message each way in a step."""

    def __init__(self) -> None:
        self._sends: defaultdict[int, set[int]] = defaultdict(set)
        self._receives: defaultdict[int, set[int]] = defaultdict(set)

    def take(self, source: int, target: int, earliest: int) -> int:
        """Return the first step from `earliest` in which both are free, and use it."""
        sends, receives = self._sends[source], self._receives[target]
        step = earliest
        while step in sends or step in receives:
            step += 1
        sends.add(step)
        receives.add(step)
        return step


def reduce_and_broadcast(trees: Sequence[Tree], num_segments: int) -> list[Numbers]:
    """Return the steps of a reduction to the root and a broadcast, segment by segment.

    Each message is sent in the first step before which its source has received all it needs, and
    in which neither the source sends nor the target receives anything else.

    Args:
        trees: segment i goes through tree i % len(trees).
        num_segments: chunks of the schedule.
    """
    ports = _Ports()
    steps: defaultdict[int, list[tuple[int, int, int, int, bool]]] = defaultdict(list)
    for segment in range(num_segments):
        tree = trees[segment % len(trees)]
        ready = [0] * len(tree.parents)  # the first step in which a rank may send this segment
        for child, parent in reversed(tree.edges):
            step = ports.take(child, parent, ready[child])
            ready[parent] = max(ready[parent], step + 1)
            steps[step].append((child, parent, segment, segment + 1, True))
        for child, parent in tree.edges:
            step = ports.take(parent, child, ready[parent])
            ready[child] = step + 1
            steps[step].append((parent, child, segment, segment + 1, False))
    return [np.array(steps[step], np.int64) for step in sorted(steps)]
