"""Parsed training logs of any origin, and the results of an audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stepladder.records.findings import Finding

STILL_RUNNING, CUT_SHORT = "still_running", "cut_short"  # stop reasons of an unfinished run


class LogFormat(StrEnum):
    """Format of a log."""

    KERAS_OUTPUT = "keras_output"
    KERAS_HISTORY = "keras_history"
    LIGHTNING_CSV = "lightning_csv"
    TRAINER_STATE = "trainer_state"
    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"
    STEPLADDER = "stepladder"
    CSV = "csv"
    TEXT = "text"


class SizeSource(StrEnum):
    """Source of the number of held-out examples."""

    GIVEN = "given"
    LOGGED = "logged"
    INFERRED = "inferred"


class Relation(StrEnum):
    """How the examples of two accuracies are related.

    SAME_EXAMPLES: the log states that they are the same set.
    OTHER_EXAMPLES: sets of different sizes or names.
    NOT_SAID: sets of equal size, or of sizes that may be equal, because an inferred one may be a
        multiple; the log does not state whether they are the same.
    """

    SAME_EXAMPLES = "same_examples"
    OTHER_EXAMPLES = "other_examples"
    NOT_SAID = "not_said"


@dataclass(frozen=True, kw_only=True)
class LogRow:
    """An evaluation in a training log, and the training since the previous one. None: not logged.

    Attributes:
        epoch: completed epochs; 1 after the first.
        step: completed optimizer steps.
        samples_seen: training examples used.
        elapsed_s: seconds since the start.
        train_loss, train_accuracy: as logged, usually a mean over the epoch in training mode.
        val_loss, val_loss_sem, val_accuracy: held-out; accuracies are in [0, 1].
        score: the metric named by `--metric`, if it is not one of these.
        learning_rate: at the end of the row.
        data_wait_frac: fraction of the time spent waiting for data, in [0, 1].
    """

    epoch: float | None = None
    step: int | None = None
    samples_seen: float | None = None
    elapsed_s: float | None = None
    train_loss: float | None = None
    train_accuracy: float | None = None
    val_loss: float | None = None
    val_loss_sem: float | None = None
    val_accuracy: float | None = None
    score: float | None = None
    learning_rate: float | None = None
    data_wait_frac: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """A training according to its log.

    Attributes:
        name: name in tables.
        path: the file or folder, as given by the user.
        rows: its evaluations, in order, including rows without held-out metrics.
        digits: decimals of its accuracies, as fractions; None if they are full floats.
        num_train, num_val, num_test: number of examples, if logged.
        sizes_found: numbers of examples of its sets in the order of the log, which does not name
            their splits; training is first.
        val_set: name of the held-out set, if logged.
        epochs: completed epochs; None: not logged.
        first_epoch, num_logged: if the log begins after the first epoch of the training: the first
            one in it, and the number of those in it; otherwise None.
        max_epochs: planned epochs; None: not logged.
        total_s: duration in seconds; None: not logged.
        test_accuracy, test_loss: on a separate test set.
        stop_reason: from the log, or STILL_RUNNING or CUT_SHORT for a stepladder run; None: not
            logged.
        ended_by: the error that ended the program, or the state of a run that failed; None: neither
            is logged.
        kept: validation of the final weights of a stepladder run; if it has not ended, of the best
            or the last validated ones; None: not known.
        num_unreadable: cells that should be numbers but are not.
        not_finite: epoch and step of the line from which on a loss is not finite; None: all are.
        last_finite: the last training loss before that line, with its epoch and step.
        resumed_at: epochs, or steps if no epochs are logged, at which the training was resumed.
        is_val_test: the held-out metrics of the rows are of the test set; no validation is logged.
        score_name: name of the metric in `score`; is_score_share: it is a fraction of examples;
            is_score_fraction: it lies in [0, 1], as F1 and mAP do.
        accuracy_column: name of the column of `val_accuracy`; None: not logged, or a run of ours.
        data_wait_frac: over the whole run.
        settings: options of the run, if logged.
        notes: what could not be read or was assumed, one sentence each.
        damaged: the notes about damaged files.
    """

    name: str
    path: str
    format: LogFormat
    rows: tuple[LogRow, ...] = ()
    digits: int | None = None
    num_train: int | None = None
    num_val: int | None = None
    num_test: int | None = None
    sizes_found: tuple[int, ...] = ()
    val_set: str | None = None
    epochs: float | None = None
    first_epoch: float | None = None
    num_logged: int | None = None
    max_epochs: int | None = None
    total_s: float | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    stop_reason: str | None = None
    ended_by: str | None = None
    is_val_test: bool = False
    score_name: str | None = None
    is_score_share: bool = False
    is_score_fraction: bool = False
    accuracy_column: str | None = None
    data_wait_frac: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    kept: LogRow | None = None
    num_unreadable: int = 0
    not_finite: LogRow | None = None
    last_finite: LogRow | None = None
    resumed_at: tuple[float, ...] = ()

    @property
    def num_epochs(self) -> float | None:
        """Return the number of epochs in the log; None: not logged."""
        return self.epochs if self.num_logged is None else self.num_logged


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference between two results, and whether it is more than noise.

    Attributes:
        first, second: names of the runs.
        metric: the metric compared.
        change: second minus first.
        sem: standard error of the change, assuming independent sets of examples.
        in_sems: change divided by sem; None: sem is not known.
        in_examples: change in examples of the smaller set, or of the larger one if the sets may be
            the same.
        relation: how the examples of both are related.
        is_clear: whether the change is more than two standard errors.
    """

    first: str
    second: str
    metric: str
    change: float
    sem: float | None
    in_sems: float | None
    in_examples: float | None
    relation: Relation
    is_clear: bool | None
    words: str


@dataclass(frozen=True, kw_only=True)
class AuditedRun:
    """The audit of one training.

    Attributes:
        log: the parsed log.
        metric: the metric that it is judged by.
        result: the held-out value that would be reported: the best of the run's evaluations.
        result_sem: its standard error from the number of held-out examples; None: not known.
        one_example: change of the metric by one example, 1 / n; None: not known.
        num_val, num_val_from: number of held-out examples, and its source.
        best_epoch, best_step: epoch and step of the best evaluation; None: not logged.
        findings: in a fixed order.
    """

    log: RunLog
    metric: str | None
    result: float | None
    result_sem: float | None
    one_example: float | None
    num_val: int | None
    num_val_from: SizeSource | None
    best_epoch: float | None
    findings: tuple[Finding, ...]
    best_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Audit:
    """audit.json: the audit of training logs.

    Attributes:
        runs: one for each training in the logs.
        differences: between trainings, each compared with the previous one.
        unreadable: logs without a training, one sentence each.
    """

    runs: tuple[AuditedRun, ...]
    differences: tuple[Difference, ...]
    unreadable: tuple[str, ...] = ()
