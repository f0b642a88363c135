"""The planner against published measurements."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from stepladder.planning.published.cases import CASES
from stepladder.planning.published.points import published
from stepladder.planning.published.statements import statements
from stepladder.planning.published.validation import Validation, validate
from stepladder.planning.published.words import summary_lines, validation_page, validation_text


@pytest.fixture(scope="module")
def found() -> Validation:
    return validate()


def test_every_published_point_is_in_one_case(found: Validation) -> None:
    ids = [name for case in CASES for name in case.ids]
    assert sorted(ids) == sorted(published())
    assert len(ids) == len(set(ids)) == 61
    assert [point.point.id for point in found.points] == ids


def test_at_most_one_number_is_fitted_to_the_smallest_two(found: Validation) -> None:
    assert len({log.case for log in found.fits}) == len(found.fits)
    for log in found.fits:
        case = next(one for one in CASES if one.name == log.case)
        assert log.ids == tuple(case.ids[:2])
    for point in found.of("fitted"):
        assert point.error_frac == pytest.approx(0, abs=1e-6)


def test_the_rest_is_predicted_within_the_goal(found: Validation) -> None:
    errors = [abs(point.error_frac) for point in found.of("predicted")]
    assert len(errors) >= 29
    assert median(errors) <= 0.04
    assert sum(error <= 0.12 for error in errors) >= 0.9 * len(errors)
    far = [point for point in found.of("predicted") if abs(point.error_frac) > 0.2]
    assert all(point.reason for point in far)


def test_bands_of_data_sheets_hold_nine_in_ten_and_are_narrow(found: Validation) -> None:
    points = [*found.of("predicted"), *found.of("fitted")]
    assert sum(point.is_in_band for point in points) >= 0.9 * len(points)
    assert median(point.band_frac for point in points) <= 0.35


def test_points_from_memory_are_shown_and_not_counted(found: Validation) -> None:
    assert all(not point.point.is_verified for point in found.of("shown"))
    text = validation_text(found)
    assert all(point.point.id in text for point in found.points)
    assert "5 are shown and not counted" in text
    page = validation_page(found)
    assert all(f"| {point.point.id} |" in page for point in found.points)


def test_a_super_linear_point_is_flagged(found: Validation) -> None:
    strange = replace(found.points[1].point, speedup=9.0, gpus=8, base_gpus=1)
    assert strange.is_superlinear
    point = replace(found.points[1], point=strange)
    lines = summary_lines(replace(found, points=(*found.points, point)))
    assert lines[-1].startswith("faster than linear, so of another baseline")
    assert not any(one.is_superlinear for one in published().values())


def test_published_statements_are_computed() -> None:
    values = {one.published: one.value for one in statements()}

    def of(start: str) -> float:
        return next(value for text, value in values.items() if text.startswith(start))

    assert of("NiN on 128 K20") == pytest.approx(39, rel=0.1)
    assert of("GoogLeNet on 128 K20") == pytest.approx(47, rel=0.1)
    assert of("Horovod on 4 T4") == 526_593 * 4
    assert of("eight machines") == pytest.approx(0.828, abs=1e-3)
    assert of("the same, with the driver") == pytest.approx(0.93, abs=2e-3)
    assert of("halving and doubling is 3×") == pytest.approx(77e-6, rel=0.02)
    assert of("AlexNet, 100 epochs in 11 min") == pytest.approx(190, rel=0.01)
    assert of("42 min to 7.3 min") == pytest.approx(1.44, abs=0.01)
