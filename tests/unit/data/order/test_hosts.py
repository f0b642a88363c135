"""Files divided among hosts: each row once, each host its own files, frozen."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepladder.config.choices import OrderMode
from stepladder.config.recipe import DataConfig
from stepladder.data.order.hosts import part_of_rank
from stepladder.data.order.order import Order
from stepladder.data.order.order_choice import order_of, refuse_hosts, resolve_order
from stepladder.data.reading.examples import Examples, Source
from stepladder.data.reading.reader import Reader
from stepladder.errors import UsageError

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=30)


class Far(Source):
    """Rows in blocks, in an object store."""

    has_mixed_blocks = True
    is_near = False
    fingerprint = "far"

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.block_rows = sizes

    def __len__(self) -> int:
        assert self.block_rows is not None
        return sum(self.block_rows)

    def read(self, rows: np.ndarray) -> Examples:
        return Examples(rows, None)


def divided(sizes: tuple[int, ...], **changes: Any) -> Order:
    made = Order(
        seed=0,
        num_examples=sum(sizes),
        mode=OrderMode.WINDOWED,
        fingerprint="f",
        block_rows=sizes,
        window_rows=40,
        num_hosts=2,
        batch_size=8,
    )
    return replace(made, **changes)


def epoch_of(order: Order, epoch: int = 0) -> np.ndarray:
    return order.samples(epoch, 0, order.num_samples)


def rows_of_ranks(order: Order, world: int, *, epoch: int = 0, start: int = 0) -> list[list[int]]:
    """Return the rows that each rank reads from a position to the end of an epoch."""
    rows: list[list[int]] = [[] for _ in range(world)]
    for first in range(start, order.num_samples, order.batch_size):
        batch = order.samples(epoch, first, min(first + order.batch_size, order.num_samples))
        for rank in range(world):
            low, high = part_of_rank(len(batch), rank, world, num_hosts=order.num_hosts)
            rows[rank] += batch[low:high].tolist()
    return rows


def test_golden_vectors_hold() -> None:
    """Frozen: a change of any of these needs a new ORDER_VERSION."""
    order = divided((4, 3, 5, 2), window_rows=7, batch_size=4)
    assert epoch_of(order).tolist() == [7, 6, 2, 10, 8, 13, 0, 9, 4, 12, 11, 1, 5, 3]
    assert epoch_of(order, 1).tolist() == [8, 6, 1, 11, 13, 4, 2, 3, 7, 5, 9, 10, 12, 0]


@settings(deadline=None, max_examples=60)
@given(
    sizes=SIZES,
    hosts=st.integers(1, 5),
    batch=st.integers(1, 40),
    fraction=st.floats(0.01, 1),
    of_blocks=st.booleans(),
    mode=st.sampled_from([OrderMode.WINDOWED, OrderMode.SEQUENTIAL]),
)
def test_every_row_comes_exactly_once(
    sizes: list[int], hosts: int, batch: int, fraction: float, of_blocks: bool, mode: OrderMode
) -> None:
    order = divided(
        tuple(sizes),
        num_hosts=hosts,
        batch_size=batch,
        fraction=fraction,
        is_sample_of_blocks=of_blocks,
        mode=mode,
    )
    whole = replace(order, num_hosts=1)
    rows = sorted(epoch_of(order).tolist())
    assert rows == sorted(epoch_of(whole).tolist()) == sorted(epoch_of(order, 3).tolist())
    assert rows == sorted(row for host in range(hosts) for row in order.rows_of_host(host).tolist())


@settings(deadline=None, max_examples=60)
@given(sizes=SIZES, hosts=st.integers(1, 4), ranks=st.integers(1, 3), batch=st.integers(1, 40))
def test_the_ranks_of_a_host_read_only_its_rows_in_every_epoch(
    sizes: list[int], hosts: int, ranks: int, batch: int
) -> None:
    order = divided(tuple(sizes), num_hosts=hosts, batch_size=batch)
    for epoch in (0, 4):
        rows = rows_of_ranks(order, hosts * ranks, epoch=epoch)
        for host in range(hosts):
            own = sorted(chain(*rows[host * ranks : (host + 1) * ranks]))
            assert own == order.rows_of_host(host).tolist()


@settings(deadline=None, max_examples=60)
@given(sizes=SIZES, hosts=st.integers(2, 5), batch=st.integers(1, 40))
def test_at_most_one_file_at_each_cut_belongs_to_two_hosts(
    sizes: list[int], hosts: int, batch: int
) -> None:
    order = divided(tuple(sizes), num_hosts=hosts, batch_size=batch)
    ends = np.cumsum(sizes)
    num_files = [
        len(np.unique(np.searchsorted(ends, order.rows_of_host(host), side="right")))
        for host in range(hosts)
    ]
    assert sum(num_files) <= len(sizes) + hosts - 1


@settings(deadline=None, max_examples=40)
@given(
    sizes=SIZES,
    hosts=st.integers(2, 4),
    steps=st.integers(0, 60),
    before=st.integers(1, 6),
    after=st.integers(1, 6),
)
def test_a_run_resumes_on_any_number_of_ranks_and_hosts(
    sizes: list[int], hosts: int, steps: int, before: int, after: int
) -> None:
    """Each batch has the same examples; nothing is repeated or skipped."""
    order = divided(tuple(sizes), num_hosts=hosts)
    stop = min(steps * order.batch_size, order.num_samples)
    rest = rows_of_ranks(order, after, start=stop)
    whole = rows_of_ranks(order, before)
    assert sorted(chain(*rest)) == sorted(epoch_of(order)[stop:].tolist())
    assert sorted(chain(*whole)) == list(range(sum(sizes)))


def test_a_host_has_the_same_files_in_every_epoch_but_another_order() -> None:
    order = divided((10,) * 12)
    first, second = (rows_of_ranks(order, 2, epoch=epoch)[0] for epoch in (0, 1))
    assert first != second
    assert sorted(first) == sorted(second)
    assert len({row // 10 for row in first}) <= 7


def test_another_seed_gives_a_host_other_files() -> None:
    shares = {tuple(divided((10,) * 12, seed=seed).rows_of_host(0)) for seed in range(5)}
    assert len(shares) > 1


@pytest.mark.parametrize(("world", "largest"), [(1, 10), (2, 5), (4, 3), (6, 2), (3, 4)])
def test_parts_of_ranks_join_to_the_batch(world: int, largest: int) -> None:
    parts = [part_of_rank(10, rank, world, num_hosts=2) for rank in range(world)]
    assert [start for start, _ in parts] == [0, *(stop for _, stop in parts[:-1])]
    assert parts[-1][1] == 10
    assert max(stop - start for start, stop in parts) == largest


def test_files_of_a_far_source_are_divided_among_the_hosts_of_the_run() -> None:
    source = Far((500,) * 20)
    assert resolve_order(DataConfig(), source, num_hosts=3).hosts == 3
    assert resolve_order(DataConfig(), source).hosts == 1
    assert resolve_order(DataConfig(hosts=1), source, num_hosts=3).hosts == 1
    assert resolve_order(DataConfig(order=OrderMode.GLOBAL), source, num_hosts=3).hosts == 1
    source.is_near = True
    assert resolve_order(DataConfig(), source, num_hosts=3).hosts == 1
    asked = resolve_order(DataConfig(hosts=2), source, num_hosts=3)
    assert (asked.hosts, asked.order) == (2, OrderMode.WINDOWED)
    order = order_of(asked, source, seed=0, batch_size=32)
    assert (order.num_hosts, order.batch_size) == (2, 32)


def test_data_that_cannot_be_divided_are_refused() -> None:
    source = Far((500,) * 2)
    with pytest.raises(UsageError, match=r"order of the examples is global(.|\n)*--data.order"):
        refuse_hosts(DataConfig(hosts=2, order=OrderMode.GLOBAL), source)
    source.block_rows = None
    with pytest.raises(UsageError, match=r"not in files(.|\n)*--data.hosts 1"):
        refuse_hosts(DataConfig(hosts=2), source)


@pytest.mark.parametrize("changes", [{"mode": OrderMode.GLOBAL}, {"batch_size": 0}])
def test_an_order_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="several hosts need"):
        divided((5, 5), **changes)


def test_readers_of_hosts_yield_together_what_one_process_does() -> None:
    source = Far((30,) * 9)
    made: dict[str, Any] = {"seed": 1, "global_batch_size": 16, "hosts": 2, "window_rows": 64}
    alone = [batch.ids.tolist() for batch in Reader(source, **made).epoch(2, start=48)]
    ranks = [
        Reader(source, rank=rank, world_size=4, **made).epoch(2, start=48) for rank in range(4)
    ]
    together = [
        list(chain(*(batch.ids.tolist() for batch in parts))) for parts in zip(*ranks, strict=True)
    ]
    assert together == alone
