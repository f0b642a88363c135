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
from stepladder.ladder.accuracy.comparison import Comparison, compare
from stepladder.ladder.accuracy.exactness import compute, describe_difference, is_compared_in_fp32
from stepladder.ladder.keys import recipe_values
from stepladder.ladder.lab import Lab
from stepladder.ladder.limits.guard import BudgetEnded, TrialFailed, Watchdog, guarded
from stepladder.ladder.recipe_keys import learning_key
from stepladder.ladder.summary.wording import changed_words
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
from stepladder.ladder.verdict import Evidence, judge, judge_speed
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
"""Times as long as by the profile that new features may take, until they are taken to hang."""
_FIRST_VARIANT: Final = 0.95
_SECOND_VARIANT: Final = 0.975  # at what it loses: both together are right in 92.5 % at least
_UNKNOWN_TO_LEARNING: Final = (
    "a fault of the rung: its options may change what is learnt, and ladder/recipe_keys.py leaves "
    "them out of what it compares"
)
_NOTHING: Final = Verdict(decision=Decision.DROPPED, reason="there is nothing to try")
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
    prediction: Prediction
    on_prediction: Callable[[Prediction], None] | None = None
    choice: Choice | None = None
    confidence: float = _FIRST_VARIANT
    verdict: Verdict = _NOTHING
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

    Whatever goes wrong drops the rung with its reason; what the trial made is removed. Where the
    variant that a probe chose is faster and may lose too much, a safer one is tried as well.

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
        watchdog=Watchdog(time_left=lab.time_left),
        prediction=prediction,
        on_prediction=on_prediction,
    )
    _attempt(trying, lambda: _choose(trying))
    if _costs_too_much(trying):
        trying = _second_attempt(trying, prediction)
    is_kept = trying.verdict.decision is Decision.KEPT
    return TrialResult(trial=_trial(trying), recipe=trying.after if is_kept else before)


def _choose(trying: _Trying) -> Recipe:
    trying.choice = choose_variant(
        trying.lab, trying.rung, trying.profile, trying.before, watchdog=trying.watchdog
    )
    return trying.choice.first


def _attempt(trying: _Trying, choose: Callable[[], Recipe | None]) -> None:
    """Choose a variant and judge it; whatever goes wrong is its verdict.

    Where there is nothing to choose, the recipe stays and the verdict says why.
    """
    rung, profile, before = trying.rung, trying.profile, trying.before
    try:
        with guarded(trying.watchdog):
            after = choose()
            if after is None:
                return
            trying.after = after
            if after != rung.apply(profile, before):
                trying.prediction = rung.predict_variant(profile, before, after)
                if trying.on_prediction is not None:
                    trying.on_prediction(trying.prediction)
            trying.verdict = judge(_gather(trying), trying.lab.job.ladder)
    except TrialFailed as failure:
        is_cut = isinstance(failure, BudgetEnded)
        decision = Decision.UNDECIDED if is_cut else Decision.DROPPED
        trying.verdict = Verdict(decision=decision, reason=failure.what)
    finally:
        shutil.rmtree(trying.folder, ignore_errors=True)


def _costs_too_much(trying: _Trying) -> bool:
    """Say whether all that stands against a change is what it may lose."""
    decision = trying.verdict.decision
    is_known = trying.comparison.num_seeds > 0 or decision is _DROPPED  # it may have diverged
    if decision is Decision.KEPT or not is_known:
        return False
    speed = trying.speed.interval if trying.speed is not None else None
    return judge_speed(speed, trying.lab.job.ladder).decision is Decision.KEPT


def _second_attempt(first: _Trying, prediction: Prediction) -> _Trying:
    """Try a safer variant after one that may lose too much; give the one that the trial tells.

    Args:
        prediction: of the likeliest variant.
    """
    if first.choice is None or first.choice.second is None:
        return first
    second = replace(
        first,
        after=first.before,
        prediction=prediction,
        confidence=_SECOND_VARIANT,
        verdict=_NOTHING,
        speed=None,
        lengths=None,
        comparison=Comparison(),
    )
    _attempt(second, first.choice.second)
    if second.after == first.before:
        return first
    is_kept = second.verdict.decision is Decision.KEPT
    told, other = (second, first) if is_kept else (first, second)
    words = changed_words(change_between(other.before, other.after)) or "the other way"
    said = f"{words} was {other.verdict.decision}" + ("" if is_kept else " as well")
    reason = "; ".join(part for part in (told.verdict.reason, said) if part)
    told.verdict = replace(told.verdict, reason=reason)
    return told


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
    if is_statistical and learning_key(before) == learning_key(after):
        raise TrialFailed(_UNKNOWN_TO_LEARNING)
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
    pays = rung.aim is not Aim.TIME or judge_speed(speed, lab.job.ladder).decision is Decision.KEPT
    is_too_little = trying.speed.is_too_little
    comparison = _compared(trying, exactness) if pays and not is_too_little else Comparison()
    epochs = trying.lengths[1].epochs if is_statistical and trying.lengths else None
    evidence = _evidence(rung.aim, exactness, found, comparison)
    return replace(
        evidence,
        speed=speed,
        num_epochs=epochs,
        cut_short=trying.speed.cut_short,
        is_too_little=is_too_little,
    )


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
    along = trying.choice.along if trying.choice is not None else ()
    trying.comparison = compare(
        lab, trying.before, trying.after, along=along, confidence=trying.confidence
    )
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
    foreseen = trying.prediction.time
    decoding_s = foreseen.one_time_s.get("store", 0.0) if foreseen is not None else 0.0
    for recipe in (before, after):
        trying.watchdog.expect(decoding_s + few_steps_s(trying.profile, before, recipe))
        results.append(compute(recipe, lab.material(recipe), device=lab.device, steps=steps))
    found = describe_difference(results[0], results[1], exactness)
    return f"{found} in fp32" if is_compared_in_fp32(after) else found


def _trial(trying: _Trying) -> Trial:
    speed, lengths = trying.speed, trying.lengths
    return Trial(
        rung=trying.rung.name,
        level=trying.rung.level,
        change=change_between(trying.before, trying.after),
        prediction=trying.prediction,
        before=speed.before if speed else None,
        after=speed.after if speed else None,
        before_s=speed.before_s if speed else (),
        after_s=speed.after_s if speed else (),
        before_epochs=_epochs(lengths[0]) if lengths else (),
        after_epochs=_epochs(lengths[1]) if lengths else (),
        before_accuracy=trying.comparison.before,
        after_accuracy=trying.comparison.after,
        verdict=trying.verdict,
        seed=trying.lab.seed,
        commit=trying.lab.commit,
    )


def _epochs(length: Length) -> tuple[float, ...]:
    return tuple(epochs for epochs, _ in length.by_seed)
