"""Rungs that write more than the user allows are refused before they are tried."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from stepladder.config.options import LadderConfig
from stepladder.config.recipe import Recipe
from stepladder.ladder.advise import advise_on
from stepladder.ladder.climb import Climb
from stepladder.ladder.ledger import Ledger
from stepladder.ladder.limits.feasibility import why_no_time, why_not_here, why_too_long
from stepladder.records.ladder import Decision, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs import RUNGS
from stepladder.rungs.speed.cached_features import CachedFeatures
from stepladder.rungs.speed.compile import Compile
from stepladder.rungs.speed.pixel_store import PixelStore
from stepladder.training.output.display import Display
from stepladder.training.output.wording import rough_time

NUM = 90 + 30
REFUSED = "needs 0.5 MB of disk; ladder.max_cache_bytes allows 0.4 MB"


@pytest.fixture(name="large")
def _large(profile):  # type: ignore[no-untyped-def]
    """A profile in which features and pixels take 4 kB per example, 480 kB in total."""
    measured = {"trunk_s": 1e-3, "head_step_s": 1e-5, "loader_cpu_s": 1.0}
    stored = {"is_built_in": True, "store_encoding": "jpeg", "bandwidth_bytes_per_s": 1e9}
    return replace(profile, feature_bytes=4000, example_bytes=4000, **measured, **stored)


@pytest.mark.parametrize("rung", [CachedFeatures(), PixelStore()], ids=lambda rung: rung.name)
def test_what_would_take_more_than_is_allowed_is_refused(rung, large, recipe) -> None:
    assert rung.disk_bytes(large, recipe) == 4000 * NUM
    enough = LadderConfig(max_cache_bytes=4000 * NUM)
    assert why_not_here(rung, large, recipe, enough) is None
    short = LadderConfig(max_cache_bytes=4000 * NUM - 80_000)
    assert why_not_here(rung, large, recipe, short) == REFUSED
    advice = advise_on(large, recipe, short, rungs=(rung,))
    assert [considered.reason for considered in advice.others] == [REFUSED]


@pytest.mark.parametrize(
    ("fact", "reason"),
    [
        ("is_trunk_frozen", "the trunk is trained, so its features change"),
        ("has_head", "the model is not of the form head(trunk(x))"),
    ],
)
def test_its_own_reason_comes_first(large, recipe, fact, reason) -> None:
    nothing = LadderConfig(max_cache_bytes=0)
    other = replace(large, **{fact: False})
    assert why_not_here(CachedFeatures(), other, recipe, nothing) == reason


def test_what_writes_nothing_needs_no_room(large, recipe) -> None:
    writing = {rung.name for rung in RUNGS if rung.disk_bytes(large, recipe)}
    assert writing == {"cached_features", "pixel_store"}


def test_a_climb_writes_the_refusal_down(make_lab, tmp_path, large, recipe) -> None:
    ledger = Ledger(tmp_path)
    ledger.begin(job="job", machine="here", options="some", commit="one", is_fresh=False)
    climbing = Climb(
        lab=make_lab(recipe, max_cache_bytes=400_000, try_all=True),
        ledger=ledger,
        display=Display(io.StringIO()),
        show=lambda trial: None,
        job="job",
        machine="here",
        recipe=recipe,
        rungs=(CachedFeatures(),),
        profiles=[large],
    )
    assert climbing.run() == recipe
    (trial,) = climbing.trials
    assert trial.verdict.decision is Decision.NOT_HERE
    assert trial.verdict.reason == REFUSED


def test_work_that_a_trial_does_whole_has_to_fit_in_what_is_left(large, recipe) -> None:
    options = LadderConfig(budget_s=300.0)
    compiled = Compile().predict(large, recipe)
    compile_s = compiled.inputs["compile_s"]
    assert why_no_time(compile_s + 1, options, large, compiled) is None
    found = why_no_time(compile_s - 1, options, large, compiled)
    left, needed = rough_time(compile_s - 1), rough_time(compile_s)
    assert found == f"compiling takes {needed}, but only {left} of the budget are left"
    features = CachedFeatures().predict(large, recipe)  # timed in parts
    assert features.time is not None
    assert features.time.one_time_s["features"] > 10
    assert why_no_time(10.0, options, large, features) is None
    assert why_no_time(float("inf"), replace(options, budget_s=None), large, compiled) is None


def test_a_trial_may_take_as_long_as_fifty_trainings_repay(large, recipe) -> None:
    halved = replace(CachedFeatures().predict(large, recipe), gain=2.0)
    assert why_too_long(250.0, halved, 10.0) is None
    assert why_too_long(251.0, halved, 10.0) == (
        "predicted 2.00×, 5.0 s of 10 s: a trial takes about 4.2 min, more than that saves in 50 "
        "trainings (--ladder.try-all tries it)"
    )
    assert why_too_long(9.0, replace(halved, gain=1.001), 10.0) is None  # short trials are made


class Halving(CachedFeatures):
    """A rung that is predicted to halve the time."""

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        return replace(super().predict(profile, recipe), gain=2.0)


def test_a_climb_skips_what_takes_longer_than_it_saves(make_lab, tmp_path, large, recipe) -> None:
    ledger = Ledger(tmp_path)
    ledger.begin(job="job", machine="here", options="some", commit="one", is_fresh=False)
    climbing = Climb(
        lab=make_lab(recipe),
        ledger=ledger,
        display=Display(io.StringIO()),
        show=lambda trial: None,
        job="job",
        machine="here",
        recipe=recipe,
        rungs=(Halving(),),
        profiles=[large],
        trial_times_s=[26.0 * large.time.total_s + 10.0],
    )
    trial, after = climbing.consider(Halving())
    assert after == recipe
    assert trial.verdict.decision is Decision.SKIPPED
    assert "more than that saves in 50 trainings" in (trial.verdict.reason or "")
    climbing.trial_times_s = [24.0 * large.time.total_s]
    assert climbing.why_skip(Halving(), Halving().predict(large, recipe)) is None
