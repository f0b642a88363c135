"""The order: golden vectors freeze it, properties verify its promises."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from dataclasses import replace
from math import factorial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepladder.config.choices import OrderMode
from stepladder.data.order.bijection import Bijection
from stepladder.data.order.hosts import rank_slice
from stepladder.data.order.order import Order, samples_of

BILLION = 10**9


def order(n: int, **changes: Any) -> Order:
    made = Order(seed=0, num_examples=n, mode=OrderMode.GLOBAL, fingerprint="f")
    return replace(made, **changes)


def test_golden_vectors_hold() -> None:
    """Frozen: a change of any of these needs a new ORDER_VERSION."""
    assert order(10).samples(0, 0, 10).tolist() == [3, 6, 7, 5, 1, 0, 8, 2, 9, 4]
    assert order(10).samples(1, 0, 10).tolist() == [2, 4, 8, 6, 7, 5, 9, 3, 0, 1]
    assert order(10, seed=1).samples(0, 0, 10).tolist() == [4, 0, 7, 6, 3, 5, 8, 1, 9, 2]
    sampled = order(100, fraction=0.05, fraction_seed=7)
    assert sampled.samples(0, 0, 5).tolist() == [52, 28, 26, 96, 66]
    end = order(BILLION).samples(3, BILLION - 4, BILLION).tolist()
    assert end == [156074440, 980128304, 448705886, 831626881]
    digest = hashlib.sha256(order(1000).samples(0, 0, 1000).astype("<i8").tobytes()).hexdigest()
    assert digest == "2f33a8425ade1920d8d4afd2186f57d3c72e4e99d810994675ab9046be25dff3"


@settings(deadline=None, max_examples=50)
@given(n=st.integers(1, 2000), seed=st.integers(0, 2**63), epoch=st.integers(0, 10**6))
def test_every_row_comes_exactly_once_an_epoch(n: int, seed: int, epoch: int) -> None:
    rows = order(n, seed=seed).samples(epoch, 0, n)
    assert sorted(rows.tolist()) == list(range(n))


@settings(deadline=None, max_examples=50)
@given(n=st.integers(1, 500), cuts=st.lists(st.integers(0, 500), max_size=5))
def test_any_cut_of_an_epoch_gives_the_same_rows(n: int, cuts: list[int]) -> None:
    places = sorted({0, n, *(min(cut, n) for cut in cuts)})
    parts = [order(n).samples(2, a, b) for a, b in itertools.pairwise(places)]
    assert np.concatenate(parts).tolist() == order(n).samples(2, 0, n).tolist()


@settings(deadline=None, max_examples=20)
@given(
    n=st.integers(1, 100),
    batch=st.integers(1, 40),
    world=st.integers(1, 9),
    other_world=st.integers(1, 9),
    restart=st.integers(0, 100),
)
def test_ranks_and_restarts_leave_the_order_alone(
    n: int, batch: int, world: int, other_world: int, restart: int
) -> None:
    """Joined ranks give each global batch in order; so does a restart with other ranks."""
    restart, made = min(restart, n), order(n)

    def run(begin: int, end: int, num_ranks: int) -> list[int]:
        seen: list[int] = []
        for position in range(begin, end, batch):
            stop = min(position + batch, end)
            for rank in range(num_ranks):
                low, high = rank_slice(stop - position, rank, num_ranks)
                seen += made.samples(0, position + low, position + high).tolist()
        return seen

    whole = made.samples(0, 0, n).tolist()
    assert run(0, restart, world) + run(restart, n, other_world) == whole


@settings(deadline=None, max_examples=50)
@given(num=st.integers(0, 1000), world=st.integers(1, 64))
def test_rank_slices_join_and_differ_by_at_most_one(num: int, world: int) -> None:
    slices = [rank_slice(num, rank, world) for rank in range(world)]
    assert slices[0][0] == 0
    assert slices[-1][1] == num
    assert all(a[1] == b[0] for a, b in itertools.pairwise(slices))
    sizes = [high - low for low, high in slices]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"fingerprint": "g"}, {"num_examples": 1001}, {"fraction": 0.999}]
)
def test_another_key_gives_another_order(change: dict[str, Any]) -> None:
    first = order(1000).samples(0, 0, 900)
    assert (first == order(1000, **change).samples(0, 0, 900)).mean() < 0.02


def test_epochs_differ_and_are_unrelated() -> None:
    epochs = np.stack([order(1000).samples(epoch, 0, 1000) for epoch in range(20)])
    same = [(a == b).mean() for i, a in enumerate(epochs) for b in epochs[:i]]
    assert np.mean(same) == pytest.approx(1e-3, abs=5e-4)
    assert max(same) < 0.01


def test_small_permutations_are_even() -> None:
    """All 120 orders of five rows, 2,400 keys: chi-square with 119 degrees of freedom."""
    keys = range(2400)
    counts = Counter(tuple(Bijection(5, (key,))(np.arange(5)).tolist()) for key in keys)
    expected = len(keys) / factorial(5)
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert len(counts) == factorial(5)
    assert chi_square < 165  # p = 0.003


def test_each_row_is_as_likely_at_each_position() -> None:
    n, num_keys = 40, 1000
    counts = np.zeros((n, n))
    for seed in range(num_keys):
        counts[np.arange(n), order(n, seed=seed).samples(0, 0, n)] += 1
    expected = num_keys / n
    chi_square = ((counts - expected) ** 2 / expected).sum() / (n - 1) ** 2
    assert chi_square == pytest.approx(1, abs=0.12)  # five standard deviations


def test_a_fraction_is_the_same_rows_in_every_epoch_and_seed() -> None:
    sampled = order(1000, fraction=0.1)
    first = sampled.samples(0, 0, 100)
    other = replace(sampled, seed=5).samples(3, 0, 100)
    assert sampled.num_samples == 100
    assert first.tolist() != other.tolist()
    assert set(first.tolist()) == set(other.tolist())
    assert len(set(first.tolist())) == 100
    assert set(replace(sampled, fraction_seed=43).samples(0, 0, 100)) != set(first.tolist())


@pytest.mark.parametrize(("n", "fraction", "num"), [(10, 0.01, 1), (10, 0.26, 3), (675, 0.1, 68)])
def test_a_fraction_is_rounded_and_never_empty(n: int, fraction: float, num: int) -> None:
    assert order(n, fraction=fraction).num_samples == num


def test_sequential_is_as_stored() -> None:
    stored = order(50, mode=OrderMode.SEQUENTIAL)
    assert stored.samples(7, 10, 50).tolist() == list(range(10, 50))


def test_places_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="is not within"):
        order(10).samples(0, 5, 11)
    with pytest.raises(ValueError, match="unknown order version 2"):
        order(10, version=2)
    with pytest.raises(ValueError, match="num_examples"):
        order(0)


@given(
    num=st.integers(1, 3000),
    seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=5),
    mode=st.sampled_from((OrderMode.GLOBAL, OrderMode.SEQUENTIAL)),
    epoch=st.integers(0, 3),
    fraction=st.sampled_from((1.0, 0.5)),
)
def test_several_orders_at_once_are_those_of_each(num, seeds, mode, epoch, fraction) -> None:
    orders = [
        Order(seed=seed, num_examples=num, mode=mode, fingerprint="x", fraction=fraction)
        for seed in seeds
    ]
    expected = [order.samples(epoch, 0, order.num_samples) for order in orders]
    np.testing.assert_array_equal(samples_of(orders, epoch), np.stack(expected))
