"""climb.json: the end-to-end result of a climb, next to its trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stepladder.records.files import Json
from stepladder.records.ladder import Aim, Interval
from stepladder.records.profile import EpochRange, Provenance


class RatioFrom(StrEnum):
    """Measurement from which the speed-up of a climb is quoted.

    PAIRS: blocks of both, timed in turn after the climb. TIMINGS: other timings of both. CHAIN: the
    product of the kept rungs' gains, as it is smaller. SHORTER: the pairs, with the shorter timing
    of the original job; only if no kept rung has a measured gain.
    """

    PAIRS = "pairs"
    TIMINGS = "timings"
    CHAIN = "chain"
    SHORTER = "shorter"


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The original job.

    Attributes:
        total_s: time to a trained model.
        measured_epochs: epochs that were timed.
        epochs: epochs until the recipe ends.
        epochs_are: provenance of epochs.
        epoch_range: epochs until early stopping ends it, over seeds; None: they are fixed, or it
            was run to its end.
        low_s, high_s: total_s at the ends of this range; None: as above.
        global_batch_size: examples of an optimizer step.
        is_extrapolated: whether total_s is extrapolated from fewer epochs.
        runs_s: the timings before and after the climb. total_s is the one in pairs with the
            result, and without pairs their mean; if they differ by more than 25 %, the shorter one.
            For a short job a timing is a whole run. Empty if it was timed once.
        val_accuracy, test_accuracy: in [0, 1]; None: not measured, or no classes.
        test_loss: mean over the test examples; None: not measured, or not finite.
        provenance: of the accuracies; REPLAYED or MEASURED.
    """

    total_s: float
    measured_epochs: float | None = None
    epochs: float | None = None
    epochs_are: Provenance | None = None
    epoch_range: EpochRange | None = None
    low_s: float | None = None
    high_s: float | None = None
    global_batch_size: int | None = None
    is_extrapolated: bool = False
    runs_s: tuple[float, ...] = ()
    val_accuracy: float | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    provenance: Provenance | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """The training with all kept rungs, timed end to end.

    Attributes:
        total_s: time to a trained model, including one-time work, without the final evaluation.
        epochs: epochs until it stopped.
        val_accuracy, test_accuracy: in [0, 1]; None: not measured, or no classes.
        test_loss: mean over the test examples; None: not measured, or not finite.
        one_time_s: seconds of total_s outside of the training loop, by name: precomputed features,
            the decoded copy, compiled code.
        paired_s: the same time from blocks in turn with the original job; None: not measured.
    """

    total_s: float
    paired_s: float | None = None
    epochs: float | None = None
    val_accuracy: float | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    one_time_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PhaseLoad:
    """How much of the machine other processes used during a phase of a climb.

    Attributes:
        name: trials, training or pairs.
        seconds: length of the phase.
        cores_missing: mean number of this process's cores that others used.
    """

    name: str
    seconds: float
    cores_missing: float


@dataclass(frozen=True, kw_only=True)
class JointChange:
    """Change of held-out metrics by all kept rungs together, compared with the original job.

    Attributes:
        accuracy: change in accuracy, in [-1, 1]; None: not known, or no classes.
        loss: change of the mean held-out loss; negative is better.
        num_trainings: number of trainings of each recipe.
        is_replayed: whether only heads were trained, on features.
        undone: rungs that were undone because they lost too much accuracy, in order.
        unsure: a warning if the estimate is within max_accuracy_loss but its bound is not, else
            None.
        why_not: why the change is not known; None: it is.
    """

    accuracy: Interval | None = None
    loss: Interval | None = None
    num_trainings: int = 0
    is_replayed: bool = False
    undone: tuple[str, ...] = ()
    unsure: str | None = None
    why_not: str | None = None


@dataclass(frozen=True, kw_only=True)
class FitErrors:
    """Training and held-out error of a recipe.

    Attributes:
        training, held_out: error rates, in [0, 1]; without classes mean losses. Means over
            trainings, both in evaluation mode without augmentation.
        training_sem: standard error of the training error.
        gap_sem: standard error of the difference.
        target: lowest achievable error according to the user.
        num_held_out: number of distinct held-out examples.
        is_loss: whether they are losses.
    """

    training: float
    held_out: float
    training_sem: float
    gap_sem: float
    target: float = 0.0
    num_held_out: int = 0
    is_loss: bool = False


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """The next step beyond this machine: predicted, not tried.

    Attributes:
        rung: name of the rung.
        gain: predicted speed-up; None: not predicted.
        gain_low, gain_high: its range, if it depends on when early stopping ends training; None: it
            does not.
        text: the step in one sentence.
    """

    rung: str
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class ClimbSummary:
    """Summary of a climb.

    Attributes:
        baseline, result: the original job and the final one; None: not reached.
        climb_s: seconds of all profiles and trials.
        num_test: number of test examples, evaluated once for baseline and result.
        are_pictures: whether it is the built-in job, whose examples are pictures.
        test_change: change in test accuracy, paired by example, in [-1, 1].
        loss_change: change in mean test loss; negative is better.
        learns_alike: whether the kept rungs change only rounding, so that baseline and result
            differ like two trainings of one recipe.
        why_not_compared: why the original job was not evaluated on test; None: it was.
        together: change against the original job, tested again at the end; None if fewer than two
            kept rungs can lose accuracy.
        speedup: time to a trained model of the baseline divided by that of the result: measured in
            pairs after the climb, or the smallest of several measurements that disagree.
        speedup_from: the measurement from which it is; None: unknown.
        speedup_bounds: the same with its bounds; None: they are not known.
        over_default: the speed-up against what `train` does by default, if the original job
            switches that off; from the gains of the kept rungs that are not part of it. None: the
            original job is the default, or the gains are not known.
        speedup_low, speedup_high: the ratio at the ends of the original job's range of epochs, over
            seeds; None: its epochs are known.
        num_pairs: number of pairs.
        paired: the ratio that the pairs gave; None: no pair was timed.
        why_no_pairs: why none were timed; None: they were, or nothing was kept.
        chain: product of the measured gains of the kept rungs; None: none was measured.
        has_other_chain: whether the product is another ratio than that of the timings, beyond both
            bounds; without pairs, by more than 25 %.
        loads: other processes' use of the machine, by phase.
        is_as_written: whether nothing was kept, so that the result is the original job.
        next: the next step beyond this machine.
        untried: rungs that were not tried, or not confirmed, because the budget ended.
        num_from_ledger: number of verdicts from earlier climbs.
        budget_s: time limit; None: none.
        machine: the machine of the timings: processor, cores, instruction set, threads of both,
            and how idle threads wait.
        max_accuracy_loss, min_gain: thresholds of the verdicts.
        try_all: whether rungs were tried regardless of the predicted gain.
        why_no_advice: why the climb ended after the last kept rung; None: it ran to the end.
        max_cache_bytes: how much a rung was allowed to write.
        prices: digest of the user's list of GPUs; None: the built-in list was used.
        aim: the aim of the tried rungs: speed-ups, or remedies for a poor fit.
        fit_before, fit_after: if accuracy was the aim, the errors of the original job and of the
            result; None: not measured.
    """

    baseline: Baseline | None = None
    result: Result | None = None
    climb_s: float | None = None
    num_test: int = 0
    are_pictures: bool = False
    test_change: Interval | None = None
    loss_change: Interval | None = None
    learns_alike: bool = False
    why_not_compared: str | None = None
    together: JointChange | None = None
    speedup: float | None = None
    speedup_from: RatioFrom | None = None
    speedup_bounds: Interval | None = None
    over_default: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    num_pairs: int = 0
    paired: Interval | None = None
    why_no_pairs: str | None = None
    chain: Interval | None = None
    has_other_chain: bool = False
    loads: tuple[PhaseLoad, ...] = ()
    is_as_written: bool = False
    next: NextStep | None = None
    untried: tuple[str, ...] = ()
    num_from_ledger: int = 0
    budget_s: float | None = None
    machine: Mapping[str, Json] = field(default_factory=dict)
    max_accuracy_loss: float | None = None
    min_gain: float | None = None
    try_all: bool = False
    why_no_advice: str | None = None
    max_cache_bytes: int | None = None
    prices: str | None = None
    aim: Aim = Aim.TIME
    fit_before: FitErrors | None = None
    fit_after: FitErrors | None = None
