"""The best of several readings, compared with closed forms and a simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stepladder.stats.maxima import expected_max


def test_closed_forms_of_one_two_and_three() -> None:
    assert expected_max(1) == pytest.approx(0, abs=1e-12)
    assert expected_max(2) == pytest.approx(1 / math.sqrt(math.pi))
    assert expected_max(3) == pytest.approx(1.5 / math.sqrt(math.pi))


def test_eleven_and_sixty_agree_with_a_simulation() -> None:
    draws = np.random.default_rng(0).standard_normal((40_000, 60))
    for k in (11, 60):
        best = draws[:, :k].max(axis=1)
        error = best.std() / math.sqrt(len(best))
        assert expected_max(k) == pytest.approx(best.mean(), abs=4 * error)


def test_of_nothing_there_is_no_best() -> None:
    with pytest.raises(ValueError, match="not 1 or more"):
        expected_max(0)
