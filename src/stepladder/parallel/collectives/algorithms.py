"""The list of all-reduce algorithms, with what each costs by its formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepladder.parallel.collectives.butterfly import (
    binary_blocks,
    halving_doubling,
    recursive_doubling,
)
from stepladder.parallel.collectives.double_tree import double_tree
from stepladder.parallel.collectives.hierarchical import hierarchical
from stepladder.parallel.collectives.parameter_server import (
    parameter_server,
    sharded_parameter_server,
)
from stepladder.parallel.collectives.reduction_tree import binary_tree, reduction_tree
from stepladder.parallel.collectives.ring import ring
from stepladder.parallel.collectives.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Where and what is added up.

    Attributes:
        num_ranks: p.
        num_elements: n, of the tensor.
        num_local: ranks on each host.
        num_segments: k, parts that follow each other through a tree.
    """

    num_ranks: int
    num_elements: int = 1
    num_local: int = 1
    num_segments: int = 1

    @property
    def num_core(self) -> int:
        """Return the largest power of two that is no more than the number of ranks."""
        return 1 << (self.num_ranks.bit_length() - 1)


Formula = Callable[[Shape], int]


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A way of adding up tensors over all ranks.

    Attributes:
        name: as users type it.
        schedule: makes its schedule.
        num_messages: of all ranks together, by formula; messages without elements are not sent.
        num_sent: elements sent by all ranks together, by formula.
        time: the formula of its time, with p ranks, n bytes and L = log2(p), as text.
        has_segments: its tensor may be sent in segments.
        has_hosts: it distinguishes hosts.
        is_one_port: in each step, a rank sends at most one message and receives at most one.
    """

    name: str
    schedule: Callable[[Shape], Schedule]
    num_messages: Formula
    num_sent: Formula
    time: str
    has_segments: bool = False
    has_hosts: bool = False
    is_one_port: bool = True


def _through(num_chunks: int, shape: Shape) -> int:
    """Return the messages if each chunk with elements goes to a rank, or around, and back."""
    return 2 * (shape.num_ranks - 1) * min(shape.num_elements, num_chunks)


def _least(shape: Shape) -> int:
    """Return the least number of elements: each rank but one sends all it has, and receives it."""
    return 2 * (shape.num_ranks - 1) * shape.num_elements


def _halved(num_ranks: int, num_elements: int) -> int:
    """Return the messages of a reduce-scatter by halves, and of the all-gather in reverse."""
    levels = range(num_ranks.bit_length() - 1)
    return sum(2 * (num_ranks >> k + 1) * min(num_elements, 2 << k) for k in levels)


def _folds(shape: Shape) -> int:
    """Return the messages of ranks that are folded into others, and back."""
    return 2 * (shape.num_ranks - shape.num_core) * min(shape.num_elements, 1)


def _doubled(shape: Shape) -> int:
    exchanges = shape.num_core * (shape.num_core.bit_length() - 1)
    return exchanges * min(shape.num_elements, 1) + _folds(shape)


def _blocks(shape: Shape) -> int:
    bits = range(shape.num_ranks.bit_length())
    sizes = [1 << bit for bit in bits if shape.num_ranks >> bit & 1]
    within = sum(_halved(size, shape.num_elements) for size in sizes)
    return within + sum(2 * min(shape.num_elements, larger) for larger in sizes[1:])


def _levels(shape: Shape) -> int:
    num_hosts = shape.num_ranks // shape.num_local
    within = num_hosts * (shape.num_local - 1) * min(shape.num_elements, shape.num_local)
    across = (num_hosts - 1) * min(shape.num_elements, shape.num_ranks)
    return 2 * (within + across)


PARAMETER_SERVER: Final = Algorithm(
    name="parameter_server",
    schedule=lambda shape: parameter_server(shape.num_ranks),
    num_messages=lambda shape: _through(1, shape),
    num_sent=_least,
    time="2 α + 2 (p − 1) n β + (p − 1) n γ",
    is_one_port=False,
)
SHARDED_PARAMETER_SERVER: Final = Algorithm(
    name="sharded_parameter_server",
    schedule=lambda shape: sharded_parameter_server(shape.num_ranks),
    num_messages=lambda shape: _through(shape.num_ranks, shape),
    num_sent=_least,
    time="2 (p − 1) α + 2 (p − 1) / p · n β + (p − 1) / p · n γ",
)
REDUCTION_TREE: Final = Algorithm(
    name="reduction_tree",
    schedule=lambda shape: reduction_tree(shape.num_ranks, shape.num_segments),
    num_messages=lambda shape: _through(shape.num_segments, shape),
    num_sent=_least,
    time="2 ⌈L⌉ (α + n β) + ⌈L⌉ n γ",
    has_segments=True,
)
BINARY_TREE: Final = Algorithm(
    name="binary_tree",
    schedule=lambda shape: binary_tree(shape.num_ranks, shape.num_segments),
    num_messages=lambda shape: _through(shape.num_segments, shape),
    num_sent=_least,
    time="about 4 (⌊L⌋ + k / 2) (α + n β / k), with k segments",
    has_segments=True,
)
DOUBLE_TREE: Final = Algorithm(
    name="double_tree",
    schedule=lambda shape: double_tree(shape.num_ranks, shape.num_segments),
    num_messages=lambda shape: _through(shape.num_segments, shape),
    num_sent=_least,
    time="about 2 L α + 2 n β, with many segments",
    has_segments=True,
)
RING: Final = Algorithm(
    name="ring",
    schedule=lambda shape: ring(shape.num_ranks),
    num_messages=lambda shape: _through(shape.num_ranks, shape),
    num_sent=_least,
    time="2 (p − 1) α + 2 (p − 1) / p · n β + (p − 1) / p · n γ",
)
RECURSIVE_DOUBLING: Final = Algorithm(
    name="recursive_doubling",
    schedule=lambda shape: recursive_doubling(shape.num_ranks),
    num_messages=_doubled,
    num_sent=lambda shape: _doubled(shape) * shape.num_elements,
    time="L (α + n β + n γ)",
)
HALVING_DOUBLING: Final = Algorithm(
    name="halving_doubling",
    schedule=lambda shape: halving_doubling(shape.num_ranks),
    num_messages=lambda shape: _halved(shape.num_core, shape.num_elements) + _folds(shape),
    num_sent=_least,
    time="2 L α + 2 (p − 1) / p · n β + (p − 1) / p · n γ",
)
BINARY_BLOCKS: Final = Algorithm(
    name="binary_blocks",
    schedule=lambda shape: binary_blocks(shape.num_ranks),
    num_messages=_blocks,
    num_sent=_least,
    time="as halving_doubling, and about 2 α + n β for each further block",
    is_one_port=False,
)
HIERARCHICAL: Final = Algorithm(
    name="hierarchical",
    schedule=lambda shape: hierarchical(shape.num_ranks, shape.num_local),
    num_messages=_levels,
    num_sent=_least,
    time="a ring of g within each of m hosts, and a ring of m with n / g bytes",
    has_hosts=True,
)
ALGORITHMS: Final = (
    PARAMETER_SERVER,
    SHARDED_PARAMETER_SERVER,
    REDUCTION_TREE,
    BINARY_TREE,
    DOUBLE_TREE,
    RING,
    RECURSIVE_DOUBLING,
    HALVING_DOUBLING,
    BINARY_BLOCKS,
    HIERARCHICAL,
)


def distinct(shape: Shape) -> list[Algorithm]:
    """Return the algorithms whose messages differ from those of all before them in the list.

    A hierarchy of one rank on each host is a ring, and blocks of a power of two are one block.
    """
    found: list[tuple[Algorithm, Schedule]] = []
    for algorithm in ALGORITHMS:
        schedule = algorithm.schedule(shape)
        if not any(np.array_equal(schedule.table, other.table) for _, other in found):
            found.append((algorithm, schedule))
    return [algorithm for algorithm, _ in found]
