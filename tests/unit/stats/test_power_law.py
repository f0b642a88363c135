"""Errors of a known law return the law; other errors promise nothing."""

from __future__ import annotations

import numpy as np
import pytest

from stepladder.stats.power_law import fit_power_law

SIZES = np.array([100.0, 200.0, 400.0])


@pytest.mark.parametrize(("a", "b", "c"), [(2.0, 0.5, 0.1), (1.0, 0.3, 0.0), (30.0, 0.95, 0.02)])
def test_a_law_is_found_again(a: float, b: float, c: float) -> None:
    law = fit_power_law(SIZES, a * SIZES**-b + c)
    assert law.at(800)[0] == pytest.approx(a * 800**-b + c, rel=0.01)


def test_each_row_is_a_fit_of_its_own() -> None:
    rows = np.stack([2 * SIZES**-0.5, 3 * SIZES**-0.3 + 0.1])
    law = fit_power_law(SIZES, rows)
    one = fit_power_law(SIZES, rows[1])
    assert law.a.shape == (2,)
    assert law.at(1600)[1] == pytest.approx(one.at(1600)[0])


def test_errors_that_rise_give_a_flat_law() -> None:
    law = fit_power_law(SIZES, [0.2, 0.25, 0.3])
    assert law.a[0] == 0
    assert law.at(800)[0] == pytest.approx(0.25)


def test_no_law_falls_below_zero() -> None:
    law = fit_power_law(SIZES, [0.3, 0.1, 0.001])
    assert law.c[0] >= 0
    assert law.at(1e9)[0] >= 0


def test_two_sizes_are_too_few() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        fit_power_law([100, 100, 200], [0.3, 0.3, 0.2])
    with pytest.raises(ValueError, match="do not match"):
        fit_power_law([100, 200, 400], [0.3, 0.2])
