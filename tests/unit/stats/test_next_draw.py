"""Bounds for one more draw hold it as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from stepladder.stats import next_draw_bounds


@pytest.mark.parametrize("n", [2, 5, 8, 9, 15, 20, 40])
def test_the_next_draw_is_within_the_bounds_in_four_of_five_cases(n: int) -> None:
    random = np.random.default_rng(n)
    draws = np.exp(random.normal(2.5, 0.3, (4000, n + 1)))
    held = [low <= one[-1] <= high for one in draws for low, high in [next_draw_bounds(one[:-1])]]
    assert 0.78 <= np.mean(held) <= 0.89


def test_twenty_draws_are_cut_at_their_second_and_last_but_one() -> None:
    assert next_draw_bounds(list(range(20, 0, -1))) == (2, 19)
    assert next_draw_bounds(list(range(1, 10))) == (1, 9)


def test_equal_draws_bound_the_next_one_by_themselves() -> None:
    assert next_draw_bounds([7.0] * 5) == pytest.approx((7, 7))
    assert next_draw_bounds([7.0] * 20) == (7, 7)


def test_few_draws_have_wider_bounds_than_their_own() -> None:
    low, high = next_draw_bounds([12, 14, 21, 18, 15])
    assert low < 12
    assert high > 21


@pytest.mark.parametrize("draws", [[], [3.0], [3.0, 0.0]])
def test_one_draw_has_no_bounds(draws: list[float]) -> None:
    with pytest.raises(ValueError, match="have no bounds"):
        next_draw_bounds(draws)
