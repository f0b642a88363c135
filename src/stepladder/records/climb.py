"""climb.json: what a climb gave from end to end, beside the trials that led there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stepladder.records.files import Json
from stepladder.records.ladder import Aim, Interval
from stepladder.records.profile import Provenance


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The job as it was written.

    Attributes:
        total_s: time to a trained model.
        measured_epochs: epochs that were timed.
        epochs: epochs until the recipe ends.
        epochs_are: where that number comes from.
        global_batch_size: examples of an optimiser step.
        is_extrapolated: total_s is more than what was timed.
        runs_s: total_s as found before the climb and after it, whose mean it is, or the shorter
            where they are more than twice apart; of a short job each is a whole run. Empty: it was
            found once.
        val_accuracy, test_accuracy: in [0, 1]; None: not measured, or no classes.
        test_loss: mean over the test examples; None: not measured, or not finite.
        provenance: of the accuracies; REPLAYED or MEASURED.
    """

    total_s: float
    measured_epochs: float | None = None
    epochs: float | None = None
    epochs_are: Provenance | None = None
    global_batch_size: int | None = None
    is_extrapolated: bool = False
    runs_s: tuple[float, ...] = ()
    val_accuracy: float | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    provenance: Provenance | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """The training with everything that was kept, timed from end to end.

    Attributes:
        total_s: time to a trained model, one-time work included, the final evaluation not.
        epochs: until it stopped.
        val_accuracy, test_accuracy: in [0, 1]; None: not measured, or no classes.
        test_loss: mean over the test examples; None: not measured, or not finite.
        one_time_s: seconds of total_s that lie outside the training's own clock, by name: features
            that it found ready, the decoded copy, compiled code.
    """

    total_s: float
    epochs: float | None = None
    val_accuracy: float | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    one_time_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JointChange:
    """What all kept rungs together change against the job as written, on held-out examples.

    Attributes:
        accuracy: change in accuracy, in [-1, 1]; None: not known, or no classes.
        loss: change of the mean held-out loss; negative is better.
        num_trainings: trainings of each that it rests on.
        is_replayed: whether heads learnt from features.
        undone: rungs that were undone because too much was lost, the first one first.
        unsure: that more than max_accuracy_loss may be lost, in words, where the estimate is within
            it and the bound is not; None: elsewhere.
        why_not: why it is not known; None: it is.
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
    """What a recipe's trainings get wrong, of what they learnt from and of what they did not.

    Attributes:
        training, held_out: shares of examples, in [0, 1]; without classes mean losses. Means over
            trainings, both in evaluation mode without augmentation.
        training_sem: standard error of the training error.
        gap_sem: that of the difference between both.
        target: error that cannot be had lower, as the user says.
        num_held_out: different examples behind held_out.
        is_loss: they are losses.
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
    """What would come next, beyond this machine: predicted, never tried.

    Attributes:
        gain: predicted time now over time then; None: not predicted.
        text: in a sentence.
    """

    rung: str
    gain: float | None = None
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class ClimbSummary:
    """The whole climb.

    Attributes:
        baseline, result: the two ends; None: not reached.
        climb_s: seconds that all profiles and trials took.
        num_test: test examples, read once for both ends.
        are_pictures: the job is the built-in one, whose examples are pictures.
        test_change: change in test accuracy, paired by example, in [-1, 1].
        loss_change: change in mean test loss; negative is better.
        learns_alike: what was kept changes no more than rounding, so that both ends differ as two
            trainings of one recipe do.
        why_not_compared: why the job as written was not judged on test; None: it was.
        together: the loss against the job as written, tested again at the end; None: fewer than two
            kept rungs may lose any.
        speedup: baseline over result in time to a trained model.
        is_as_written: nothing was kept, so that both ends are the same job.
        next: the next step beyond this machine.
        untried: rungs that the budget left untried, or without the second look that was due.
        num_from_ledger: verdicts that were taken from earlier climbs.
        budget_s: None: no limit was given.
        machine: what the times hold for.
        max_accuracy_loss, min_gain: what the verdicts were asked to keep to.
        try_all: rungs were tried whatever gain was predicted.
        why_no_advice: why it went no further than the last kept rung; None: it went on to the end.
        max_cache_bytes: what a rung was allowed to write.
        prices: digest of the user's list of GPUs; None: our own was used.
        aim: what was tried: speed-ups, or remedies for a poor fit.
        fit_before, fit_after: where accuracy was the aim, the errors of the job as written and of
            the result; None: not measured.
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
