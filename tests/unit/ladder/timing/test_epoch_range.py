"""The length of a training that stops early, and what depends on it, as ranges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepladder.config.recipe import FeaturesConfig, Recipe, ScheduleConfig, StoppingConfig
from stepladder.ladder.timing.epoch_range import (
    epoch_range,
    predict_over_seeds,
    time_bounds_s,
    with_bounds,
)
from stepladder.records.climb import Baseline
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Curve, EpochRange, Profile, Provenance, TrainingTime
from stepladder.rungs.speed.early_stopping import EarlyStopping

DEFAULTS = StoppingConfig()


def over(epochs: list[float], stopping: StoppingConfig = DEFAULTS, most: float = 60) -> EpochRange:
    return epoch_range(
        epochs, stopping, most=most, steps_per_epoch=10, provenance=Provenance.REPLAYED
    )


def found(low: float, high: float, mean: float = 15) -> EpochRange:
    return EpochRange(low=low, high=high, mean=mean, num_seeds=20, provenance=Provenance.REPLAYED)


def test_many_replays_give_their_percentiles() -> None:
    one = over([float(epochs) for epochs in range(8, 28)])
    assert (one.low, one.high, one.mean, one.num_seeds) == (9, 26, 17.5, 20)
    assert one.provenance is Provenance.REPLAYED


def test_the_ends_are_whole_validations_apart_and_within_the_schedule() -> None:
    few = over([12, 14, 18, 16, 14])
    assert few.low == int(few.low) < 12
    assert few.high == int(few.high) > 18
    every_second = over([12, 14, 18, 16, 14], StoppingConfig(validate_every_epochs=2))
    assert (every_second.low % 2, every_second.high % 2) == (0, 0)
    assert over([12, 14, 18, 16, 14], most=18).high == 18
    assert over([4, 5, 12, 4, 4]).low == 4, "patience of 3 cannot run out before"


@pytest.mark.parametrize("epochs", [[], [11.0]])
def test_without_replays_every_length_is_possible(epochs: list[float]) -> None:
    one = over(epochs)
    assert (one.low, one.high, one.num_seeds) == (4, 60, 0)
    assert one.provenance is Provenance.ASSUMED
    by_steps = over(epochs, StoppingConfig(validate_every_steps=5))
    assert (by_steps.low, by_steps.high) == (2, 60)
    assert over(epochs, most=3).low == 3


@pytest.fixture
def stopping_early(profile: Profile) -> Profile:
    time = TrainingTime(
        one_time_s={"features": 5.0}, epochs=15, steps_per_epoch=10, step_s=0.1, num_validations=15
    )
    return replace(profile, time=time, epoch_range=found(10, 20))


def test_the_time_is_a_range_where_the_epochs_are(stopping_early: Profile) -> None:
    assert time_bounds_s(stopping_early) == (15, 25)
    fixed = replace(stopping_early, epoch_range=None)
    assert time_bounds_s(fixed) == (20, 20)


def test_a_gain_is_a_range_where_it_depends_on_the_epochs(stopping_early: Profile) -> None:
    def without_features(profile: Profile) -> Prediction:
        after = replace(profile.time, one_time_s={})
        gain = profile.time.total_s / after.total_s
        return Prediction(rung="none", gain=gain, time=after, provenance=Provenance.MODELLED)

    one = predict_over_seeds(without_features, stopping_early)
    assert one.gain == pytest.approx(20 / 15)
    assert (one.gain_low, one.gain_high) == pytest.approx((25 / 20, 15 / 10))
    assert (one.low_s, one.high_s) == pytest.approx((10, 20))
    fixed = predict_over_seeds(without_features, replace(stopping_early, epoch_range=None))
    assert (fixed.gain_low, fixed.low_s) == (None, None)


def test_early_stopping_is_predicted_over_the_seeds_of_its_curve(profile: Profile) -> None:
    recipe = Recipe(
        schedule=ScheduleConfig(max_epochs=60),
        stopping=StoppingConfig(early=False),
        features=FeaturesConfig(cached=False),
    )
    curve = Curve(
        epochs=11, val_losses=(), epochs_to_stop=15, stops=found(12, 20),
        provenance=Provenance.REPLAYED,
    )  # fmt: skip
    time = TrainingTime(epochs=60, steps_per_epoch=10, step_s=0.1)
    whole = replace(profile, time=time, curve=curve)
    one = predict_over_seeds(lambda each: EarlyStopping().predict(each, recipe), whole)
    assert (one.gain_low, one.gain, one.gain_high) == pytest.approx((3, 4, 5))


def test_a_baseline_has_its_time_at_both_ends(stopping_early: Profile) -> None:
    baseline = Baseline(total_s=20, epochs=15, epoch_range=found(10, 20))
    bounded = with_bounds(baseline, stopping_early)
    assert (bounded.low_s, bounded.high_s) == pytest.approx((15, 25))
    run = with_bounds(replace(bounded, epoch_range=None), stopping_early)
    assert (run.low_s, run.high_s) == (None, None)
