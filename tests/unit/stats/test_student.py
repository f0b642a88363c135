"""Quantiles compared with tables and closed forms."""

from __future__ import annotations

import math

import pytest

from stepladder.stats.student import t_cdf, t_quantile


@pytest.mark.parametrize(
    ("probability", "df", "quantile"),
    [
        (0.95, 4, 2.131846786),
        (0.95, 7, 1.894578605),
        (0.975, 7, 2.364624252),
        (0.975, 15, 2.131449546),
        (0.95, 120, 1.657650899),
        (0.975, 1e7, 1.959963985),
    ],
)
def test_quantiles_are_those_of_the_tables(probability: float, df: float, quantile: float) -> None:
    assert t_quantile(probability, df) == pytest.approx(quantile, rel=1e-8)


@pytest.mark.parametrize("t", [-3.0, -0.4, 0.0, 0.7, 12.0])
def test_one_degree_of_freedom_is_the_cauchy_distribution(t: float) -> None:
    assert t_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-13)


@pytest.mark.parametrize("t", [-2.0, 0.3, 5.0])
def test_two_degrees_of_freedom_have_a_closed_form(t: float) -> None:
    assert t_cdf(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-13)


@pytest.mark.parametrize("df", [0.7, 2.5, 31.4])
def test_a_quantile_is_where_the_distribution_reaches_it(df: float) -> None:
    assert t_cdf(t_quantile(0.9, df), df) == pytest.approx(0.9, abs=1e-10)


@pytest.mark.parametrize(("probability", "df"), [(0.4, 3), (1.0, 3), (0.9, 0)])
def test_what_has_no_quantile_is_refused(probability: float, df: float) -> None:
    with pytest.raises(ValueError, match=r"probability|degrees"):
        t_quantile(probability, df)
