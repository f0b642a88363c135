"""Logs of trainings as data, whoever wrote them, and what an audit says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stepladder.records.findings import Finding

STILL_RUNNING, CUT_SHORT = "still_running", "cut_short"  # stop reasons of a run without an end


class LogFormat(StrEnum):
    """Who wrote a log."""

    KERAS_OUTPUT = "keras_output"
    KERAS_HISTORY = "keras_history"
    LIGHTNING_CSV = "lightning_csv"
    TRAINER_STATE = "trainer_state"
    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"
    STEPLADDER = "stepladder"
    CSV = "csv"


class SizeSource(StrEnum):
    """Where the number of held-out examples comes from."""

    GIVEN = "given"
    LOGGED = "logged"
    INFERRED = "inferred"


class Relation(StrEnum):
    """What two accuracies stand on.

    SAME_EXAMPLES: the log says that it is the same set.
    OTHER_EXAMPLES: sets of different sizes or names.
    NOT_SAID: sets of one size; whether they are the same is not written.
    """

    SAME_EXAMPLES = "same_examples"
    OTHER_EXAMPLES = "other_examples"
    NOT_SAID = "not_said"


@dataclass(frozen=True, kw_only=True)
class LogRow:
    """One evaluation of a logged training, and the training before it. None: not logged.

    Attributes:
        epoch: whole epochs done; after the first it is 1.
        step: optimiser steps done.
        samples_seen: training examples used.
        elapsed_s: seconds since the start.
        train_loss, train_accuracy: as logged, usually a mean over the epoch in training mode.
        val_loss, val_loss_sem, val_accuracy: held-out; accuracies lie in [0, 1].
        score: the metric that `--metric` names, where it is none of these.
        learning_rate: at the end of the row.
        data_wait_frac: share of the time spent waiting for data, in [0, 1].
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
    """One training as its log tells it.

    Attributes:
        name: what tables call it.
        path: the file or folder, as it was given.
        rows: its evaluations, in order; rows without a held-out number are among them.
        digits: decimals that its accuracies are written with, as shares; None: as floats.
        num_train, num_val, num_test: examples, where the log says.
        val_set: name of the held-out set, where the log says.
        epochs: whole epochs done; None: not logged.
        max_epochs: epochs that it was to run; None: not logged.
        total_s: seconds that it took; None: not logged.
        test_accuracy, test_loss: on a set of its own.
        stop_reason: as the log says, of runs of ours also STILL_RUNNING or CUT_SHORT; None: it does
            not.
        kept: the validation of the weights that a run of ours ended with; of the best, or of the
            last that were validated, where it has not ended; None: not known.
        num_unreadable: cells that hold no number where one belongs.
        is_val_test: the held-out numbers of the rows are of the test set: no validation is logged.
        score_name: name of the metric in `score`; is_score_share: it is a share of examples.
        data_wait_frac: over the whole run.
        settings: options of the run, where the log has them.
        notes: what could not be read or had to be assumed, a sentence each.
        damaged: those of them that are of damaged files.
    """

    name: str
    path: str
    format: LogFormat
    rows: tuple[LogRow, ...] = ()
    digits: int | None = None
    num_train: int | None = None
    num_val: int | None = None
    num_test: int | None = None
    val_set: str | None = None
    epochs: float | None = None
    max_epochs: int | None = None
    total_s: float | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    stop_reason: str | None = None
    is_val_test: bool = False
    score_name: str | None = None
    is_score_share: bool = False
    data_wait_frac: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    kept: LogRow | None = None
    num_unreadable: int = 0


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two results, and whether what lies between them is more than noise.

    Attributes:
        first, second: names of the runs.
        metric: what was compared.
        change: second less first.
        sem: standard error of the change, as of two independent sets of examples.
        in_sems: change over sem; None: sem is not known.
        in_examples: change in examples of the smaller set.
        relation: what the two stand on.
        is_clear: the change lies outside two standard errors.
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
    """What an audit says of one training.

    Attributes:
        log: what was read.
        metric: what it is judged by.
        result: the held-out value that would be reported: the best of the run's evaluations.
        result_sem: its standard error by the number of held-out examples; None: not known.
        one_example: what one example is worth, 1 / n; None: not known.
        num_val, num_val_from: held-out examples, and where the number comes from.
        best_epoch: where the best evaluation was.
        findings: what was found, in a fixed order.
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


@dataclass(frozen=True, kw_only=True)
class Audit:
    """audit.json: what logs support.

    Attributes:
        runs: one for each training in the logs.
        differences: between trainings, each against the one before it.
        unreadable: logs that held no training, a sentence each.
    """

    runs: tuple[AuditedRun, ...]
    differences: tuple[Difference, ...]
    unreadable: tuple[str, ...] = ()
