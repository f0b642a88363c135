"""Scatter is the residual of a curve after its trend is removed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stepladder.stats.scatter import scatter, smoothed


def test_a_straight_line_does_not_scatter() -> None:
    assert scatter([10.0 - 0.5 * idx for idx in range(20)]) == pytest.approx(0, abs=1e-12)


def test_noise_about_a_steep_course_is_found() -> None:
    random = np.random.default_rng(0)
    values = 100 - 2.0 * np.arange(400) + 0.3 * random.standard_normal(400)
    assert scatter(values) == pytest.approx(0.3, rel=0.15)


def test_a_few_jumps_are_forgiven() -> None:
    random = np.random.default_rng(0)
    values = 0.1 * random.standard_normal(400)
    values[[50, 150, 300]] += 50
    assert scatter(values) == pytest.approx(0.1, rel=0.2)


def test_few_or_no_points_say_nothing() -> None:
    assert scatter([1.0, 2.0, 3.0]) is None
    assert scatter([1.0, math.nan, 2.0, math.inf, 3.0]) is None


def test_smoothing_keeps_the_ends_and_short_curves() -> None:
    assert smoothed([3.0, 0.0, 3.0]) == [3.0, 0.0, 3.0]
    assert smoothed([0.0, 3.0, 0.0, 3.0, 0.0, 3.0, 0.0]) == [0.0, 1.0, 2.0, 1.0, 2.0, 1.0, 0.0]
