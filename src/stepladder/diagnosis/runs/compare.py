"""Trainings beside each other: ours and those of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepladder.diagnosis.audit.audit import audit
from stepladder.diagnosis.audit.differences import compare_results
from stepladder.diagnosis.audit.series import ACCURACY, LOSS, choose_series
from stepladder.diagnosis.audit.size import Sizes
from stepladder.diagnosis.runs.compare_pairs import compare_pairs
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
    audited = [_of_kept_weights(run) for run in found.runs]
    first, others = audited[0], audited[1:]
    differences = [compare_results(first, other) for other in others if not _is_same(first, other)]
    damaged = [f"{run.log.name}: {said}" for run in audited for said in run.log.damaged]
    return Comparison(
        runs=tuple(_compared(run) for run in audited),
        options=tuple(_options([run.log for run in audited])),
        pairs=tuple(_paired(first, other) for other in others),
        differences=tuple(difference for difference in differences if difference is not None),
        unreadable=(*found.unreadable, *dict.fromkeys(damaged)),
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


def _of_kept_weights(run: AuditedRun) -> AuditedRun:
    """Put the weights that a run of ours ended with in the place of its best evaluation.

    The best accuracy of all may be of weights that no run kept.
    """
    kept, series = run.log.kept, choose_series(run.log)
    if kept is None or series is None:
        return run
    value = {ACCURACY: kept.val_accuracy, LOSS: kept.val_loss}.get(series.name)
    if value is None:
        return run
    is_loss = series.name == LOSS and kept.val_loss_sem is not None
    return replace(
        run,
        result=value,
        result_sem=kept.val_loss_sem if is_loss else series.sem(value, run.num_val),
        best_epoch=kept.epoch,
    )


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


def _paired(first: AuditedRun, second: AuditedRun) -> PairedResult:
    names = (first.log.name, second.log.name)
    if _is_same(first, second):
        why = "both are one and the same folder"
        return PairedResult(first=names[0], second=names[1], why_not=why)
    return compare_pairs(_folder(first.log), _folder(second.log), names=names)


def _is_same(first: AuditedRun, second: AuditedRun) -> bool:
    """Say whether two names are of one run folder."""
    folders = [_folder(run.log) for run in (first, second)]
    return folders[0] is not None and folders[0] == folders[1]


def _folder(log: RunLog) -> Path | None:
    path = Path(log.path)
    return path.resolve() if log.format is LogFormat.STEPLADDER and path.is_dir() else None
