"""What the ladder writes down: predictions, trials and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stepladder.records.files import Json
from stepladder.records.profile import Provenance, TrainingTime


class Aim(StrEnum):
    """What a rung is for."""

    TIME = "time"
    MEMORY = "memory"
    ACCURACY = "accuracy"


class Exactness(StrEnum):
    """How far a rung may change what is learnt.

    bitwise: not by a bit. rounding: only as far as other orders of summation do. statistical: the
    result is another one, and has to be shown to be no worse.
    """

    BITWISE = "bitwise"
    ROUNDING = "rounding"
    STATISTICAL = "statistical"


class Decision(StrEnum):
    """What became of a rung.

    kept, dropped, undecided: after a trial. not_here: it cannot apply, in words. skipped: its
    predicted gain is below what is asked for. untried: the budget ended before.
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
    """What a rung is expected to give, written down before it is tried.

    Attributes:
        rung: its name.
        gain: time to a trained model now over that with the rung; above 1 is faster.
        time: the predicted parts; None where only a bound is known.
        accuracy_gain: change in accuracy, in [-1, 1]; None: no statement.
        memory_frac: peak memory with the rung over that without; None: no statement.
        provenance: MODELLED or REPLAYED.
        inputs: the numbers that it rests on, by name.
        note: what it assumes, in a sentence; empty where the numbers say all.
    """

    rung: str
    gain: float
    time: TrainingTime | None = None
    accuracy_gain: float | None = None
    memory_frac: float | None = None
    provenance: Provenance
    inputs: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One training to its end, judged on examples that it never saw.

    Attributes:
        seed: of weights, order and dropout.
        fold: index of the held-out fold; None: the validation split itself.
        epochs: until it stopped.
        num_validations: until it stopped.
        rows: held-out examples, rows of the pool of train and validation.
        losses: plain loss of each held-out example, in the order of rows.
        hits: whether each was classified rightly; None without classes.
        train_loss, train_accuracy: of as many of the examples that it learnt from, measured alike;
            None: not measured, or without classes.
        provenance: REPLAYED (the head alone on features) or MEASURED.
        why_not: why it gave no result (diverged, out of memory, ...); None: it did.
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
    """What a trial decided.

    Attributes:
        decision: kept, dropped or undecided.
        reason: in words that stand in a table cell.
        speed: time before over time after; None where it was not measured.
        accuracy: change in accuracy, in [-1, 1]; None where outputs are equal to rounding, or
            there are no classes.
        loss: change of the mean held-out loss; negative is better.
        exactness: what was found: "equal", "same to 1e-5", or empty.
        num_epochs: epochs with the rung, mean over seeds.
        is_replayed: whether epochs and accuracy come from replay on features.
        num_trainings: trainings of each recipe that accuracy and loss rest on; 0: none, or not
            written down.
        gap_before, gap_after: generalisation gap, mean over trainings: training less held-out
            accuracy, in [-1, 1]; without classes held-out less training loss; None: not measured.
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
    """One line of trials.jsonl: a rung, what was expected of it, and what it gave.

    Attributes:
        rung, level: its name, and its step in the order of the ladder.
        change: options that it changes, by dotted name, to [before, after].
        prediction: None where the rung was not predicted.
        before, after: measured parts of the time, means over blocks.
        before_s, after_s: time to a trained model by block, paired by position.
        before_epochs, after_epochs: by seed, paired by position.
        before_accuracy, after_accuracy: share of held-out examples that each training classifies
            rightly, in [0, 1], paired by position.
        verdict: what was decided; for a rung that was not tried, why.
        took_s: seconds that the trial cost.
        seed: of the trainings, the folds and the bootstrap.
        commit: of the code, or the package's version.
        machine: key of the machine.
        job: key of the job: task, data, model and baseline.
        recipe: key of the recipe before.
        options: key of the options that decide a verdict; empty: not written down.
        budget_s: of the climb; None: no limit.
        cores_missing: cores of this process that others took meanwhile, on average.
        is_undone: a kept trial once more, dropped after all: by the test of all that was kept, or
            as its recipe could not be measured. No measurement of its own.
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
