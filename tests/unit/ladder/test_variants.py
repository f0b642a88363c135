"""The variant with the highest expected value is tried: gain times chance to be kept."""

from __future__ import annotations

import pytest

from stepladder.ladder.accuracy.comparison import Comparison
from stepladder.ladder.limits.guard import TrialFailed
from stepladder.ladder.variants import chance_to_be_kept, quality_of
from stepladder.records.ladder import Interval


def interval(estimate: float, half: float) -> Interval:
    return Interval(estimate=estimate, low=estimate - half, high=estimate + half)


@pytest.mark.parametrize("loss_before", [2.0, -2.0])
def test_a_rise_of_the_loss_is_worse_whatever_its_sign(loss_before: float) -> None:
    rise = Interval(estimate=1.0, low=0.5, high=1.5)
    quality = quality_of(Comparison(loss=rise, loss_before=loss_before))
    assert (quality.estimate, quality.low, quality.high) == (-0.5, -0.75, -0.25)


def test_accuracy_is_compared_first() -> None:
    accuracy = interval(0.01, 0.02)
    found = quality_of(Comparison(accuracy=accuracy, loss=interval(1.0, 0.1), loss_before=2.0))
    assert found is accuracy


def test_what_was_not_judged_has_no_quality() -> None:
    with pytest.raises(TrialFailed, match="no held-out examples"):
        quality_of(Comparison(why_not="there are no held-out examples"))


def test_the_chance_is_even_where_the_bound_just_holds() -> None:
    assert chance_to_be_kept(interval(-0.004, 0.006), 0.01) == pytest.approx(0.5)
    surely, hardly = interval(0.01, 0.004), interval(-0.02, 0.004)
    assert chance_to_be_kept(surely, 0.01) > 0.999
    assert chance_to_be_kept(hardly, 0.01) < 0.001
    assert chance_to_be_kept(interval(0.0, 0.02), 0.01) < 0.5, "a wide interval proves nothing"


@pytest.mark.parametrize(("estimate", "chance"), [(-0.01, 1.0), (-0.02, 0.0)])
def test_without_noise_it_is_certain(estimate: float, chance: float) -> None:
    assert chance_to_be_kept(interval(estimate, 0.0), 0.01) == chance
