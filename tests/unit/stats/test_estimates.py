"""Means and shares with their errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stepladder.stats import binomial_sem, mean_estimate, paired_improvement


def test_a_share_of_half_of_a_hundred_is_off_by_five_points() -> None:
    assert binomial_sem(0.5, 100) == pytest.approx(0.05)
    assert binomial_sem(0.5, 0) == math.inf


def test_a_mean_of_few_says_how_little_is_known() -> None:
    assert mean_estimate([1, 2, 3]).mean == 2
    assert mean_estimate([1, 2, 3]).sem == pytest.approx(1 / math.sqrt(3))
    assert mean_estimate([7.0]).sem == math.inf
    assert math.isnan(mean_estimate([]).mean)


def test_what_examples_share_cancels_in_pairs() -> None:
    hard = np.array([0.1, 5.0, 2.0, 9.0])
    estimate = paired_improvement(hard, hard - 0.25)
    assert estimate.mean == pytest.approx(0.25)
    assert estimate.sem == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match="shape"):
        paired_improvement([1.0], [1.0, 2.0])
