"""Records of the ladder: predictions, trials and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stepladder.records.files import Json
from stepladder.records.profile import EpochRange, Provenance, TrainingTime


class Aim(StrEnum):
    """Aim of a rung."""

    TIME = "time"
    MEMORY = "memory"
    ACCURACY = "accuracy"


class Exactness(StrEnum):
    """How much a rung may change the result of training.

    bitwise: not at all. rounding: only by rounding errors, such as of another order of summation.
    statistical: the result differs and must be shown not to be worse.
    """

    BITWISE = "bitwise"
    ROUNDING = "rounding"
    STATISTICAL = "statistical"


class Decision(StrEnum):
    """Decision about a rung.

    kept, dropped, undecided: after a trial. not_here: it does not apply. skipped: its predicted
    gain is below the minimum. untried: the budget ended before.
    """

    KEPT = "kept"
    DROPPED = "dropped"
    UNDECIDED = "undecided"
    NOT_HERE = "not_here"
    SKIPPED = "skipped"
    UNTRIED = "untried"


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with a lower and an upper bound, each one-sided at `confidence`."""

    estimate: float
    low: float
    high: float
    confidence: float = 0.95


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted effect of a rung, saved before it is tried.

    Attributes:
        rung: its name.
        gain: predicted speed-up in time to a trained model; above 1 is faster.
        gain_low, gain_high: the lowest and the highest, if it depends on when early stopping ends
            training: 10th to 90th percentile over seeds; None: it does not.
        low_s, high_s: predicted time to a trained model at these ends; None: as above.
        time: the predicted parts; None if only a bound is known.
        accuracy_gain: change in accuracy, in [-1, 1]; None: not predicted.
        memory_frac: peak memory with the rung divided by that without; None: not predicted.
        price: per hour with the rung, over that without it; None: not known.
        provenance: MODELLED or REPLAYED.
        inputs: the numbers that it is computed from, by name.
        note: its assumptions, in one sentence; may be empty.
    """

    rung: str
    gain: float
    gain_low: float | None = None
    gain_high: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    time: TrainingTime | None = None
    accuracy_gain: float | None = None
    memory_frac: float | None = None
    price: float | None = 1.0
    provenance: Provenance
    inputs: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def gain_at_price(self) -> float:
        """The smaller of its gains in time and in cost; in time if the price is not known."""
        return self.gain / max(1.0, self.price or 1.0)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A complete training, evaluated on held-out examples.

    Attributes:
        seed: seed of weights, order and dropout.
        fold: index of the held-out fold; None: the validation split.
        epochs: epochs until it stopped.
        num_validations: validations until it stopped.
        rows: held-out examples, as rows of train and validation combined.
        losses: unregularised loss of each held-out example, in the order of rows.
        hits: whether each was classified correctly; None without classes.
        train_loss, train_accuracy: of the same number of training examples, measured in the same
            way; None: not measured, or without classes.
        provenance: REPLAYED (only the head, on features) or MEASURED.
        why_not: why there is no result (diverged, out of memory, ...); None: there is one.
    """

    seed: int
    fold: int | None
    epochs: float
    num_validations: float
    rows: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()
    hits: tuple[bool, ...] | None = None
    train_loss: float | None = None
    train_accuracy: float | None = None
    provenance: Provenance
    why_not: str | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict of a trial.

    Attributes:
        decision: kept, dropped or undecided.
        reason: the reason in words, for a table cell.
        speed: speed-up, time before divided by time after; None: not measured.
        accuracy: change in accuracy, in [-1, 1]; None if outputs are equal up to rounding, or
            without classes.
        loss: change of the mean held-out loss; negative is better.
        exactness: measured exactness: "equal", "same to 1e-5", or empty.
        num_epochs: epochs with the rung, mean over seeds.
        is_replayed: whether epochs and accuracy come from replay on features.
        num_trainings: number of trainings of each recipe behind accuracy and loss; 0: none, or not
            recorded.
        gap_before, gap_after: generalisation gap, mean over trainings: training minus held-out
            accuracy, in [-1, 1]; without classes held-out minus training loss; None: not measured.
    """

    decision: Decision
    reason: str
    speed: Interval | None = None
    accuracy: Interval | None = None
    loss: Interval | None = None
    exactness: str = ""
    num_epochs: float | None = None
    is_replayed: bool = False
    num_trainings: int = 0
    gap_before: float | None = None
    gap_after: float | None = None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One line of trials.jsonl: a rung, its prediction and its result.

    Attributes:
        rung, level: its name, and its level in the ladder.
        change: options that it changes, by dotted name, as [before, after].
        prediction: None if the rung was not predicted.
        before, after: measured parts of the time, means over blocks.
        before_s, after_s: time to a trained model by block, paired by position.
        before_epochs, after_epochs: by seed, paired by position.
        before_range, after_range: the epochs as a range over seeds; None: they are fixed.
        before_accuracy, after_accuracy: held-out accuracy of each training, in [0, 1], paired by
            position.
        verdict: the verdict; for a rung that was not tried, the reason.
        took_s: duration of the trial in seconds.
        seed: seed of the trainings, the folds and the bootstrap.
        commit: commit of the code, or the package's version.
        machine: key of the machine.
        job: key of the job: task, data, model and baseline.
        recipe: key of the recipe before.
        options: key of the options that affect a verdict; empty: not recorded.
        budget_s: budget of the climb; None: no limit.
        cores_missing: mean number of this process's cores that others used during the trial.
        is_undone: a kept trial that is now dropped: after the test of all kept rungs, or because
            its recipe could not be measured. Not a new measurement.
    """

    rung: str
    level: int
    change: Mapping[str, tuple[Json, Json]]
    prediction: Prediction | None
    before: TrainingTime | None = None
    after: TrainingTime | None = None
    before_s: tuple[float, ...] = ()
    after_s: tuple[float, ...] = ()
    before_epochs: tuple[float, ...] = ()
    after_epochs: tuple[float, ...] = ()
    before_range: EpochRange | None = None
    after_range: EpochRange | None = None
    before_accuracy: tuple[float, ...] = ()
    after_accuracy: tuple[float, ...] = ()
    verdict: Verdict
    took_s: float = 0.0
    seed: int = 0
    commit: str = ""
    machine: str = ""
    job: str = ""
    recipe: str = ""
    options: str = ""
    budget_s: float | None = None
    cores_missing: float = 0.0
    is_undone: bool = False
