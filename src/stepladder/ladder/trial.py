"""One trial: a rung's change is proven or forgotten."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.config.resolve import resolve, settings_of_call
from stepladder.ladder.comparison import Comparison, compare
from stepladder.ladder.exactness import compute, describe_difference
from stepladder.ladder.guard import TrialFailed, Watchdog, guarded
from stepladder.ladder.keys import recipe_values
from stepladder.ladder.lab import Lab
from stepladder.ladder.peak import peak_frac
from stepladder.ladder.speed import Length, Speed, length_of, measure_speed
from stepladder.ladder.together import with_enabled
from stepladder.ladder.verdict import Evidence, judge, judge_quality
from stepladder.records import Json
from stepladder.records.ladder import (
    Aim,
    Decision,
    Exactness,
    Outcome,
    Prediction,
    Trial,
    Verdict,
)
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung

_NO_WORSE: Final = 1.1  # times the loss before, up to which a probe's loss is in the race
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


def run_trial(
    lab: Lab, rung: Rung, profile: Profile, before: Recipe, prediction: Prediction
) -> TrialResult:
    """Try a rung on the current recipe, and decide.

    A rung that only gives room is tried together with the first rung that it makes possible.
    Whatever goes wrong drops the rung with its reason; what the trial made is removed.
    """
    rung = with_enabled(rung, profile, before)
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
            verdict = judge(_gather(trying), lab.job.ladder)
    except TrialFailed as failure:
        verdict = Verdict(decision=Decision.DROPPED, reason=failure.what)
    finally:
        shutil.rmtree(trying.folder, ignore_errors=True)
    trial = _trial(trying, prediction, verdict)
    is_kept = verdict.decision is Decision.KEPT
    return TrialResult(trial=trial, recipe=trying.after if is_kept else before)


def choose_variant(
    lab: Lab, rung: Rung, profile: Profile, before: Recipe, *, watchdog: Watchdog
) -> Recipe:
    """Choose among a rung's variants by training each once, with a seed that no trial uses.

    Of those whose held-out loss is at most a tenth above that before, the one that takes least
    time; if there is none, the one with the least loss. The first where a probe takes too long.
    """
    variants = rung.variants(profile, before)
    if len(variants) == 1:
        return variants[0]
    watchdog.expect(lab.forecast_s(before))
    now = lab.probe(before)
    found: list[tuple[Recipe, Outcome]] = []
    for variant in variants:
        watchdog.expect(lab.forecast_s(variant))
        outcome = lab.probe(variant)
        if outcome is None or now is None:
            return variants[0]
        if outcome.why_not is None:
            found.append((variant, outcome))
    if not found:
        return variants[0]
    limit = _NO_WORSE * _mean_loss(now) if now is not None else float("inf")
    good = [(variant, outcome) for variant, outcome in found if _mean_loss(outcome) <= limit]
    if not good:
        return min(found, key=lambda one: _mean_loss(one[1]))[0]
    return min(good, key=lambda one: _steps_s(lab, profile, *one))[0]


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
    """Find out whether the change is sound, and what it gives."""
    lab, rung, before, after = trying.lab, trying.rung, trying.before, trying.after
    exactness = rung.exactness_of(after)
    found, comparison = "", Comparison()
    if exactness is Exactness.STATISTICAL:
        trying.watchdog.expect(lab.job.ladder.num_seeds * 2 * lab.forecast_s(after))
        comparison = compare(
            lab,
            before,
            after,
            is_decided=lambda found: _is_decided(_evidence(rung, exactness, "", found), lab),
        )
    else:
        found = _check_exact(trying, exactness)
    evidence = _evidence(rung, exactness, found, comparison)
    if judge_quality(evidence, lab.job.ladder).decision is Decision.DROPPED:
        return evidence
    if rung.aim is Aim.MEMORY:
        trying.watchdog.expect(0.0)
        return replace(evidence, memory_frac=peak_frac(lab, before, after))
    length = length_of(lab, before)
    is_statistical = exactness is Exactness.STATISTICAL
    trying.lengths = (length, length_of(lab, after) if is_statistical else length)
    trying.speed = measure_speed(
        lab,
        trying.profile,
        (before, trying.lengths[0]),
        (after, trying.lengths[1]),
        folder=trying.folder,
        watchdog=trying.watchdog,
    )
    epochs = trying.lengths[1].epochs if is_statistical else None
    return replace(evidence, speed=trying.speed.interval, num_epochs=epochs)


def _evidence(rung: Rung, exactness: Exactness, found: str, comparison: Comparison) -> Evidence:
    """Give what is known of a change before its speed is."""
    return Evidence(
        aim=rung.aim,
        exactness=exactness,
        found=found,
        accuracy=comparison.accuracy,
        loss=comparison.loss,
        loss_before=comparison.loss_before,
        num_held_out=comparison.num_held_out,
        why_no_outcomes=comparison.why_not,
        is_replayed=comparison.is_replayed,
    )


def _is_decided(evidence: Evidence, lab: Lab) -> bool:
    """Say whether more seeds could change what held-out examples say."""
    if evidence.aim is Aim.ACCURACY:
        change = evidence.accuracy
        return change is not None and (change.low > 0 or change.high <= 0)
    return judge_quality(evidence, lab.job.ladder).decision is not Decision.UNDECIDED


def _check_exact(trying: _Trying, exactness: Exactness) -> str:
    lab, before, after = trying.lab, trying.before, trying.after
    steps = before.optimizer != after.optimizer
    results = []
    for recipe in (before, after):
        trying.watchdog.expect(0.0)
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
        verdict=verdict,
        seed=trying.lab.seed,
        commit=trying.lab.commit,
    )


def _epochs(length: Length) -> tuple[float, ...]:
    return tuple(epochs for epochs, _ in length.by_seed)


def _mean_loss(outcome: Outcome) -> float:
    return float(np.mean(outcome.losses)) if outcome.losses else float("inf")


def _steps_s(lab: Lab, profile: Profile, recipe: Recipe, outcome: Outcome) -> float:
    """Give the time of the steps that a training took, by t(b) = a + c b."""
    batch = recipe.batch.global_batch_size
    fixed_s, per_example_s = profile.step_fixed_s, profile.step_per_example_s
    step_s = profile.time.step_s
    if fixed_s is not None and per_example_s is not None:
        step_s = fixed_s + per_example_s * batch
    return outcome.epochs * lab.num_train(recipe) / batch * step_s
