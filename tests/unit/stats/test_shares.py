"""Two shares: the noise of their difference, Wilson's interval, McNemar's exact test."""

from __future__ import annotations

import math

import pytest

from stepladder.stats.shares import mcnemar_p, share_difference_sem, wilson_interval


def test_variances_of_two_shares_add() -> None:
    assert share_difference_sem(0.5, 100, 0.5, 100) == pytest.approx(0.05 * math.sqrt(2))
    sem = share_difference_sem(0.836, 3060, 0.844, 3060)
    assert (0.844 - 0.836) / sem == pytest.approx(0.85, abs=0.01)  # under one standard error


def test_mcnemar_is_the_two_sided_binomial_of_a_coin() -> None:
    for first, second in ((0, 0), (1, 0), (3, 1), (10, 2), (2, 10), (40, 60)):
        n, k = first + second, min(first, second)
        tail = sum(math.comb(n, i) for i in range(k + 1)) / 2**n
        assert mcnemar_p(first, second) == pytest.approx(min(1, 2 * tail))


def test_one_example_that_differs_proves_nothing() -> None:
    assert mcnemar_p(1, 0) == 1


def test_wilson_agrees_with_a_published_example_and_never_leaves_0_to_1() -> None:
    low, high = wilson_interval(81, 263)  # Newcombe 1998, Stat. Med. 17, table I, method 3
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    low, high = wilson_interval(0, 20)  # the same table
    assert (round(low, 4), round(high, 4)) == (0, 0.1611)
    assert wilson_interval(20, 20)[1] == 1
