"""The gate: no gradient is older than its bound, whatever the order in which workers arrive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepladder.config.choices import AsyncMethod
from stepladder.config.recipe import AsynchronousConfig
from stepladder.parallel.asynchronous.gate import Gate, Group, gate_of

ORDERS = st.lists(st.integers(0, 4), min_size=1, max_size=60)


def run(gate: Gate, order: list[int], *, num: int) -> list[Group]:
    """Let workers begin, arrive in an order, and begin again as soon as they may."""
    computing = set(range(num))
    for worker in computing:
        gate.begin(worker)
    groups = []
    for worker in order:
        if worker not in computing:
            continue
        computing.remove(worker)
        group = gate.arrive(worker)
        groups.append(group)
        for other in (*group.workers, *group.dropped):
            gate.begin(other)
            computing.add(other)
        assert computing, "all workers wait"
    return groups


@given(order=ORDERS, num=st.integers(1, 5), bound=st.integers(0, 6))
def test_no_gradient_is_older_than_the_bound(order: list[int], num: int, bound: int) -> None:
    groups = run(Gate(max_age=bound), [worker % num for worker in order], num=num)
    assert all(age <= bound for group in groups for age in group.ages)


@given(order=ORDERS, num=st.integers(1, 5))
def test_with_a_bound_of_0_each_update_has_a_gradient_of_every_worker(
    order: list[int], num: int
) -> None:
    groups = run(Gate(max_age=0), [worker % num for worker in order], num=num)
    assert all(sorted(group.workers) in ([], list(range(num))) for group in groups)


@given(order=ORDERS, num=st.integers(1, 5))
def test_without_a_bound_nothing_waits(order: list[int], num: int) -> None:
    groups = run(Gate(max_age=None), [worker % num for worker in order], num=num)
    assert all(len(group.workers) == 1 for group in groups)


def test_the_age_is_the_number_of_updates_since_the_weights_were_read() -> None:
    groups = run(Gate(max_age=None), [0, 0, 0, 1, 2], num=3)
    assert [group.ages for group in groups] == [(0,), (0,), (0,), (3,), (4,)]


def test_the_fastest_worker_waits_for_the_slowest() -> None:
    gate = Gate(max_age=1)
    for worker in (0, 1):
        gate.begin(worker)
    assert gate.arrive(0).workers == (0,)
    gate.begin(0)
    assert gate.arrive(0) == Group()  # another update would make the gradient of worker 1 2 old
    assert gate.arrive(1) == Group((0, 1), (0, 1))


def test_backup_workers_are_not_waited_for_and_their_late_gradients_are_dropped() -> None:
    config = AsynchronousConfig(method=AsyncMethod.BACKUP_WORKERS, workers=3, num_backup=1)
    gate = gate_of(config)
    for worker in range(3):
        gate.begin(worker)
    assert gate.arrive(2) == Group()
    assert gate.arrive(0) == Group((2, 0), (0, 0))
    assert gate.arrive(1) == Group(dropped=(1,))


def test_a_worker_that_leaves_is_not_waited_for() -> None:
    gate = Gate(max_age=0)
    for worker in range(3):
        gate.begin(worker)
    gate.arrive(0)
    gate.arrive(1)
    assert gate.leave(2) == Group((0, 1), (0, 0))
    assert gate.leave(2) == Group()


def test_fewer_workers_than_an_update_needs_are_enough_if_no_others_are_left() -> None:
    gate = Gate(max_age=None, num_needed=2, drops_late=True)
    for worker in range(2):
        gate.begin(worker)
    gate.leave(1)
    assert gate.arrive(0).workers == (0,)
