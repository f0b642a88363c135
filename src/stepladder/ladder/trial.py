"""One trial: a rung's change is measured, then kept or dropped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.config.resolve import resolve, settings_of_call
from stepladder.ladder.accuracy.comparison import Comparison, compare
from stepladder.ladder.accuracy.exactness import compute, describe_difference, is_compared_in_fp32
from stepladder.ladder.accuracy.on_devices import check_on_devices
from stepladder.ladder.keys import learning_key, recipe_values
from stepladder.ladder.lab import Lab
from stepladder.ladder.limits.guard import BudgetEnded, TrialFailed, Watchdog, guarded
from stepladder.ladder.summary.wording import changed_words
from stepladder.ladder.timing.epoch_range import predict_over_seeds
from stepladder.ladder.timing.peak_memory import peak_frac
from stepladder.ladder.timing.speedup import (
    Length,
    Speed,
    few_steps_s,
    length_of,
    measure_speed,
    pair_lengths,
    why_no_length,
)
from stepladder.ladder.variants import Choice, choose_variant
from stepladder.ladder.verdict import Evidence, judge, judge_cost
from stepladder.measuring.blocks.cold import compiler_start_s
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
"""Times the duration that the profile predicts before new features count as hung."""
_START_S: Final = 60.0
"""Seconds after which processes that do not meet count as hung."""
_FIRST_VARIANT: Final = 0.95
_SECOND_VARIANT: Final = 0.975  # of the accuracy bound: both together hold in at least 92.5 %
_UNKNOWN_TO_LEARNING: Final = (
    "error in the rung: it may change what is learnt, but learning_key in ladder/keys.py ignores "
    "the options that it changes"
)
_NOTHING: Final = Verdict(decision=Decision.DROPPED, reason="there is nothing to try")
Change = Mapping[str, tuple[Json, Json]]


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """A trial and the recipe after it: the changed one if the rung was kept."""

    trial: Trial
    recipe: Recipe


@dataclass(frozen=True, kw_only=True)
class _Trying:
    """What a rung is tried on."""

    lab: Lab
    rung: Rung
    profile: Profile
    before: Recipe
    folder: Path
    watchdog: Watchdog


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What is known about a change so far.

    An attempt yields several of these, each with more results; if it fails, the last one is used.
    """

    after: Recipe
    prediction: Prediction
    choice: Choice | None = None
    lengths: tuple[Length, Length] | None = None
    speed: Speed | None = None
    comparison: Comparison = field(default_factory=Comparison)
    verdict: Verdict = _NOTHING


_Attempt = Generator[_Found, None, None]
OnPrediction = Callable[[Prediction], None]


def run_trial(
    lab: Lab,
    rung: Rung,
    profile: Profile,
    before: Recipe,
    prediction: Prediction,
    *,
    on_prediction: OnPrediction | None = None,
) -> TrialResult:
    """Try a rung on the current recipe, and return the verdict.

    Any error drops the rung with its reason; files of the trial are removed. If the variant that a
    probe chose is faster but may lose too much accuracy, a safer one is tried as well.

    Args:
        prediction: the prediction that the rung is tried for. If a probe chooses another variant
            than the default one, the trial holds the prediction of that variant.
        on_prediction: called with that prediction before the variant is measured.
    """
    trying = _Trying(
        lab=lab,
        rung=rung,
        profile=profile,
        before=before,
        folder=lab.cache / f"trial-{rung.name}",
        watchdog=Watchdog(time_left=lab.time_left),
    )
    nothing = _Found(after=before, prediction=prediction)
    found = _run(trying, nothing, _first_attempt(trying, nothing, on_prediction))
    choose = None if found.choice is None else found.choice.second
    if choose is not None and _costs_too_much(trying, found):
        nothing = replace(nothing, choice=found.choice)
        attempt = _second_attempt(trying, nothing, choose, on_prediction)
        found = _better(before, found, _run(trying, nothing, attempt))
    is_kept = found.verdict.decision is Decision.KEPT
    return TrialResult(trial=_trial(trying, found), recipe=found.after if is_kept else before)


def _run(trying: _Trying, found: _Found, attempt: _Attempt) -> _Found:
    """Run an attempt and return its last result; an error becomes the verdict."""
    try:
        with guarded(trying.watchdog):
            for found in attempt:  # noqa: B007, PLR1704  (the last one counts)
                pass
    except TrialFailed as failure:
        is_cut = isinstance(failure, BudgetEnded)
        decision = Decision.UNDECIDED if is_cut else Decision.DROPPED
        found = replace(found, verdict=Verdict(decision=decision, reason=failure.what))
    finally:
        shutil.rmtree(trying.folder, ignore_errors=True)
    return found


def _first_attempt(trying: _Trying, found: _Found, on_prediction: OnPrediction | None) -> _Attempt:
    """Choose a variant and judge it."""
    choice = choose_variant(
        trying.lab, trying.rung, trying.profile, trying.before, watchdog=trying.watchdog
    )
    found = replace(found, choice=choice, after=choice.first)
    yield from _judge(trying, found, on_prediction, confidence=_FIRST_VARIANT)


def _second_attempt(
    trying: _Trying,
    found: _Found,
    choose: Callable[[], Recipe | None],
    on_prediction: OnPrediction | None,
) -> _Attempt:
    """Judge a safer variant after one that may lose too much accuracy, if there is one."""
    after = choose()
    if after is not None:
        found = replace(found, after=after)
        yield from _judge(trying, found, on_prediction, confidence=_SECOND_VARIANT)


def _judge(
    trying: _Trying, found: _Found, on_prediction: OnPrediction | None, *, confidence: float
) -> _Attempt:
    yield found
    rung, profile, before = trying.rung, trying.profile, trying.before
    if found.after != rung.apply(profile, before):
        prediction = predict_over_seeds(
            lambda one: rung.predict_variant(one, before, found.after), profile
        )
        found = replace(found, prediction=prediction)
        yield found
        if on_prediction is not None:
            on_prediction(prediction)
    found, evidence = yield from _gather(trying, found, confidence)
    yield replace(found, verdict=judge(evidence, trying.lab.job.ladder))


def _costs_too_much(trying: _Trying, found: _Found) -> bool:
    """Return True if the possible loss of accuracy is the only reason not to keep a change."""
    decision = found.verdict.decision
    is_known = found.comparison.num_seeds > 0 or decision is _DROPPED  # such as diverged
    if decision is Decision.KEPT or not is_known:
        return False
    speed = found.speed.interval if found.speed is not None else None
    price = found.prediction.price
    return judge_cost(speed, price, trying.lab.job.ladder).decision is Decision.KEPT


def _better(before: Recipe, first: _Found, second: _Found) -> _Found:
    """Return the attempt that the trial records, with a remark on the other one."""
    if second.after == before:
        return first
    is_kept = second.verdict.decision is Decision.KEPT
    told, other = (second, first) if is_kept else (first, second)
    words = changed_words(change_between(before, other.after)) or "the other variant"
    said = f"{words} was {other.verdict.decision}" + ("" if is_kept else " as well")
    reason = "; ".join(part for part in (told.verdict.reason, said) if part)
    return replace(told, verdict=replace(told.verdict, reason=reason))


def change_between(before: Recipe, after: Recipe) -> Change:
    """Return the options that differ, by dotted name, as (before, after)."""
    old, new = recipe_values(before), recipe_values(after)
    return {key: (old[key], new[key]) for key in old if old[key] != new[key]}


def apply_change(recipe: Recipe, change: Change) -> Recipe:
    """Apply a change: set its options to their values after it.

    Raises:
        UsageError: if an option is not known, or a value does not fit.
    """
    settings = settings_of_call({key: after for key, (_, after) in change.items()})
    return resolve(settings, base=JobConfig(recipe=recipe)).job.recipe


def _gather(
    trying: _Trying, found: _Found, confidence: float
) -> Generator[_Found, None, tuple[_Found, Evidence]]:
    """Measure what a change gains and whether it is sound, the cheaper question first."""
    lab, rung, before, after = trying.lab, trying.rung, trying.before, found.after
    exactness = rung.exactness_of(after)
    is_statistical = exactness is Exactness.STATISTICAL
    if is_statistical and learning_key(before) == learning_key(after):
        raise TrialFailed(_UNKNOWN_TO_LEARNING)
    if after.device.compile:  # has to be timed before the trial compiles anything
        trying.watchdog.expect(few_steps_s(trying.profile, before, after))
        compiler_start_s(lab.device)
    words = "" if is_statistical else _check_exact(trying, found, exactness)
    pays, why_not = True, None
    if rung.aim is Aim.MEMORY:
        trying.watchdog.expect(few_steps_s(trying.profile, before, after))
    else:
        found, why_not = yield from _measure(trying, found, is_statistical=is_statistical)
        pays = _pays(trying, found)
    if is_statistical and pays:
        found = replace(found, comparison=_compare(trying, found, confidence))
        yield found
    comparison = found.comparison if why_not is None else Comparison(why_not=why_not)
    evidence = _evidence(rung.aim, exactness, words, comparison)
    if rung.aim is Aim.MEMORY:
        return found, replace(evidence, memory_frac=peak_frac(lab, before, after))
    if found.speed is None:
        return found, evidence
    return found, replace(
        evidence,
        speed=found.speed.interval,
        price=found.prediction.price,
        num_epochs=found.lengths[1].epochs if is_statistical and found.lengths else None,
        cut_short=found.speed.cut_short,
        is_too_little=found.speed.is_too_little,
    )


def _pays(trying: _Trying, found: _Found) -> bool:
    """Return True if a change is fast enough that its accuracy is worth measuring."""
    speed = found.speed
    if speed is None or speed.is_too_little:
        return False
    is_for_time = trying.rung.aim is Aim.TIME
    ladder = trying.lab.job.ladder
    judged = judge_cost(speed.interval, found.prediction.price, ladder)
    return not is_for_time or judged.decision is Decision.KEPT


def _measure(
    trying: _Trying, found: _Found, *, is_statistical: bool
) -> Generator[_Found, None, tuple[_Found, str | None]]:
    """Measure the speed-up, or return why it cannot be measured."""
    lab, before, after, profile = trying.lab, trying.before, found.after, trying.profile
    few_s = few_steps_s(profile, before, after)
    trying.watchdog.grant(_FEATURES_TIMES * _features_s(profile) + few_s)  # for forecasts
    length = length_of(lab, before)
    lengths = length, length
    yield replace(found, lengths=lengths)
    if is_statistical:
        trying.watchdog.expect(2 * lab.forecast_s(after))
        lengths = pair_lengths(length, length_of(lab, after))
        yield replace(found, lengths=lengths)
        why_not = why_no_length(before, after, lengths)
        if why_not is not None:
            return replace(found, lengths=lengths), why_not
    speed = measure_speed(
        lab,
        profile,
        (before, lengths[0]),
        (after, lengths[1]),
        folder=trying.folder,
        watchdog=trying.watchdog,
        price=found.prediction.price,
    )
    found = replace(found, lengths=lengths, speed=speed)
    yield found
    return found, None


def _features_s(profile: Profile) -> float:
    """Return the seconds that the current trunk needs for the features of all examples."""
    return (profile.trunk_s or 0.0) * (profile.num_train + profile.num_val)


def _compare(trying: _Trying, found: _Found, confidence: float) -> Comparison:
    """Compare what both recipes learn."""
    lab, before, after = trying.lab, trying.before, found.after
    trying.watchdog.expect(2 * (lab.forecast_s(before) + lab.forecast_s(after)))
    along = found.choice.along if found.choice is not None else ()
    return compare(lab, before, after, along=along, confidence=confidence)


def _evidence(aim: Aim, exactness: Exactness, found: str, comparison: Comparison) -> Evidence:
    """Return what is known about a change before its speed is measured."""
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


def _check_exact(trying: _Trying, found: _Found, exactness: Exactness) -> str:
    lab, before, after = trying.lab, trying.before, found.after
    if before.device.count != after.device.count:
        material = lab.material(after)
        trying.watchdog.expect(_START_S + few_steps_s(trying.profile, before, after))
        return check_on_devices(
            after,
            material.task,
            material.sources,
            device=lab.device,
            folder=trying.folder,
            copies=lab.copies,
            fleet=lab.fleet,
        )
    steps = before.optimizer != after.optimizer
    results = []
    foreseen = found.prediction.time
    decoding_s = foreseen.one_time_s.get("store", 0.0) if foreseen is not None else 0.0
    for recipe in (before, after):
        trying.watchdog.expect(decoding_s + few_steps_s(trying.profile, before, recipe))
        results.append(compute(recipe, lab.material(recipe), device=lab.device, steps=steps))
    words = describe_difference(results[0], results[1], exactness)
    return f"{words} in fp32" if is_compared_in_fp32(after) else words


def _trial(trying: _Trying, found: _Found) -> Trial:
    speed, lengths = found.speed, found.lengths
    return Trial(
        rung=trying.rung.name,
        level=trying.rung.level,
        change=change_between(trying.before, found.after),
        prediction=found.prediction,
        before=speed.before if speed else None,
        after=speed.after if speed else None,
        before_s=speed.before_s if speed else (),
        after_s=speed.after_s if speed else (),
        before_epochs=_epochs(lengths[0]) if lengths else (),
        after_epochs=_epochs(lengths[1]) if lengths else (),
        before_range=lengths[0].over_seeds if lengths else None,
        after_range=lengths[1].over_seeds if lengths else None,
        before_accuracy=found.comparison.before,
        after_accuracy=found.comparison.after,
        verdict=found.verdict,
        seed=trying.lab.seed,
        commit=trying.lab.commit,
    )


def _epochs(length: Length) -> tuple[float, ...]:
    return tuple(epochs for epochs, _ in length.by_seed)
