"""Trainings beside each other: ours and those of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepladder.diagnosis.audit import audit
from stepladder.diagnosis.audit_differences import compare_results
from stepladder.diagnosis.audit_series import ACCURACY
from stepladder.diagnosis.audit_size import Sizes
from stepladder.diagnosis.compare_pairs import compare_pairs
from stepladder.errors import UsageError
from stepladder.records.audit import AuditedRun, LogFormat, RunLog
from stepladder.records.compare import ComparedRun, Comparison, OptionDifference, PairedResult
from stepladder.stats.shares import wilson_interval

MAX_RUNS = 9  # more lines cannot be told apart
_OWN_OPTIONS = ("run.", "prepare.", "ladder.")  # where a run is written, not what it is


def compare(
    logs: Sequence[str], *, sizes: Sizes | None = None, metric: str | None = None
) -> Comparison:
    """Compare trainings, each with the first.

    Args:
        logs: run folders, and logs of others, as `audit` reads them.
        sizes: of the sets, where the logs do not say.
        metric: the column that is judged; None: validation accuracy, else validation loss.

    Raises:
        UsageError: if there are fewer than two trainings in them, or more than nine.
        DataError: if none can be read.
    """
    found = audit(logs, sizes=sizes, metric=metric)
    num = len(found.runs)
    if not 2 <= num <= MAX_RUNS:
        few = num < 2
        words = f"{num} training{'s' if num != 1 else ''} in these logs"
        fix = "Name two or more." if few else f"Name {MAX_RUNS} at most: lines must differ."
        raise UsageError(
            f"{words} that can be read" if few and found.unreadable else words,
            where=", ".join(logs)[:200],
            why="; ".join(found.unreadable) or None,
            fix=fix,
        )
    runs = tuple(_compared(run) for run in found.runs)
    first = found.runs[0]
    differences = [compare_results(first, other) for other in found.runs[1:]]
    return Comparison(
        runs=runs,
        options=tuple(_options([run.log for run in found.runs])),
        pairs=tuple(_paired(first.log, other.log) for other in found.runs[1:]),
        differences=tuple(difference for difference in differences if difference is not None),
        unreadable=found.unreadable,
    )


def with_samples(log: RunLog) -> RunLog | None:
    """Give a log whose rows count the training examples used; None where that is not known."""
    rows = []
    for row in log.rows:
        seen = row.samples_seen
        if seen is None and row.epoch is not None and log.num_train:
            seen = row.epoch * log.num_train
        if seen is None:
            return None
        rows.append(replace(row, samples_seen=seen))
    return replace(log, rows=tuple(rows))


def _compared(run: AuditedRun) -> ComparedRun:
    """Add the bounds of a training's accuracy."""
    log = run.log
    accuracy, num, split = log.test_accuracy, log.num_test, "test"
    if accuracy is None and run.metric == ACCURACY:
        accuracy, num, split = run.result, run.num_val, "val"
    bounds = None
    if accuracy is not None and num:
        bounds = wilson_interval(round(accuracy * num), num)
    return ComparedRun(
        audited=run,
        accuracy=accuracy,
        low=bounds[0] if bounds else None,
        high=bounds[1] if bounds else None,
        num=num if accuracy is not None else None,
        split=split if accuracy is not None else None,
    )


def _options(logs: Sequence[RunLog]) -> list[OptionDifference]:
    """List the options that differ among the runs whose logs have options."""
    keys = dict.fromkeys(key for log in logs for key in log.settings)
    found = []
    for key in keys:
        if key.startswith(_OWN_OPTIONS):
            continue
        values = tuple(log.settings.get(key) for log in logs)
        if len({value for value in values if value is not None}) > 1:
            found.append(OptionDifference(key=key, values=values))
    return found


def _paired(first: RunLog, second: RunLog) -> PairedResult:
    folders = [
        Path(log.path) if log.format is LogFormat.STEPLADDER and Path(log.path).is_dir() else None
        for log in (first, second)
    ]
    return compare_pairs(folders[0], folders[1], names=(first.name, second.name))
