"""Batch sizes, and the line fitted to their times."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.config.recipe import Recipe
from stepladder.measuring.sweep import choose_sizes, fit_line, measure_sweep


def test_a_line_is_found_again() -> None:
    assert fit_line([2, 4, 16], [0.3 + 2e-3 * b for b in (2, 4, 16)]) == pytest.approx((0.3, 2e-3))


def test_the_fixed_part_is_never_below_zero() -> None:
    # the free fit of (1, 0), (2, 2), (3, 4) is -2 + 2 b; through the origin: 16 / 14
    assert fit_line([1, 2, 3], [0, 2, 4]) == pytest.approx((0, 16 / 14))


def test_a_step_never_takes_less_for_more_examples() -> None:
    # the free fit of (1, 5), (2, 4), (3, 3) is 6 - b; a constant: 4
    assert fit_line([1, 2, 3], [5, 4, 3]) == pytest.approx((4, 0))


@pytest.mark.parametrize(
    ("budget_s", "sizes"), [(1e3, (16, 32, 128)), (300.0, (8, 16, 32)), (1.0, (4, 8, 16))]
)
def test_larger_batches_are_timed_where_there_is_time(
    budget_s: float, sizes: tuple[int, ...]
) -> None:
    assert choose_sizes(16, num_examples=1000, example_s=1.0, budget_s=budget_s) == sizes


@pytest.mark.parametrize(
    ("batch_size", "num_examples", "min_size", "sizes"),
    [
        (1, 1000, 1, (1, 2, 8)),
        (1, 1000, 2, (2, 3, 4)),
        (16, 20, 1, (8, 16, 20)),
        (16, 2, 1, (1, 2)),
        (64, 10, 1, (2, 5, 10)),
        (4, 1, 1, (1,)),
    ],
)
def test_sizes_stay_within_the_data(
    batch_size: int, num_examples: int, min_size: int, sizes: tuple[int, ...]
) -> None:
    found = choose_sizes(
        batch_size, num_examples=num_examples, example_s=1e-9, budget_s=1.0, min_size=min_size
    )
    assert found == sizes


def test_a_sweep_times_each_size_and_finds_memory_to_grow(
    pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    with open_on(recipe(), pictures()) as subject:
        sweep = measure_sweep(subject, (2, 4, 16), budget_s=0.0)
    assert set(sweep.step_s) == {2, 4, 16}
    assert min(sweep.step_s.values()) > 0
    line = fit_line(list(sweep.step_s), list(sweep.step_s.values()))
    assert (sweep.fixed_s, sweep.per_example_s) == line
    assert set(sweep.memory_bytes) == {2, 16}
    assert sweep.memory_bytes[16] > 4 * sweep.memory_bytes[2]
