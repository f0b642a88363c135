from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.reporting.charts.scales import Scale, fit_scale, log_ticks, nice_ticks, tick_label


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-0.3, 0.31, [-0.2, 0, 0.2]),
        (117, 1234, [200, 400, 600, 800, 1000, 1200]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round_and_inside(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high, 6) == pytest.approx(ticks)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(3, 8))
def test_any_range_gets_a_readable_number_of_ticks_within_it(
    low: float, span: float, num: int
) -> None:
    high = low + span
    if not high > low + abs(low) * 1e-9:
        return
    ticks = nice_ticks(low, high, num)
    assert 1 <= len(ticks) <= 2 * num
    assert all(low - span * 1e-3 <= tick <= high + span * 1e-3 for tick in ticks)


def test_log_ticks_are_powers_of_ten_or_steps_between_them() -> None:
    assert log_ticks(0.01, 100) == pytest.approx([0.01, 0.1, 1, 10, 100])
    assert log_ticks(0.9, 6) == pytest.approx([1, 2, 5])


def test_a_scale_is_linear_or_logarithmic_and_clips() -> None:
    linear = Scale(low=0, high=10, start=100, end=0)
    assert [linear(v) for v in (0, 5, 10, 20, -5)] == [100, 50, 0, 0, 100]
    log = Scale(low=0.1, high=10, start=0, end=2, is_log=True)
    assert [log(v) for v in (0.1, 1, 10, 0, -3)] == pytest.approx([0, 1, 2, 0, 0])


def test_a_wide_range_gets_a_logarithm_only_where_it_may_and_can() -> None:
    assert fit_scale([0.01, 5], start=0, end=1, may_be_log=True).is_log
    assert not fit_scale([0.01, 5], start=0, end=1).is_log
    assert not fit_scale([-0.01, 5], start=0, end=1, may_be_log=True).is_log
    assert not fit_scale([1, 5], start=0, end=1, may_be_log=True).is_log


@pytest.mark.parametrize("values", [[0.0], [3.0, 3.0], [-1e-12], [1e300, -1e300]])
def test_odd_values_still_get_an_axis(values: list[float]) -> None:
    scale = fit_scale(values, start=0, end=1)
    assert all(math.isfinite(scale(value)) for value in values)
    assert scale.high > scale.low


@pytest.mark.parametrize(
    ("value", "label"),
    [(0, "0"), (0.25, "0.25"), (1200, "1,200"), (3.2e6, "3.2M"), (2e-5, "2e-5"), (-0.5, "-0.5")],
)
def test_tick_labels_are_short(value: float, label: str) -> None:
    assert tick_label(value) == label
