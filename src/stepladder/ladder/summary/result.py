"""Result of a climb: time and accuracy of the original job and of the final training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from stepladder.config.choices import Split
from stepladder.config.recipe import Recipe
from stepladder.errors import UsageError
from stepladder.ladder.advise import advise_on
from stepladder.ladder.climb import Climb
from stepladder.ladder.keys import learning_key, prices_key
from stepladder.ladder.lab import Lab
from stepladder.ladder.limits.budget import allows_after
from stepladder.ladder.limits.guard import TrialFailed, faults_told
from stepladder.ladder.summary.climb_summary import FAR_APART
from stepladder.ladder.summary.end_to_end import (
    SAME_STEPS,
    EndToEnd,
    chain_of,
    over_default,
    quoted_ratio,
    time_in_pairs,
    unpaired_ratio,
)
from stepladder.ladder.summary.final_training import epochs_of, outside_clock_s, run_whole
from stepladder.ladder.summary.machine import machine_of
from stepladder.ladder.timing.epoch_range import predict_over_seeds, scaled_s, with_bounds
from stepladder.measuring.blocks.block import mean_times
from stepladder.measuring.blocks.workload import BlockTimes, Workload, training_time
from stepladder.records import read_json
from stepladder.records.climb import (
    Baseline,
    ClimbSummary,
    NextStep,
    PhaseLoad,
    RatioFrom,
    Result,
)
from stepladder.records.ladder import Decision, Interval, Outcome, Prediction
from stepladder.records.profile import Profile, Provenance, TrainingTime
from stepladder.rungs.devices.gpu import UseGpu
from stepladder.stats import Pairs, paired_change
from stepladder.training.output.finish import SUMMARY_FILE
from stepladder.training.output.results import Judged, read_predictions
from stepladder.training.output.wording import rough_time

CLIMB_FILE: Final = "climb.json"
_BASELINE_FRAC: Final = 0.015  # of the budget, for measured epochs of the original job
_LOOK: Final = 0.5  # of that before the climb, and as much after it
_BASELINE_EPOCHS: Final = 3.0
_WHOLE_S: Final = 20.0
"""Seconds up to which the original job is run in full, so that both are measured alike."""
_WHOLE_FRAC: Final = 0.25
"""Of the time left in the budget; a short job that takes more is run at the end of the climb."""
_MIN_COMPARED: Final = 2


def measure_baseline(climbing: Climb) -> Baseline:
    """Time the original job: a short one in full, a long one for up to three epochs.

    An extrapolated time includes the one-time work and the checkpoints of the profile.

    Raises:
        UsageError: if training would end by its time limit, as a faster job would train longer.
    """
    lab, profile, recipe = climbing.lab, climbing.profile, climbing.recipe
    epochs, num_validations, epochs_are = lab.expected_epochs(recipe)
    forecast = replace(profile.time, epochs=epochs, num_validations=num_validations)
    if epochs_are is not Provenance.ASSUMED:
        refuse_end_by_clock(recipe, forecast)
    baseline = Baseline(
        total_s=forecast.total_s,
        measured_epochs=0.0,
        epochs=epochs,
        epochs_are=epochs_are,
        epoch_range=lab.epoch_range(recipe),
        global_batch_size=recipe.batch.global_batch_size,
        is_extrapolated=True,
    )
    if forecast.total_s <= lab.allowed_s(_WHOLE_FRAC):
        with suppress(TrialFailed), faults_told("full run failed:"):
            baseline = _whole(lab, profile, baseline)
    if baseline.is_extrapolated:
        baseline = _extrapolated(lab, profile, baseline)
    return with_bounds(baseline, profile)


def _extrapolated(lab: Lab, profile: Profile, baseline: Baseline) -> Baseline:
    """Time a part of the original job, and extrapolate it to the baseline's length.

    The total combines this timing with earlier ones; see `of_looks`.
    """
    recipe, epochs = lab.job.recipe, baseline.epochs or 0.0
    share = epochs / profile.time.epochs if profile.time.epochs else 1.0
    times = _baseline_block(lab, profile)
    time = training_time(
        times,
        batch_size=recipe.batch.global_batch_size,
        num_train=profile.num_train,
        num_val=profile.num_val,
        epochs=epochs,
        num_validations=profile.time.num_validations * share,
        one_time_s=profile.time.one_time_s,
        checkpoint_s=profile.time.checkpoint_s,
    )
    runs_s = (*baseline.runs_s, time.total_s)
    measured_epochs = (baseline.measured_epochs or 0.0) + times.num_steps / time.steps_per_epoch
    return replace(
        baseline, total_s=of_looks(runs_s), runs_s=runs_s, measured_epochs=measured_epochs
    )


def of_looks(runs_s: Sequence[float]) -> float:
    """Return one time from several timings of a job, in seconds: their mean.

    Other processes only make a job slower: if two timings differ by more than 25 %, the shortest is
    used, so that their load does not count as a gain of the climb.
    """
    return min(runs_s) if max(runs_s) > FAR_APART * min(runs_s) else fmean(runs_s)


def refuse_end_by_clock(recipe: Recipe, forecast: TrainingTime) -> None:
    """Raise an error if the job would end by its time limit.

    Raises:
        UsageError: a faster job would train longer instead.
    """
    limit_s = recipe.schedule.max_time_s
    if limit_s is None or forecast.total_s <= limit_s:
        return
    raise UsageError(
        f"the original job would hit its time limit: {forecast.epochs:,.0f} epochs take "
        f"{rough_time(forecast.total_s)}, and schedule.max_time_s is {rough_time(limit_s)}",
        where="schedule.max_time_s",
        why="A faster job would then train for longer, not finish earlier.",
        fix="Limit the epochs instead: --schedule.max-time-s none --schedule.max-epochs NUMBER",
    )


def _baseline_block(lab: Lab, profile: Profile) -> BlockTimes:
    recipe = lab.job.recipe
    most_s = min(lab.budget_s * _BASELINE_FRAC, _BASELINE_EPOCHS * profile.time.epoch_s)
    min_s = _LOOK * most_s
    workload = Workload(
        recipe, lab.task, lab.sources, device=lab.device, cache=lab.cache / "baseline"
    )
    blocks: list[BlockTimes] = []
    try:
        while not blocks or sum(block.wall_s for block in blocks) < min_s:
            blocks.append(workload.block(min(min_s, lab.job.ladder.block_s)))
        return mean_times(blocks)
    finally:
        workload.close()


def _whole(lab: Lab, profile: Profile, baseline: Baseline) -> Baseline:
    """Measure a short baseline in full; return it unchanged if it is long or cannot be run."""
    if baseline.total_s > max(_WHOLE_S, _BASELINE_FRAC * lab.budget_s):
        return baseline
    whole = run_whole(lab, profile)
    if whole is None:
        return baseline
    return replace(
        baseline,
        total_s=whole.total_s,
        runs_s=(whole.total_s,),
        measured_epochs=whole.epochs,
        epochs=whole.epochs,
        epochs_are=Provenance.MEASURED,
        epoch_range=None,
        is_extrapolated=False,
    )


def _at_the_end(climbing: Climb, baseline: Baseline) -> Baseline:
    """Measure the baseline again next to the result; an error in it does not lose the result."""
    lab, profile = climbing.lab, climbing.profiles[0]
    try:
        with faults_told("the original job failed:"):
            has_time = allows_after(lab, baseline.total_s)
            is_due = baseline.is_extrapolated and has_time
            whole = _whole(lab, profile, baseline) if is_due else baseline
            if whole != baseline or climbing.recipe == lab.job.recipe:
                return whole
            if baseline.is_extrapolated:
                is_dear = lab.job.recipe.device.compile  # one timing would have to compile again
                return baseline if is_dear else _extrapolated(lab, profile, baseline)
            return _once_more(lab, profile, baseline) if has_time else baseline
    except TrialFailed:
        pass
    return baseline


def _once_more(lab: Lab, profile: Profile, baseline: Baseline) -> Baseline:
    """Run a short original job again, next to the result: the machine's load may have changed."""
    whole = run_whole(lab, profile)
    if whole is None:
        return baseline
    runs_s = (*baseline.runs_s, whole.total_s)
    return replace(baseline, total_s=of_looks(runs_s), runs_s=runs_s)


def with_accuracy(climbing: Climb, baseline: Baseline) -> Baseline:
    """Add the validation accuracy of the original job, if that costs little.

    It is trained once in full with its own seed, if that is predicted to take no longer than timing
    the job may take.
    """
    lab, recipe = climbing.lab, climbing.recipe
    if lab.sources.val is None or not lab.can_show(recipe):
        return baseline
    found = lab.judge(recipe, Split.VAL)
    if found is None or found.why_not is not None:
        return baseline
    return replace(baseline, val_accuracy=_mean_hit(found), provenance=found.provenance)


def result_of(
    lab: Lab,
    climbing: Climb,
    baseline: Baseline,
    folder: Path,
    *,
    climb_s: float,
    found_features_s: float,
    loads: tuple[PhaseLoad, ...] = (),
) -> ClimbSummary:
    """Compare the original job with the final training; each is evaluated on test once.

    Args:
        folder: holds the finished training with all kept rungs.
        climb_s: seconds from the first measurement to the last verdict.
        found_features_s: seconds that computing the features took that were already cached; they
            count as part of the training.
        loads: other processes' use of the machine, by phase so far.
    """
    summary = read_json(folder / SUMMARY_FILE)
    is_as_written = climbing.recipe == lab.job.recipe
    features = {"features": found_features_s} if found_features_s else {}
    one_time_s = features | _outside_clock_s(climbing)
    total_s = float(summary["train_s"]) + sum(one_time_s.values())
    before, why_not_compared = _judged_as_written(lab)
    baseline = _with_validation(lab, baseline, before)
    epochs = epochs_of(summary, lab, climbing.recipe)
    if baseline.epochs_are is Provenance.ASSUMED:
        baseline = _of_known_length(baseline, climbing.profiles[0], before, epochs)
        if is_as_written:  # the result is this job, run to its end
            baseline = replace(baseline, epoch_range=None)
    timed = time_in_pairs(climbing, baseline, epochs=epochs)
    paired, why_no_pairs = (None, timed) if isinstance(timed, str) else (timed, SAME_STEPS)
    baseline = _beside_result(climbing, baseline, paired)
    num_pairs = len(paired.speed.before_s) if paired else 0
    chain = chain_of(climbing.trials)
    ratio = quoted_ratio(
        paired.speed.interval if paired else unpaired_ratio(baseline.total_s, total_s),
        chain,
        runs_s=baseline.runs_s if num_pairs else (baseline.total_s,),
        source=RatioFrom.PAIRS if num_pairs else RatioFrom.TIMINGS,
    )
    if ratio.source is RatioFrom.SHORTER:
        baseline = replace(baseline, total_s=min(baseline.runs_s))
    baseline = with_bounds(baseline, climbing.profiles[0])
    has_bounds = paired is not None or ratio.source is RatioFrom.CHAIN
    after = read_predictions(folder, Split.TEST)
    accuracy, loss = _changes(before, after)
    speedup = ratio.bounds.estimate
    low, high = _over_seeds(speedup, baseline)
    return ClimbSummary(
        baseline=replace(
            baseline,
            test_accuracy=_mean_hit(before),
            test_loss=_mean_loss(before),
            provenance=before.provenance if before is not None else baseline.provenance,
        ),
        result=Result(
            total_s=total_s,
            paired_s=paired.speed.after.total_s if paired else None,
            epochs=epochs,
            val_accuracy=summary.get("val_accuracy"),
            test_accuracy=summary.get("test_accuracy"),
            test_loss=summary.get("test_loss"),
            one_time_s=one_time_s,
        ),
        climb_s=climb_s,
        num_test=summary["num_test"],
        why_not_compared=why_not_compared,
        are_pictures=climbing.profile.is_built_in,
        test_change=accuracy,
        loss_change=loss,
        learns_alike=learning_key(climbing.recipe) == learning_key(lab.job.recipe),
        together=climbing.together,
        speedup=speedup,
        speedup_from=None if is_as_written else ratio.source,
        speedup_bounds=ratio.bounds if has_bounds else None,
        over_default=None if lab.job.recipe.auto else over_default(ratio.bounds, climbing.trials),
        speedup_low=low,
        speedup_high=high,
        num_pairs=num_pairs,
        paired=paired.speed.interval if paired and num_pairs else None,
        why_no_pairs=None if num_pairs else why_no_pairs or None,
        chain=chain,
        has_other_chain=ratio.is_other_chain,
        loads=(*loads, *((paired.load,) if paired else ())),
        is_as_written=is_as_written,
        next=_next_step(climbing),
        untried=_untried(climbing),
        num_from_ledger=climbing.num_from_ledger,
        budget_s=climbing.options.budget_s,
        machine=machine_of(climbing.profile, lab.job.recipe, climbing.recipe),
        max_accuracy_loss=climbing.options.max_accuracy_loss,
        min_gain=climbing.options.min_gain,
        try_all=climbing.options.try_all,
        why_no_advice=climbing.why_no_advice,
        max_cache_bytes=climbing.options.max_cache_bytes,
        prices=prices_key(climbing.options),
        aim=climbing.aim,
        fit_before=climbing.fit_of(lab.job.recipe),
        fit_after=climbing.fit_of(climbing.recipe),
    )


def _beside_result(climbing: Climb, baseline: Baseline, paired: EndToEnd | None) -> Baseline:
    """Return the baseline with its timing next to the result: from the pairs, else a new one."""
    if paired is None:
        return _at_the_end(climbing, baseline)
    total_s = paired.speed.before.total_s
    if not paired.speed.before_s:  # no timing of its own
        return replace(baseline, total_s=total_s)
    runs_s = (*(baseline.runs_s or (baseline.total_s,)), total_s)
    return replace(baseline, total_s=total_s, runs_s=runs_s)


def _over_seeds(speedup: float, baseline: Baseline) -> tuple[float | None, float | None]:
    """Return the speed-up at both ends of the original job's range of epochs; None: no range."""
    if baseline.low_s is None or baseline.high_s is None or not baseline.total_s > 0:
        return None, None
    per_s = speedup / baseline.total_s
    return per_s * baseline.low_s, per_s * baseline.high_s


def _untried(climbing: Climb) -> tuple[str, ...]:
    """Return the rungs that were not tried, or not tried again, for lack of time."""
    if climbing.why_no_advice is not None:
        return ()  # that is the reason, not time
    never = [t.rung for t in climbing.trials if t.verdict.decision is Decision.UNTRIED]
    return tuple(dict.fromkeys([*never, *climbing.left]))


def _judged_as_written(lab: Lab) -> tuple[Outcome | None, str | None]:
    """Evaluate the original job on test, or return why not; an error does not lose the result."""
    if lab.sources.test is None:
        return None, None
    try:
        with faults_told("the original job failed:"):
            found = lab.judge(lab.job.recipe, Split.TEST)
            if found is None and not allows_after(lab):
                return None, "not compared: the final training used up the budget"
            return found, lab.why_not_judged() if found is None else None
    except TrialFailed as failure:
        return None, f"not compared: {failure.what}"


def _with_validation(lab: Lab, baseline: Baseline, found: Outcome | None) -> Baseline:
    """Add the validation accuracy of the original job if it was trained anyway."""
    is_trained = found is not None and found.why_not is None
    if baseline.val_accuracy is not None or not is_trained or lab.sources.val is None:
        return baseline
    with suppress(TrialFailed), faults_told("the original job failed:"):
        return replace(baseline, val_accuracy=_mean_hit(lab.judge(lab.job.recipe, Split.VAL)))
    return baseline


def _of_known_length(
    baseline: Baseline, profile: Profile, before: Outcome | None, epochs_after: float
) -> Baseline:
    """Replace the assumed epochs of a baseline by those that are known at the end.

    Those of its own training; without one those of the result, which stops by the same rule.
    """
    is_known = before is not None and before.why_not is None
    epochs = before.epochs if before is not None and is_known else epochs_after
    if not baseline.epochs:
        return baseline
    of_known = partial(scaled_s, time=profile.time, share=epochs / baseline.epochs)
    return replace(
        baseline,
        total_s=of_known(baseline.total_s),
        runs_s=tuple(of_known(run_s) for run_s in baseline.runs_s),
        epochs=epochs,
        epoch_range=None if is_known else baseline.epoch_range,
        epochs_are=before.provenance if before is not None and is_known else Provenance.ASSUMED,
    )


def _outside_clock_s(climbing: Climb) -> dict[str, float]:
    """Return the one-time work of the result outside of its training's own clock.

    For a decoded copy that an earlier climb tried, the time from that trial.
    """
    recipe = climbing.recipe
    found = outside_clock_s(climbing.lab, climbing.profile, recipe)
    if recipe.data.decode_once and not climbing.lab.job.recipe.data.decode_once:
        times = [trial.after.one_time_s for trial in climbing.trials if trial.after]
        known = [time["store"] for time in times if "store" in time]
        found = {"store": known[-1]} | found if known else found
    return found


def _next_step(climbing: Climb) -> NextStep | None:
    """Return the best step that can be predicted but not tried here, for the final recipe.

    Without one that is worth it, a GPU for a machine that has none, as an upper bound.
    """
    if climbing.why_no_advice is not None:
        return None
    profile, recipe = climbing.profile, climbing.recipe
    advice = advise_on(profile, recipe, climbing.options, rungs=climbing.rungs)
    least = 1 + climbing.options.min_gain
    worth = [
        (one.prediction, one.reason)
        for one in advice.beyond
        if one.prediction is not None and one.prediction.gain_at_price >= least
    ]
    if worth:
        return _step(*max(worth, key=lambda pair: pair[0].gain))
    gpu = next((rung for rung in climbing.rungs if isinstance(rung, UseGpu)), None)
    if gpu is None or profile.device == "cuda" or profile.has_cuda:
        return None
    found = predict_over_seeds(lambda one: gpu.predict(one, recipe), profile)
    return _step(found, found.note) if found.inputs else None


def _step(found: Prediction, text: str) -> NextStep:
    return NextStep(
        rung=found.rung,
        gain=found.gain,
        gain_low=found.gain_low,
        gain_high=found.gain_high,
        text=text,
    )


def _changes(
    before: Outcome | None, after: Judged | None
) -> tuple[Interval | None, Interval | None]:
    """Compare accuracy and loss, paired by example; None if they cannot be compared."""
    if before is None or after is None or before.why_not is not None:
        return None, None
    losses = np.array(before.losses)
    if losses.shape != after.losses.shape or losses.size < _MIN_COMPARED:
        return None, None
    rows = np.arange(losses.size)
    loss = None
    if np.isfinite(losses).all() and np.isfinite(after.losses).all():
        loss = paired_change([Pairs(rows=rows, before=losses, after=after.losses)])
    if before.hits is None or after.hits is None:
        return None, loss
    hits = Pairs(rows=rows, before=np.array(before.hits, np.float64), after=after.hits)
    return paired_change([hits], is_share=True), loss


def _mean_hit(outcome: Outcome | None) -> float | None:
    if outcome is None or not outcome.hits:
        return None
    return sum(outcome.hits) / len(outcome.hits)


def _mean_loss(outcome: Outcome | None) -> float | None:
    if outcome is None or not outcome.losses:
        return None
    mean = sum(outcome.losses) / len(outcome.losses)
    return mean if math.isfinite(mean) else None
