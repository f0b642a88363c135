"""Both ends of a climb: what the job took as written, and what it takes now."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stepladder.config.choices import Split
from stepladder.ladder.advise import advise_on, gain_of
from stepladder.ladder.climb import Climb
from stepladder.ladder.lab import Lab
from stepladder.machine import environment
from stepladder.measure.workload import Workload, training_time
from stepladder.records import read_json, to_json
from stepladder.records.climb import Baseline, ClimbSummary, NextStep, Result
from stepladder.records.ladder import Decision, Interval, Outcome
from stepladder.stats import Pairs, paired_change
from stepladder.train.finish import SUMMARY_FILE
from stepladder.train.results import PREDICTIONS_FILE

CLIMB_FILE: Final = "climb.json"
_BASELINE_FRAC: Final = 0.03  # of the budget, for measured epochs of the job as written
_BASELINE_EPOCHS: Final = 3.0


def measure_baseline(climbing: Climb) -> Baseline:
    """Time the job as written for up to three epochs, or a share of the budget."""
    lab, profile, recipe = climbing.lab, climbing.profile, climbing.recipe
    epochs, num_validations, epochs_are = lab.expected_epochs(recipe)
    budget_s = lab.budget_s * _BASELINE_FRAC
    min_s = min(budget_s, _BASELINE_EPOCHS * profile.time.epoch_s)
    workload = Workload(
        recipe, lab.task, lab.sources, device=lab.device, cache=lab.cache / "baseline"
    )
    try:
        times = workload.block(min_s)
    finally:
        workload.close()
    time = training_time(
        recipe,
        times,
        num_train=profile.num_train,
        num_val=profile.num_val,
        epochs=epochs,
        num_validations=num_validations,
        one_time_s=profile.time.one_time_s,
    )
    measured_epochs = times.num_steps / time.steps_per_epoch
    return Baseline(
        total_s=time.total_s,
        measured_epochs=measured_epochs,
        epochs=time.epochs,
        epochs_are=epochs_are,
        global_batch_size=recipe.batch.global_batch_size,
        is_extrapolated=measured_epochs < time.epochs,
    )


def with_accuracy(climbing: Climb, baseline: Baseline) -> Baseline:
    """Add what the job as written gets right on the validation split, where that costs little.

    Trained once to its end with its own seed, if that is forecast to take no more than what timing
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
) -> ClimbSummary:
    """Compare both ends; the test pictures are read now, once for each.

    Args:
        folder: holds the finished training of what was kept.
        climb_s: seconds from the first measurement to the last verdict.
        found_features_s: what features took that the training found ready; they count as its own.
    """
    summary = read_json(folder / SUMMARY_FILE)
    total_s = float(summary["train_s"]) + found_features_s
    before = lab.judge(lab.job.recipe, Split.TEST)
    after = _judged(folder, Split.TEST)
    accuracy, loss = _changes(before, after)
    return ClimbSummary(
        baseline=replace(
            baseline,
            test_accuracy=_mean_hit(before),
            provenance=before.provenance if before is not None else baseline.provenance,
        ),
        result=Result(
            total_s=total_s,
            epochs=summary["epochs"],
            val_accuracy=summary.get("val_accuracy"),
            test_accuracy=summary.get("test_accuracy"),
        ),
        climb_s=climb_s,
        num_test=summary["num_test"],
        are_pictures=climbing.profile.is_built_in,
        test_change=accuracy,
        loss_change=loss,
        together=climbing.together,
        speedup=baseline.total_s / total_s,
        next=_next_step(climbing),
        untried=tuple(t.rung for t in climbing.trials if t.verdict.decision is Decision.UNTRIED),
        num_from_ledger=climbing.num_from_ledger,
        budget_s=climbing.options.budget_s,
        machine=to_json(environment()["cpu"]),
        max_accuracy_loss=climbing.options.max_accuracy_loss,
        min_gain=climbing.options.min_gain,
        try_all=climbing.options.try_all,
    )


def keys_in(cache: Path) -> frozenset[str]:
    """Name the features that lie ready in a folder."""
    return frozenset(path.parent.name for path in cache.glob("*/manifest.json"))


def seconds_of_used(cache: Path, keys: frozenset[str], *, since: float) -> float:
    """Add up what features took of which a training used those that lay ready; not those of test.

    Args:
        keys: that lay ready; a training that replaces another may have removed some.
        since: when the training began, in seconds of the epoch; a use moves the folder's mtime.
    """
    left = [cache / key for key in keys & keys_in(cache)]
    used = [path for path in left if path.stat().st_mtime >= since]
    manifests = [read_json(path / "manifest.json") for path in used]
    return sum(float(one["seconds"]) for one in manifests if one["split"] != Split.TEST)


def _next_step(climbing: Climb) -> NextStep | None:
    """Give the best of what can be predicted but not tried here."""
    advice = advise_on(climbing.profile, climbing.recipe, climbing.options, rungs=climbing.rungs)
    best = max(advice.beyond, key=gain_of, default=None)
    if best is None:
        return None
    return NextStep(rung=best.rung, gain=gain_of(best), text=best.reason)


@dataclass(frozen=True, kw_only=True)
class _Judged:
    losses: NDArray[np.float64]  # (n,), in the order of the split
    hits: NDArray[np.float64]  # (n,), 1 where it was classified rightly


def _judged(folder: Path, split: Split) -> _Judged | None:
    """Read what the finished training predicted on a split, in the order of the split."""
    rows = []
    with (folder / PREDICTIONS_FILE).open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["split"] == split:
                hit = line["label"] == line["predicted"]
                rows.append((int(line["id"]), float(line["loss"]), hit))
    if not rows:
        return None
    rows.sort()
    return _Judged(
        losses=np.array([loss for _, loss, _ in rows]),
        hits=np.array([hit for _, _, hit in rows], np.float64),
    )


def _changes(
    before: Outcome | None, after: _Judged | None
) -> tuple[Interval | None, Interval | None]:
    """Compare accuracy and loss picture by picture."""
    if before is None or after is None or before.why_not is not None:
        return None, None
    losses = np.array(before.losses)
    if losses.shape != after.losses.shape:
        return None, None
    rows = np.arange(losses.size)
    loss = paired_change([Pairs(rows=rows, before=losses, after=after.losses)])
    if before.hits is None:
        return None, loss
    hits = Pairs(rows=rows, before=np.array(before.hits, np.float64), after=after.hits)
    return paired_change([hits], is_share=True), loss


def _mean_hit(outcome: Outcome | None) -> float | None:
    if outcome is None or not outcome.hits:
        return None
    return sum(outcome.hits) / len(outcome.hits)
