"""Time before and after: seeds that finished in both, and blocks until the budget ends."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from stepladder.config.choices import MemoryFormat
from stepladder.config.recipe import FeaturesConfig, Recipe, StoppingConfig
from stepladder.ladder.lab import Lab, Outcomes
from stepladder.ladder.limits.guard import TrialFailed, Watchdog
from stepladder.ladder.timing import patience as patience_module
from stepladder.ladder.timing import speedup as speed_module
from stepladder.ladder.timing.interleaved_blocks import MIN_PAIRS, Race
from stepladder.ladder.timing.patience import Patience
from stepladder.ladder.timing.speedup import Length, length_of, measure_speed, pair_lengths, widened
from stepladder.measuring.blocks.workload import Workload
from stepladder.measuring.ranks import workload as workload_module
from stepladder.records.ladder import Interval, Outcome
from stepladder.records.profile import Provenance, TrainingTime


def length(epochs_of: dict[int, float], why_not: str | None = None) -> Length:
    epochs = tuple(epochs_of.values())
    return Length(
        epochs=sum(epochs) / len(epochs),
        num_validations=sum(epochs) / len(epochs),
        by_seed=tuple((number, number) for number in epochs),
        seeds=tuple(epochs_of),
        why_not=why_not,
    )


def outcome(seed: int, epochs: float, why_not: str | None = None) -> Outcome:
    return Outcome(
        seed=seed,
        fold=None,
        epochs=epochs,
        num_validations=epochs,
        provenance=Provenance.MEASURED,
        why_not=why_not,
    )


def test_only_seeds_that_both_finished_are_paired_and_counted() -> None:
    before = length({0: 10.0, 1: 20.0, 2: 30.0, 3: 40.0})
    after = length({1: 10.0, 2: 15.0, 7: 99.0}, "diverged")
    paired = pair_lengths(before, after)
    assert [one.seeds for one in paired] == [(1, 2), (1, 2)]
    assert paired[0].by_seed == ((20.0, 20.0), (30.0, 30.0))
    assert paired[1].by_seed == ((10.0, 10.0), (15.0, 15.0))
    assert (paired[0].epochs, paired[1].epochs) == (25.0, 12.5)


def test_a_known_length_is_compared_with_every_seed() -> None:
    known, found = Length(epochs=60.0, num_validations=60.0), length({0: 10.0, 1: 20.0})
    assert pair_lengths(known, found) == (known, found)


def test_too_few_common_seeds_are_no_comparison() -> None:
    before, after = length({0: 10.0, 1: 20.0}), length({1: 10.0}, "diverged")
    with pytest.raises(TrialFailed, match="diverged: 1 of 2 seeds finished both before and after"):
        pair_lengths(before, after)


def test_a_length_lists_its_seeds_without_those_that_diverged(
    make_lab, recipe, monkeypatch
) -> None:
    early = replace(recipe, stopping=StoppingConfig(early=True))
    found = (outcome(5, 10.0), outcome(6, 50.0, "diverged"), outcome(7, 20.0))
    monkeypatch.setattr(Lab, "plain", lambda lab, recipe: Outcomes(found=found))
    measured = length_of(make_lab(early), early)
    assert measured.seeds == (5, 7)
    assert measured.by_seed == ((10.0, 10.0), (20.0, 20.0))
    assert measured.epochs == 15.0
    assert measured.why_not == "diverged"


def test_a_compilation_that_is_timed_once_widens_the_bounds_by_its_share() -> None:
    steps = TrainingTime(epochs=1.0, steps_per_epoch=60.0, step_s=1.0)
    compiled = replace(steps, one_time_s={"compile": 60.0, "features": 30.0})
    found = Interval(estimate=2.0, low=1.8, high=2.2)
    assert widened(found, (steps, steps), is_one=False) == found
    one = widened(found, (steps, compiled), is_one=False)  # two fifths of the time after
    noise = math.exp(speed_module.COLD_NOISE * 60 / 150)
    assert one.low == pytest.approx(1.8 / noise)
    assert one.high == pytest.approx(2.2 * noise)
    assert one.estimate == 2.0
    both = widened(found, (compiled, compiled), is_one=False)
    assert both.low == pytest.approx(1.8 / noise ** math.sqrt(2))
    assert widened(found, (compiled, compiled), is_one=True) == found


KNOWN = Length(epochs=6.0, num_validations=6.0)


def timed(lab: Lab, profile, recipe: Recipe, folder):  # type: ignore[no-untyped-def]
    after = replace(recipe, loader=replace(recipe.loader, prefetch_batches=3))
    return measure_speed(
        lab, profile, (recipe, KNOWN), (after, KNOWN), folder=folder, watchdog=Watchdog()
    )


def test_two_pairs_are_run_where_the_budget_has_ended(make_lab, profile, recipe, tmp_path) -> None:
    lab = make_lab(recipe, budget_s=1e-9)
    speed = timed(lab, profile, recipe, tmp_path)
    assert len(speed.before_s) == len(speed.after_s) == MIN_PAIRS
    assert speed.cut_short == "the budget ran out after 2 timed pairs"
    assert speed.is_too_little
    assert speed.interval.low < speed.interval.estimate < speed.interval.high


def test_a_budget_that_suffices_cuts_nothing_short(make_lab, profile, recipe, tmp_path) -> None:
    speed = timed(make_lab(recipe, budget_s=600.0), profile, recipe, tmp_path)
    assert len(speed.before_s) >= 8
    assert speed.cut_short is None
    assert not speed.is_too_little


def test_pairs_end_with_the_budget_and_not_before(
    make_lab, profile, recipe, tmp_path, monkeypatch
) -> None:
    left = iter([1e9, 1e9, 1e9, 0.0])  # asked before the third pair, and then each time
    monkeypatch.setattr(Lab, "time_left", lambda lab: next(left, 0.0))
    monkeypatch.setattr(speed_module.Lab, "allowed_s", lambda lab, share: 1e9)
    speed = timed(make_lab(recipe), profile, recipe, tmp_path)
    assert speed.cut_short == "the budget ran out after 5 timed pairs"
    assert len(speed.before_s) == 5


def test_fewer_validations_are_timed_by_blocks_of_one_workload(
    make_lab, profile, recipe, tmp_path, monkeypatch
) -> None:
    opened: list[Recipe] = []

    class Counted(Workload):
        def __init__(self, recipe: Recipe, *args: Any, **kwargs: Any) -> None:
            opened.append(recipe)
            super().__init__(recipe, *args, **kwargs)

    monkeypatch.setattr(workload_module, "Workload", Counted)
    rare = replace(recipe, stopping=replace(recipe.stopping, validate_every_epochs=3))
    fewer = Length(epochs=6.0, num_validations=2.0)
    speed = measure_speed(
        make_lab(recipe),
        profile,
        (recipe, KNOWN),
        (rare, fewer),
        folder=tmp_path,
        watchdog=Watchdog(),
    )
    assert opened == [recipe]
    assert len(speed.before_s) == len(speed.after_s) >= 8
    assert all(before > after for before, after in zip(speed.before_s, speed.after_s, strict=True))
    assert speed.before.step_s == speed.after.step_s
    assert speed.before.validation_s == speed.after.validation_s > 0
    assert speed.interval.low < speed.interval.estimate < speed.interval.high
    longer = measure_speed(
        make_lab(recipe),
        profile,
        (recipe, KNOWN),
        (replace(recipe, schedule=replace(recipe.schedule, max_epochs=3)), fewer),
        folder=tmp_path,
        watchdog=Watchdog(),
    )
    assert longer.before_s == (), "if only the length differs, the profile is used"
    assert opened == [recipe]


def test_lengths_that_rest_on_what_a_step_takes_are_timed_by_blocks(
    make_lab, profile, recipe, tmp_path
) -> None:
    """Half of the epochs, with all one-time work."""
    time = replace(profile.time, one_time_s={"load": 0.05})
    half = replace(recipe, schedule=replace(recipe.schedule, max_epochs=3))
    speed = measure_speed(
        make_lab(recipe),
        replace(profile, time=time),
        (recipe, KNOWN),
        (half, Length(epochs=3.0, num_validations=1.0)),
        folder=tmp_path,
        watchdog=Watchdog(),
    )
    assert len(speed.before_s) == len(speed.after_s) >= 8
    assert speed.before.step_s == speed.after.step_s, "both totals use the same blocks"
    assert speed.interval.low < speed.interval.estimate < speed.interval.high


@pytest.mark.thorough
def test_features_that_both_compute_are_timed_once_per_pair(
    make_lab, profile, recipe, tmp_path
) -> None:
    cached = replace(recipe, features=FeaturesConfig(cached=True))
    larger = replace(cached, batch=replace(cached.batch, global_batch_size=16))
    channels = MemoryFormat.CHANNELS_LAST
    other = replace(cached, device=replace(cached.device, memory_format=channels))
    features_s = []
    for after in (larger, other):
        speed = measure_speed(
            make_lab(cached),
            profile,
            (cached, KNOWN),
            (after, KNOWN),
            folder=tmp_path,
            watchdog=Watchdog(),
        )
        features_s.append([time.one_time_s["features"] for time in (speed.before, speed.after)])
    assert features_s[0][0] == features_s[0][1] > 0
    assert features_s[1][0] != features_s[1][1]


def test_pairs_beside_another_process_are_timed_again_as_long_as_there_is_patience(
    make_lab, profile, recipe, tmp_path, monkeypatch
) -> None:
    """Others use a core during the first wait and the first pair, and again once it is used up."""
    found = iter([1.0, 0.0, 1.0, 1.0, 0.0, 0.05])
    monkeypatch.setattr(patience_module, "cores_missing_since", lambda _: next(found, 0.0))
    monkeypatch.setattr(patience_module, "_LOOK_S", 0.01)
    patience, lab = Patience(left_s=60.0), make_lab(recipe)
    after = replace(recipe, loader=replace(recipe.loader, prefetch_batches=3))
    how: dict[str, Any] = {"folder": tmp_path, "watchdog": Watchdog(), "patience": patience}
    speed = measure_speed(lab, profile, (recipe, KNOWN), (after, KNOWN), **how)
    assert len(speed.before_s) == len(patience.counted) >= 8
    assert patience.used_s == pytest.approx(60.0 - patience.left_s)
    assert patience.used_s > 0.01
    assert patience.counted[0][1] == 0.05
    assert 0 < patience.cores_missing < 0.05
    patience.left_s, patience.counted = 0.0, []
    monkeypatch.setattr(patience_module, "cores_missing_since", lambda _: 1.0)
    measure_speed(lab, profile, (recipe, KNOWN), (after, KNOWN), **how)
    assert patience.cores_missing == pytest.approx(1.0), "without patience every pair counts"


def test_a_race_says_when_it_was_not_cut(make_lab, recipe, tmp_path) -> None:
    lab = make_lab(recipe)
    what = recipe, lab.task, lab.sources
    with (
        closing(Workload(*what, device=lab.device, cache=tmp_path / "before")) as before,
        closing(Workload(*what, device=lab.device, cache=tmp_path / "after")) as after,
    ):
        racing = Race(
            before,
            after,
            block_s=0.002,
            watchdog=Watchdog(),
            patience=lab.patience,
            time_left=lab.time_left,
        )
        racing.warm_up()
        assert racing.before.pilot.step_s > 0
        assert racing.before.planned_s > 0
        assert not racing.is_cut
