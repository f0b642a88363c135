"""Every algorithm's schedule adds up every part once, with the messages of its formula."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stepladder.parallel.collectives.algorithms import (
    ALGORITHMS,
    BINARY_BLOCKS,
    BINARY_TREE,
    DOUBLE_TREE,
    HALVING_DOUBLING,
    HIERARCHICAL,
    PARAMETER_SERVER,
    RECURSIVE_DOUBLING,
    REDUCTION_TREE,
    RING,
    SHARDED_PARAMETER_SERVER,
    Algorithm,
    Shape,
)
from stepladder.parallel.collectives.cost import schedule_s
from stepladder.parallel.collectives.double_tree import double_tree
from stepladder.parallel.collectives.schedule import Schedule, contributions
from stepladder.records.collectives import Link

SIZES = (*range(1, 18), 23, 31, 32, 33, 48, 63, 64)
POWERS = (1, 2, 4, 8, 16, 64)
law = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)


def shapes(algorithm: Algorithm, num_ranks: int, num_elements: int = 1) -> list[Shape]:
    """Return all kinds of shapes that an algorithm distinguishes."""
    nums_local = [num for num in range(1, num_ranks + 1) if num_ranks % num == 0]
    return [
        Shape(
            num_ranks=num_ranks, num_elements=num_elements, num_local=local, num_segments=segments
        )
        for local in (nums_local if algorithm.has_hosts else [1])
        for segments in ((1, 2, 3, 8) if algorithm.has_segments else [1])
    ]


def schedules(algorithm: Algorithm) -> list[Schedule]:
    return [algorithm.schedule(shape) for num in SIZES for shape in shapes(algorithm, num)]


@law
def test_every_part_of_every_rank_is_in_every_sum_once(algorithm: Algorithm) -> None:
    for schedule in schedules(algorithm):
        assert (contributions(schedule) == 1).all(), schedule


@law
def test_no_part_is_overwritten_while_it_is_sent_or_received(algorithm: Algorithm) -> None:
    for schedule in schedules(algorithm):
        for rows in schedule.steps:
            sent = np.zeros((schedule.num_ranks, schedule.num_chunks), bool)
            copied = np.zeros(sent.shape, int)
            added = np.zeros(sent.shape, bool)
            for source, target, first, last, is_added in rows.tolist():
                assert source != target
                assert 0 <= first < last <= schedule.num_chunks
                sent[source, first:last] = True
                (added if is_added else copied)[target, first:last] += True
            assert copied.max(initial=0) <= 1
            assert not ((copied > 0) & (sent | added)).any()


@law
def test_a_rank_sends_and_receives_one_message_in_a_step(algorithm: Algorithm) -> None:
    most = 0
    for schedule in schedules(algorithm):
        for rows in schedule.steps:
            most = max(most, np.bincount(rows[:, 0]).max(), np.bincount(rows[:, 1]).max())
    assert bool(most == 1) is algorithm.is_one_port


@law
@pytest.mark.parametrize("num_elements", [0, 1, 2, 3, 5, 8, 17, 64, 100, 1009])
def test_messages_and_elements_are_those_of_the_formulas(
    algorithm: Algorithm, num_elements: int
) -> None:
    for num_ranks in SIZES:
        for shape in shapes(algorithm, num_ranks, num_elements):
            sizes = algorithm.schedule(shape).num_elements_sent(num_elements)
            assert np.count_nonzero(sizes) == algorithm.num_messages(shape)
            assert sizes.sum() == algorithm.num_sent(shape)


@law
def test_a_rank_alone_sends_nothing(algorithm: Algorithm) -> None:
    schedule = algorithm.schedule(Shape(num_ranks=1))
    assert schedule.messages == []
    assert schedule_s(schedule, 1000, Link.plain(alpha_s=1.0, beta_s=1.0)) == 0


def time(algorithm: Algorithm, num_ranks: int, num_bytes: int, **numbers: int) -> float:
    shape = Shape(num_ranks=num_ranks, **numbers)
    return schedule_s(algorithm.schedule(shape), num_bytes, LINK)


ALPHA, BETA, GAMMA = 1e-3, 1e-8, 1e-9
LINK = Link.plain(alpha_s=ALPHA, beta_s=BETA, gamma_s=GAMMA)
NUM_BYTES = 2**20


@pytest.mark.parametrize("num", POWERS)
def test_times_are_those_of_the_published_formulas(num: int) -> None:
    levels, part = math.log2(num), (num - 1) / num
    whole = NUM_BYTES * BETA
    added = NUM_BYTES * GAMMA
    ring = 2 * (num - 1) * ALPHA + 2 * part * whole + part * added
    expected = {
        RING: ring,
        SHARDED_PARAMETER_SERVER: ring,
        PARAMETER_SERVER: (num > 1) * 2 * ALPHA + (num - 1) * (2 * whole + added),
        REDUCTION_TREE: 2 * levels * (ALPHA + whole) + levels * added,
        RECURSIVE_DOUBLING: levels * (ALPHA + whole + added),
        HALVING_DOUBLING: 2 * levels * ALPHA + 2 * part * whole + part * added,
        BINARY_BLOCKS: 2 * levels * ALPHA + 2 * part * whole + part * added,
    }
    for algorithm, seconds in expected.items():
        assert time(algorithm, num, NUM_BYTES) == pytest.approx(seconds), algorithm.name


def test_the_hierarchy_is_a_ring_within_hosts_and_a_ring_between_them() -> None:
    assert time(HIERARCHICAL, 8, NUM_BYTES, num_local=8) == pytest.approx(time(RING, 8, NUM_BYTES))
    assert time(HIERARCHICAL, 8, NUM_BYTES, num_local=1) == pytest.approx(time(RING, 8, NUM_BYTES))
    inner = time(RING, 4, NUM_BYTES) + time(RING, 2, NUM_BYTES // 4)
    assert time(HIERARCHICAL, 8, NUM_BYTES, num_local=4) == pytest.approx(inner)


@pytest.mark.parametrize("num", [5, 8, 13, 32])
def test_segments_let_a_long_tensor_flow_through_a_tree(num: int) -> None:
    for algorithm in (BINARY_TREE, DOUBLE_TREE):
        times = [time(algorithm, num, 2**30, num_segments=segments) for segments in (2, 8, 32)]
        assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("num", [*range(3, 40), 64, 100])
def test_a_rank_has_children_in_one_of_the_two_trees(num: int) -> None:
    parents: list[set[int]] = [set(), set()]
    roots: list[set[int]] = [set(range(num)), set(range(num))]
    for message in double_tree(num).messages:
        if message.is_added:
            parents[message.first].add(message.target)
            roots[message.first].discard(message.source)
    assert not parents[0] & parents[1]
    assert [len(some) for some in roots] == [1, 1]


@pytest.mark.parametrize("num", [8, 16, 32, 64])
def test_two_trees_use_connections_that_one_leaves_idle(num: int) -> None:
    link = Link.plain(alpha_s=0.0, beta_s=BETA)
    one, two = (
        schedule_s(algorithm.schedule(Shape(num_ranks=num, num_segments=256)), NUM_BYTES, link)
        for algorithm in (BINARY_TREE, DOUBLE_TREE)
    )
    assert 2 * NUM_BYTES * BETA < two < 2.7 * NUM_BYTES * BETA < 3.3 * NUM_BYTES * BETA < one


def test_halving_begins_with_neighbours_and_half_of_the_tensor() -> None:
    first = HALVING_DOUBLING.schedule(Shape(num_ranks=4)).steps[0].tolist()
    assert first == [[0, 1, 2, 4, 1], [1, 0, 0, 2, 1], [2, 3, 2, 4, 1], [3, 2, 0, 2, 1]]


def test_blocks_of_eleven_ranks_are_eight_two_and_one() -> None:
    steps = BINARY_BLOCKS.schedule(Shape(num_ranks=11)).steps
    kinds = [sorted({(row[0], row[1]) for row in rows.tolist()}) for rows in steps]
    assert [source for source, _ in kinds[3]] == [10, 10]  # one rank to both of the next block
    assert {source for source, _ in kinds[4]} == {8, 9}
    assert {target for _, target in kinds[4]} == set(range(8))
    assert len(steps) == 3 + 2 + 2 + 3


def test_the_server_is_in_every_message() -> None:
    schedule = PARAMETER_SERVER.schedule(Shape(num_ranks=5))
    assert all(0 in {message.source, message.target} for message in schedule.messages)


def test_the_bounds_of_chunks_cover_any_length() -> None:
    schedule = RING.schedule(Shape(num_ranks=4))
    assert schedule.bounds(10) == [0, 2, 5, 7, 10]
    assert schedule.bounds(2) == [0, 0, 1, 1, 2]
