"""One trial: a rung's change is proven or forgotten."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.config.resolve import resolve, settings_of_call
from stepladder.ladder.comparison import Comparison, compare
from stepladder.ladder.exactness import compute, describe_difference
from stepladder.ladder.guard import TrialFailed, Watchdog, guarded
from stepladder.ladder.keys import recipe_values
from stepladder.ladder.lab import Lab
from stepladder.ladder.peak import peak_frac
from stepladder.ladder.speed import (
    Length,
    Speed,
    few_steps_s,
    length_of,
    measure_speed,
    pair_lengths,
    why_no_length,
)
from stepladder.ladder.variants import choose_variant
from stepladder.ladder.verdict import Evidence, judge, judge_speed
from stepladder.measure.cold import compiler_start_s
from stepladder.records import Json
from stepladder.records.ladder import (
    Aim,
    Decision,
    Exactness,
    Prediction,
    Trial,
    Verdict,
)
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung

_DROPPED: Final = Decision.DROPPED
_FEATURES_TIMES: Final = 5.0
"""Times as long as by the profile that new features may take, until they are taken to hang."""
Change = Mapping[str, tuple[Json, Json]]


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """A trial, and the recipe that goes on from it: the changed one if it was kept."""

    trial: Trial
    recipe: Recipe


@dataclass(kw_only=True)
class _Trying:
    """A trial in progress."""

    lab: Lab
    rung: Rung
    profile: Profile
    before: Recipe
    folder: Path
    after: Recipe
    watchdog: Watchdog
    speed: Speed | None = None
    lengths: tuple[Length, Length] | None = None
    comparison: Comparison = field(default_factory=Comparison)


def run_trial(
    lab: Lab,
    rung: Rung,
    profile: Profile,
    before: Recipe,
    prediction: Prediction,
    *,
    on_prediction: Callable[[Prediction], None] | None = None,
) -> TrialResult:
    """Try a rung on the current recipe, and decide.

    Whatever goes wrong drops the rung with its reason; what the trial made is removed.

    Args:
        prediction: by which the rung is tried; where a probe chooses another variant than the
            likeliest, the trial holds the prediction of that one.
        on_prediction: given that one, before it is measured.
    """
    trying = _Trying(
        lab=lab,
        rung=rung,
        profile=profile,
        before=before,
        folder=lab.cache / f"trial-{rung.name}",
        after=before,
        watchdog=Watchdog(),
    )
    try:
        with guarded(trying.watchdog):
            trying.after = choose_variant(lab, rung, profile, before, watchdog=trying.watchdog)
            if trying.after != rung.apply(profile, before):
                prediction = rung.predict_variant(profile, before, trying.after)
                if on_prediction is not None:
                    on_prediction(prediction)
            verdict = judge(_gather(trying), lab.job.ladder)
    except TrialFailed as failure:
        verdict = Verdict(decision=Decision.DROPPED, reason=failure.what)
    finally:
        shutil.rmtree(trying.folder, ignore_errors=True)
    trial = _trial(trying, prediction, verdict)
    is_kept = verdict.decision is Decision.KEPT
    return TrialResult(trial=trial, recipe=trying.after if is_kept else before)


def change_between(before: Recipe, after: Recipe) -> Change:
    """List the options that differ, by dotted name, as [before, after]."""
    old, new = recipe_values(before), recipe_values(after)
    return {key: (old[key], new[key]) for key in old if old[key] != new[key]}


def apply_change(recipe: Recipe, change: Change) -> Recipe:
    """Set the options of a change to what they were after it.

    Raises:
        UsageError: if an option is not known, or a value does not fit.
    """
    settings = settings_of_call({key: after for key, (_, after) in change.items()})
    return resolve(settings, base=JobConfig(recipe=recipe)).job.recipe


def _gather(trying: _Trying) -> Evidence:
    """Find out what the change gives, and whether it is sound; the cheaper question first."""
    lab, rung, before, after = trying.lab, trying.rung, trying.before, trying.after
    exactness = rung.exactness_of(after)
    is_statistical = exactness is Exactness.STATISTICAL
    if after.device.compile:  # once the trial has compiled something it cannot be seen any more
        trying.watchdog.expect(few_steps_s(trying.profile, before, after))
        compiler_start_s(lab.device)
    found = "" if is_statistical else _check_exact(trying, exactness)
    if rung.aim is Aim.MEMORY:
        trying.watchdog.expect(few_steps_s(trying.profile, before, after))
        evidence = _evidence(rung.aim, exactness, found, _compared(trying, exactness))
        return replace(evidence, memory_frac=peak_frac(lab, before, after))
    why_not = _measure(trying, is_statistical=is_statistical)
    if trying.speed is None:
        return _evidence(rung.aim, exactness, found, Comparison(why_not=why_not))
    speed = trying.speed.interval
    too_slow = rung.aim is Aim.TIME and judge_speed(speed, lab.job.ladder).decision is _DROPPED
    comparison = Comparison() if too_slow else _compared(trying, exactness)
    epochs = trying.lengths[1].epochs if is_statistical and trying.lengths else None
    evidence = _evidence(rung.aim, exactness, found, comparison)
    cut_short = trying.speed.cut_short
    return replace(evidence, speed=speed, num_epochs=epochs, cut_short=cut_short)


def _measure(trying: _Trying, *, is_statistical: bool) -> str | None:
    """Measure how much faster it is, or say why that cannot be known."""
    lab, before, after, profile = trying.lab, trying.before, trying.after, trying.profile
    few_s = few_steps_s(profile, before, after)
    trying.watchdog.grant(_FEATURES_TIMES * _features_s(profile) + few_s)  # for forecasts
    length = length_of(lab, before)
    trying.lengths = (length, length)
    if is_statistical:
        trying.watchdog.expect(2 * lab.forecast_s(after))
        trying.lengths = pair_lengths(length, length_of(lab, after))
        why_not = why_no_length(before, after, trying.lengths)
        if why_not is not None:
            return why_not
    trying.speed = measure_speed(
        lab,
        profile,
        (before, trying.lengths[0]),
        (after, trying.lengths[1]),
        folder=trying.folder,
        watchdog=trying.watchdog,
    )
    return None


def _features_s(profile: Profile) -> float:
    """Give what the features of all examples take in the trunk as it is."""
    return (profile.trunk_s or 0.0) * (profile.num_train + profile.num_val)


def _compared(trying: _Trying, exactness: Exactness) -> Comparison:
    """Compare what both learn, where the change may alter it."""
    if exactness is not Exactness.STATISTICAL:
        return Comparison()
    lab = trying.lab
    trying.watchdog.expect(2 * (lab.forecast_s(trying.before) + lab.forecast_s(trying.after)))
    trying.comparison = compare(lab, trying.before, trying.after)
    return trying.comparison


def _evidence(aim: Aim, exactness: Exactness, found: str, comparison: Comparison) -> Evidence:
    """Give what is known of a change before its speed is."""
    return Evidence(
        aim=aim,
        exactness=exactness,
        found=found,
        accuracy=comparison.accuracy,
        loss=comparison.loss,
        loss_before=comparison.loss_before,
        num_held_out=comparison.num_held_out,
        why_no_outcomes=comparison.why_not,
        is_replayed=comparison.is_replayed,
        num_trainings=comparison.num_seeds,
        gap_before=comparison.gap_before,
        gap_after=comparison.gap_after,
    )


def _check_exact(trying: _Trying, exactness: Exactness) -> str:
    lab, before, after = trying.lab, trying.before, trying.after
    steps = before.optimizer != after.optimizer
    results = []
    for recipe in (before, after):
        trying.watchdog.expect(few_steps_s(trying.profile, before, recipe))
        results.append(compute(recipe, lab.material(recipe), device=lab.device, steps=steps))
    return describe_difference(results[0], results[1], exactness)


def _trial(trying: _Trying, prediction: Prediction, verdict: Verdict) -> Trial:
    speed, lengths = trying.speed, trying.lengths
    return Trial(
        rung=trying.rung.name,
        level=trying.rung.level,
        change=change_between(trying.before, trying.after),
        prediction=prediction,
        before=speed.before if speed else None,
        after=speed.after if speed else None,
        before_s=speed.before_s if speed else (),
        after_s=speed.after_s if speed else (),
        before_epochs=_epochs(lengths[0]) if lengths else (),
        after_epochs=_epochs(lengths[1]) if lengths else (),
        before_accuracy=trying.comparison.before,
        after_accuracy=trying.comparison.after,
        verdict=verdict,
        seed=trying.lab.seed,
        commit=trying.lab.commit,
    )


def _epochs(length: Length) -> tuple[float, ...]:
    return tuple(epochs for epochs, _ in length.by_seed)
