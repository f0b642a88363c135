"""Compare trainings: our own runs and logs of other tools."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stepladder.diagnosis.audit.audit import audit
from stepladder.diagnosis.audit.differences import compare_results
from stepladder.diagnosis.audit.series import ACCURACY, LOSS, choose_series
from stepladder.diagnosis.audit.size import Sizes
from stepladder.errors import DataError, UsageError
from stepladder.records.audit import AuditedRun, LogFormat, RunLog
from stepladder.records.compare import ComparedRun, Comparison, OptionDifference, PairedResult
from stepladder.stats import Pairs, paired_change
from stepladder.stats.shares import mcnemar_p, wilson_interval
from stepladder.training.output.results import PREDICTIONS_FILE

MAX_RUNS = 9  # more lines in a chart cannot be distinguished
_OWN_OPTIONS = ("run.", "prepare.", "ladder.")  # where a run is written, not what it does
_SPLITS = ("test", "val")
_FIX = "Copy the file again from the original run, or repeat the training."
_COLUMNS = {"split", "label", "predicted", "loss"}
MIN_EXAMPLES = 2
_CONFIDENCE = 0.975  # one-sided, of each bound: 95 % between both


@dataclass(frozen=True)
class _Example:
    """The result on one held-out example.

    Attributes:
        is_right: None without classes.
        loss: None if it is missing.
    """

    label: str
    is_right: bool | None
    loss: float | None


_Table = dict[str, dict[str, _Example]]


def compare_pairs(
    first: Path | None, second: Path | None, *, names: tuple[str, str]
) -> PairedResult:
    """Compare two runs example by example, on test if both have it, otherwise on validation.

    Examples are matched by path, or without paths by their number in the split.

    Args:
        first, second: run folders; None for a log without predictions.
        names: of both.
    """
    tables: list[_Table] = []
    for name, folder in zip(names, (first, second), strict=True):
        try:
            table = _read(folder)
        except DataError as error:
            return _none(names, f"{PREDICTIONS_FILE} of {name} is damaged: {error.what}")
        if not table:
            return _none(names, f"{name} has no {PREDICTIONS_FILE}")
        tables.append(table)
    for split in _SPLITS:
        before, after = (table.get(split, {}) for table in tables)
        if before and after:
            return _compare(before, after, split=split, names=names)
    return _none(names, "they have no split in common")


def _compare(
    before: dict[str, _Example], after: dict[str, _Example], *, split: str, names: tuple[str, str]
) -> PairedResult:
    keys = [key for key in before if key in after and before[key].label == after[key].label]
    num_left_out = len(before.keys() | after.keys()) - len(keys)
    if len(keys) < MIN_EXAMPLES:
        return _none(names, f"they have {len(keys)} {split} examples in common")
    first, second = [before[key] for key in keys], [after[key] for key in keys]
    rows = np.arange(len(keys))
    accuracy = loss = only_first = only_second = p = None
    if all(one.is_right is not None for one in (*first, *second)):
        hits = [np.array([one.is_right for one in side], np.float64) for side in (first, second)]
        only_first = int(((hits[0] == 1) & (hits[1] == 0)).sum())
        only_second = int(((hits[0] == 0) & (hits[1] == 1)).sum())
        p = mcnemar_p(only_first, only_second)
        accuracy = paired_change([Pairs(rows, *hits)], is_share=True, confidence=_CONFIDENCE)
    if all(one.loss is not None for one in (*first, *second)):
        losses = [np.array([one.loss for one in side], np.float64) for side in (first, second)]
        if np.isfinite(losses).all():
            loss = paired_change([Pairs(rows, *losses)], confidence=_CONFIDENCE)
    return PairedResult(
        first=names[0],
        second=names[1],
        split=split,
        num=len(keys),
        num_left_out=num_left_out,
        only_first=only_first,
        only_second=only_second,
        p=p,
        accuracy=accuracy,
        loss=loss,
    )


def _none(names: tuple[str, str], why: str) -> PairedResult:
    return PairedResult(first=names[0], second=names[1], why_not=why)


def _read(folder: Path | None) -> _Table:
    """Read predictions.csv by split and example; empty if it does not exist.

    Raises:
        DataError: if it is damaged.
    """
    path = None if folder is None else folder / PREDICTIONS_FILE
    if path is None or not path.exists():
        return {}
    found: _Table = {}
    try:
        text = path.read_bytes().decode("utf-8", "replace")
        reader = csv.DictReader(io.StringIO(text, newline=""))
        if absent := sorted(_COLUMNS - {*(reader.fieldnames or ())}):
            raise DataError(f"column {absent[0]} is missing", fix=_FIX)
        for idx, row in enumerate(reader, start=1):
            split, key = row.get("split"), row.get("path") or row.get("id")
            if not split or not key or row.get("loss") is None:
                raise DataError(f"row {idx} is incomplete", fix=_FIX)
            by_key = found.setdefault(split, {})
            by_key[key if key not in by_key else f"{key}#{row.get('id')}"] = _example(row, idx)
    except (OSError, csv.Error) as error:
        raise DataError(str(error), fix=_FIX) from error
    if not text.endswith("\n"):
        raise DataError("the file ends in the middle of a row", fix=_FIX)
    return found


def _example(row: dict[str, str], idx: int) -> _Example:
    label, predicted, text = row["label"], row["predicted"], row["loss"]
    try:
        loss = float(text) if text else None
    except ValueError:
        raise DataError(f"{text[:40]!r} in row {idx} is not a loss", fix=_FIX) from None
    is_right = label == predicted if row.get("probability") else None
    return _Example(label=label, is_right=is_right, loss=loss)


def compare(
    logs: Sequence[str], *, sizes: Sizes | None = None, metric: str | None = None
) -> Comparison:
    """Compare trainings, each with the first.

    Args:
        logs: run folders, and logs of other tools, as `audit` reads them.
        sizes: of the sets, if the logs don't have them.
        metric: the column to judge; None: validation accuracy, else validation loss.

    Raises:
        UsageError: if they contain fewer than two trainings, or more than nine.
        DataError: if none can be read.
    """
    found = audit(logs, sizes=sizes, metric=metric, is_each_one_folder=True)
    num = len(found.runs)
    if not 2 <= num <= MAX_RUNS:
        few = num < 2
        words = f"compare needs 2 to {MAX_RUNS} trainings, but these logs contain {num}"
        fix = "Pass more run folders or logs." if few else "Pass fewer run folders or logs."
        raise UsageError(
            f"{words}, as far as they can be read" if few and found.unreadable else words,
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
    """Return a log whose rows count the training examples used; None if unknown."""
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
    """Replace a run's best evaluation by that of the weights that it kept.

    The best accuracy may be of weights that were not kept.
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
        best_step=kept.step,
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
    """Return the options that differ between the runs whose logs have options."""
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
        why = "both are the same folder"
        return PairedResult(first=names[0], second=names[1], why_not=why)
    return compare_pairs(_folder(first.log), _folder(second.log), names=names)


def _is_same(first: AuditedRun, second: AuditedRun) -> bool:
    """Return True if both are the same run folder."""
    folders = [_folder(run.log) for run in (first, second)]
    return folders[0] is not None and folders[0] == folders[1]


def _folder(log: RunLog) -> Path | None:
    path = Path(log.path)
    return path.resolve() if log.format is LogFormat.STEPLADDER and path.is_dir() else None
