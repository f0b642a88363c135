"""Windowed order: each row once, few blocks at a time, evenly shuffled, frozen."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepladder.config.choices import OrderMode, Sampling
from stepladder.config.recipe import DataConfig
from stepladder.data.order.blocks import Blocks, window_ends
from stepladder.data.order.order import Order
from stepladder.data.order.order_choice import default_window_rows, order_of, resolve_order
from stepladder.data.reading.examples import Examples, Source

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=30)


class Far(Source):
    """Rows in blocks, remote or local."""

    has_mixed_blocks = True

    def __init__(
        self, sizes: tuple[int, ...], *, is_near: bool = False, has_blocks: bool = True
    ) -> None:
        self.block_rows = sizes if has_blocks else None
        self.num_rows = sum(sizes)
        self.is_near = is_near
        self.fingerprint = "far"

    def __len__(self) -> int:
        return self.num_rows

    def read(self, rows: np.ndarray) -> Examples:
        return Examples(rows, None)


def windowed(sizes: tuple[int, ...], window_rows: int, **changes: Any) -> Order:
    made = Order(
        seed=0,
        num_examples=sum(sizes),
        mode=OrderMode.WINDOWED,
        fingerprint="f",
        block_rows=sizes,
        window_rows=window_rows,
    )
    return replace(made, **changes)


def epoch_of(order: Order, epoch: int = 0) -> np.ndarray:
    return order.samples(epoch, 0, order.num_samples)


def test_golden_vectors_hold() -> None:
    """Frozen: a change of any of these needs a new ORDER_VERSION."""
    order = windowed((4, 3, 5, 2), 7)
    assert epoch_of(order).tolist() == [9, 7, 8, 4, 5, 6, 11, 10, 13, 3, 0, 1, 12, 2]
    assert epoch_of(order, 1).tolist() == [13, 8, 10, 12, 9, 7, 11, 0, 3, 1, 4, 2, 6, 5]
    sample = windowed((4, 3, 5, 2), 4, fraction=0.5, is_sample_of_blocks=True)
    assert epoch_of(sample).tolist() == [5, 0, 2, 1, 3, 4, 6]
    large = windowed(tuple(range(50, 90)), 300)
    digest = hashlib.sha256(epoch_of(large).astype("<i8").tobytes()).hexdigest()
    assert digest == "0ab49a3ac0ee22de04f18d1514cd81e0c2aa4ba48ad56f8d9acc6441a5cba0dc"


@settings(deadline=None, max_examples=30)
@given(sizes=SIZES, window_rows=st.integers(1, 400), seed=st.integers(0, 2**63))
def test_every_row_comes_exactly_once(sizes: list[int], window_rows: int, seed: int) -> None:
    order = windowed(tuple(sizes), window_rows, seed=seed)
    assert sorted(epoch_of(order, 5).tolist()) == list(range(sum(sizes)))


@settings(deadline=None, max_examples=30)
@given(
    sizes=SIZES,
    window_rows=st.integers(1, 200),
    fraction=st.floats(0.01, 1),
    of_blocks=st.booleans(),
    mode=st.sampled_from([OrderMode.WINDOWED, OrderMode.GLOBAL, OrderMode.SEQUENTIAL]),
)
def test_a_sample_is_the_same_rows_in_every_epoch_and_mode(
    sizes: list[int], window_rows: int, fraction: float, of_blocks: bool, mode: OrderMode
) -> None:
    order = windowed(
        tuple(sizes), window_rows, fraction=fraction, is_sample_of_blocks=of_blocks, mode=mode
    )
    rows = sorted(epoch_of(order).tolist())
    assert len(set(rows)) == order.num_samples
    assert sorted(epoch_of(order, 7).tolist()) == rows
    other = replace(order, mode=OrderMode.SEQUENTIAL, seed=9)
    assert sorted(epoch_of(other).tolist()) == rows


@settings(deadline=None, max_examples=40)
@given(sizes=SIZES, cuts=st.lists(st.integers(0, 1800), max_size=5))
def test_any_cut_of_an_epoch_gives_the_same_rows(sizes: list[int], cuts: list[int]) -> None:
    order = windowed(tuple(sizes), 50)
    n = sum(sizes)
    places = sorted({0, n, *(min(cut, n) for cut in cuts)})
    parts = [order.samples(2, a, b) for a, b in itertools.pairwise(places)]
    assert np.concatenate(parts).tolist() == epoch_of(order, 2).tolist()


def test_a_window_touches_a_few_blocks_and_no_other_window_touches_them() -> None:
    sizes = (100,) * 32
    rows = epoch_of(windowed(sizes, 400))
    windows = [set((part // 100).tolist()) for part in np.split(rows, 8)]
    assert all(len(blocks) == 4 for blocks in windows)
    assert set.union(*windows) == set(range(32))


def test_a_sample_of_blocks_touches_no_more_blocks_than_it_needs() -> None:
    order = windowed((100,) * 50, 200, fraction=0.1, is_sample_of_blocks=True)
    assert len(set((epoch_of(order) // 100).tolist())) == 5


def test_within_a_window_rows_of_all_its_blocks_are_mixed() -> None:
    """A batch from a window of four equal blocks holds a quarter of each, within chance."""
    rows = epoch_of(windowed((1000,) * 8, 4000))
    counts = np.bincount((rows[:400] // 1000).astype(int), minlength=8)
    used = counts[counts > 0]
    assert len(used) == 4
    assert (abs(used - 100) < 45).all()  # five standard deviations


def test_windows_change_with_the_epoch() -> None:
    order = windowed((10,) * 12, 30)
    first = {frozenset((part // 10).tolist()) for part in np.split(epoch_of(order, 0), 4)}
    second = {frozenset((part // 10).tolist()) for part in np.split(epoch_of(order, 1), 4)}
    assert first != second


@settings(deadline=None, max_examples=30)
@given(sizes=SIZES, window_rows=st.integers(1, 300))
def test_windows_end_between_blocks_and_are_not_too_small(
    sizes: list[int], window_rows: int
) -> None:
    ends = window_ends(sizes, window_rows).tolist()
    assert set(ends) <= set(np.cumsum(sizes).tolist())
    assert ends[-1] == sum(sizes)
    assert len(ends) <= max(1, sum(sizes) // window_rows)


def test_one_window_of_everything_is_shuffled_over_everything() -> None:
    assert window_ends([3, 4, 5], 12).tolist() == [12]
    assert Blocks.of([3, 4, 5]).starts.tolist() == [0, 3, 7]


@pytest.mark.parametrize(
    ("wanted", "is_near", "mode", "sample"),
    [
        (OrderMode.AUTO, False, OrderMode.WINDOWED, Sampling.FILES),
        (OrderMode.AUTO, True, OrderMode.GLOBAL, Sampling.ROWS),
        (OrderMode.GLOBAL, False, OrderMode.GLOBAL, Sampling.FILES),
        (OrderMode.WINDOWED, True, OrderMode.WINDOWED, Sampling.ROWS),
    ],
)
def test_auto_is_windowed_where_a_row_costs_a_request(
    wanted: OrderMode, is_near: bool, mode: OrderMode, sample: Sampling
) -> None:
    source = Far((500,) * 20, is_near=is_near)
    resolved = resolve_order(DataConfig(order=wanted), source)
    assert (resolved.order, resolved.sample) == (mode, sample)
    assert resolved.window_rows == (2000 if mode is OrderMode.WINDOWED else 0)
    assert resolve_order(resolved, source) == resolved
    assert order_of(resolved, source, seed=0) == order_of(DataConfig(order=wanted), source, seed=0)


def test_a_default_window_is_of_four_blocks_and_of_more_small_ones() -> None:
    assert default_window_rows(Far((2000,) * 10)) == 8000
    assert default_window_rows(Far((10,) * 500)) == 1024
    in_order = Far((2000,) * 50)
    in_order.has_mixed_blocks = False
    assert default_window_rows(in_order) == 32_000


def test_windowed_order_without_blocks_is_shuffled_over_everything() -> None:
    source = Far((500,) * 2, has_blocks=False)
    assert resolve_order(DataConfig(order=OrderMode.WINDOWED), source).order is OrderMode.GLOBAL


@pytest.mark.parametrize(
    "changes",
    [{"window_rows": 0}, {"block_rows": (5, 4)}, {"mode": OrderMode.AUTO}],
    ids=["no window", "wrong blocks", "auto"],
)
def test_an_order_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"window_rows|add up|auto"):
        replace(windowed((5, 5), 5), **changes)
