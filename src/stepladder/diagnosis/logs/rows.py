"""Convert the cells of a log to rows of a training, one row per evaluation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stepladder.diagnosis.logs.column_names import (
    ACCURACIES,
    HELD_OUT,
    MAX_DIGITS,
    Meaning,
    digits_of,
    first_of,
    meaning,
    plain_name,
    read_number,
    unreadable_cells,
)
from stepladder.records.audit import LogFormat, LogRow, RunLog

Cells = Mapping[str, str]
_PERCENT_FROM = 1.5  # accuracies above it are in percent
_ROW_VALUES = (
    "train_loss",
    "train_accuracy",
    "val_loss",
    "val_loss_sem",
    "val_accuracy",
    "learning_rate",
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One training as text cells, before they are interpreted.

    Attributes:
        cells: rows of text by column; a cell is empty if it was not written.
        is_epoch_from_0: the first epoch has number 0.
        metric: the column passed with `--metric`; None: the usual ones.
        known: fields of the RunLog that the reader already knows.
    """

    name: str
    path: str
    format: LogFormat
    cells: Sequence[Cells]
    is_epoch_from_0: bool = False
    metric: str | None = None
    notes: tuple[str, ...] = ()
    known: Mapping[str, object] = field(default_factory=dict)


def to_run_log(table: Table) -> RunLog:
    """Read the cells of one training."""
    reading = _Reading.of(table)
    merged = [_merged(group) for group in _evaluations(reading.rows)]
    rows = _with_times([reading.row(values) for values in merged], merged)
    times = [row.elapsed_s for row in rows if row.elapsed_s is not None]
    totals = {"total_s": max(times)} if times else {}
    log = RunLog(
        name=table.name,
        path=table.path,
        format=table.format,
        rows=tuple(rows),
        digits=reading.digits,
        score_name=reading.score_name,
        is_score_share=reading.is_score_share,
        is_val_test=reading.is_val_test,
        notes=(*table.notes, *reading.notes),
        num_unreadable=reading.num_unreadable,
        **(totals | reading.totals(merged)),
    )
    return replace(log, **{key: value for key, value in table.known.items() if value is not None})  # type: ignore[arg-type]


def split_attempts(
    cells: Sequence[Cells], is_new: Sequence[bool] | None = None
) -> list[list[Cells]]:
    """Split a log into its trainings where the epochs, or else the steps, start again.

    Args:
        is_new: rows that start a training for other reasons.
    """
    key = next(
        (
            name
            for wanted in (Meaning.EPOCH, Meaning.STEP)
            for name in dict.fromkeys(name for row in cells for name in row)
            if meaning(name) is wanted
        ),
        None,
    )
    parts: list[list[Cells]] = []
    last = math.inf
    for idx, row in enumerate(cells):
        at = read_number(row.get(key, "")) if key is not None else None
        begins = at is not None and at < last and (last == math.inf or at <= _FIRST_EPOCH)
        if not parts or begins or (is_new is not None and is_new[idx]):
            parts.append([])
        parts[-1].append(row)
        last = at if at is not None else last
    return [part for part in parts if part]


_FIRST_EPOCH = 1


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """The numbers of a table by meaning, with accuracies as shares."""

    rows: list[dict[Meaning | str, float]]
    digits: int | None
    score_name: str | None
    is_score_share: bool
    epoch_offset: int
    is_val_test: bool
    notes: tuple[str, ...]
    num_unreadable: int = 0

    @classmethod
    def of(cls, table: Table) -> _Reading:
        columns = dict.fromkeys(name for row in table.cells for name in row)
        metric = _column(table.metric, columns) if table.metric else None
        meanings = {name: _meaning(name, metric, columns) for name in columns}
        tested = _tested_in_training(table.cells, meanings)
        meanings |= tested
        rows: list[dict[Meaning | str, float]] = [
            {
                kind: value
                for name, text in row.items()
                if (kind := meanings[name]) is not None and (value := read_number(text)) is not None
            }
            for row in table.cells
        ]
        rows = [row for row in rows if row]
        in_percent = {kind for kind in (*ACCURACIES, "score") if _is_percent(rows, kind)}
        in_percent -= {"score"} if not _is_share_name(metric) else set()
        for row in rows:
            for kind in in_percent & set(row):
                row[kind] /= 100
        impossible = _drop_impossible(rows)
        unreadable = unreadable_cells(table.cells, meanings)
        accuracy = "score" if metric is not None and "score" in meanings.values() else None
        shown = accuracy or Meaning.VAL_ACCURACY
        digits = _digits(table, meanings, shown, is_percent=shown in in_percent)
        scores = [row["score"] for row in rows if "score" in row]
        return cls(
            rows=rows,
            digits=digits,
            score_name=metric if accuracy else None,
            is_score_share=_is_share_name(metric) and all(0 <= s <= 1 for s in scores),
            epoch_offset=int(table.is_epoch_from_0),
            is_val_test=bool(tested),
            notes=_notes(table, columns, meanings, metric, tested)
            + impossible
            + first_of(unreadable),
            num_unreadable=len(unreadable),
        )

    def row(self, values: Mapping[Meaning | str, float]) -> LogRow:
        epoch, step = values.get(Meaning.EPOCH), values.get(Meaning.STEP)
        wait = values.get(Meaning.DATA_WAIT_FRAC)
        if (share := values.get(Meaning.DATA_WAIT_PERCENT)) is not None:
            wait = share / 100
        data_s, batch_s = values.get(Meaning.DATA_TIME), values.get(Meaning.BATCH_TIME)
        if wait is None and data_s is not None and batch_s:
            wait = min(data_s / batch_s, 1.0)
        return LogRow(
            epoch=None if epoch is None else epoch + self.epoch_offset,
            step=None if step is None or not math.isfinite(step) else int(step),
            samples_seen=values.get(Meaning.SAMPLES_SEEN),
            score=values.get("score"),
            data_wait_frac=wait,
            **{name: values.get(Meaning(name)) for name in _ROW_VALUES},
        )

    def totals(self, merged: Sequence[Mapping[Meaning | str, float]]) -> dict[str, Any]:
        """Return what occurs once in a log, or is the same in all of its rows."""
        found: dict[str, Any] = {}
        for kind in (Meaning.NUM_TRAIN, Meaning.NUM_VAL, Meaning.NUM_TEST):
            sizes = [row[kind] for row in merged if kind in row and 1 <= row[kind] < math.inf]
            if sizes:
                found[kind.value] = int(sizes[-1])
        if self.is_val_test and Meaning.NUM_TEST in found:
            found.setdefault(Meaning.NUM_VAL, found[Meaning.NUM_TEST])
        for kind in (Meaning.TEST_ACCURACY, Meaning.TEST_LOSS, Meaning.TOTAL_S):
            values = [row[kind] for row in merged if kind in row and math.isfinite(row[kind])]
            if values:
                found[kind.value] = values[-1]
        epochs = [row[Meaning.EPOCH] + self.epoch_offset for row in merged if Meaning.EPOCH in row]
        epochs += [row[Meaning.NUM_EPOCHS] for row in merged if Meaning.NUM_EPOCHS in row]
        finite = [epoch for epoch in epochs if math.isfinite(epoch)]
        if finite:
            found["epochs"] = max(finite)
        return found


def _column(metric: str, columns: Mapping[str, None]) -> str | None:
    """Find the column that the user means by a metric's name."""
    if metric in columns:
        return metric
    return next((name for name in columns if plain_name(name) == plain_name(metric)), None)


def _meaning(name: str, metric: str | None, columns: Mapping[str, None]) -> Meaning | str | None:
    """Return the meaning of a column; of a value per step and the same per epoch, only one."""
    base = name.removesuffix("_step")
    if base != name and f"{base}_epoch" in columns:
        return None
    found = meaning(name)
    return "score" if name == metric and found not in HELD_OUT else found


def _tested_in_training(
    cells: Sequence[Cells], meanings: Mapping[str, Meaning | str | None]
) -> dict[str, Meaning | str | None]:
    """Return test columns with the meaning of validation, if they were written repeatedly.

    A training without validation whose test set was evaluated at each epoch is judged by that set;
    a test result that occurs once is a test result.
    """
    if {*HELD_OUT, "score"} & set(meanings.values()):
        return {}
    places = {Meaning.TEST_LOSS: Meaning.VAL_LOSS, Meaning.TEST_ACCURACY: Meaning.VAL_ACCURACY}
    tested: dict[str, Meaning | str | None] = {
        name: places[kind]
        for name, kind in meanings.items()
        if isinstance(kind, Meaning) and kind in places
    }
    num = max(
        (sum(read_number(row.get(name, "")) is not None for row in cells) for name in tested),
        default=0,
    )
    return tested if num > 1 else {}


def _is_share_name(name: str | None) -> bool:
    return name is not None and any(word in name.lower() for word in ("acc", "top1", "top5"))


def _is_percent(rows: Sequence[Mapping[Meaning | str, float]], kind: Meaning | str) -> bool:
    return any(_PERCENT_FROM < row[kind] <= 100 for row in rows if kind in row)


def _drop_impossible(rows: Sequence[dict[Meaning | str, float]]) -> tuple[str, ...]:
    """Remove accuracies that are not shares; return a note about them."""
    found = [
        (row, kind)
        for row in rows
        for kind in ACCURACIES & set(row)
        if math.isfinite(row[kind]) and not 0 <= row[kind] <= 1
    ]
    for row, kind in found:
        del row[kind]
    return (f"{len(found)} accuracies are not in [0, 1] and are ignored",) if found else ()


def _digits(
    table: Table,
    meanings: Mapping[str, Meaning | str | None],
    shown: Meaning | str,
    *,
    is_percent: bool,
) -> int | None:
    """Count the decimals of what is judged, as a share; None if it was never written."""
    texts = [
        text
        for row in table.cells
        for name, text in row.items()
        if meanings[name] == shown and read_number(text) is not None
    ]
    digits = max(map(digits_of, texts), default=None)
    return None if digits is None else min(digits + (2 if is_percent else 0), MAX_DIGITS)


def _notes(
    table: Table,
    columns: Mapping[str, None],
    meanings: Mapping[str, Meaning | str | None],
    metric: str | None,
    tested: Mapping[str, Meaning | str | None],
) -> tuple[str, ...]:
    notes = []
    if tested:
        named = ", ".join(tested)
        notes.append(f"no validation is logged: using {named} instead")
    if table.metric and metric is None:
        notes.append(f"there is no column {table.metric}; the log has {', '.join(columns)}")
    known = set(meanings.values())
    if not known & {*HELD_OUT, "score"}:
        notes.append(
            f"no held-out metric was recognised in the columns {', '.join(columns)}; "
            "pass its column with --metric NAME"
            if columns
            else "there is no held-out metric"
        )
    return tuple(notes)


def _evaluations(
    rows: Sequence[Mapping[Meaning | str, float]],
) -> Iterator[list[Mapping[Meaning | str, float]]]:
    """Group rows so that each group has one evaluation and the training before it.

    Loggers write training and validation of an epoch in separate rows, in either order. A group
    ends if the epoch (or else the step) increases and the group has its held-out numbers, or if
    these would be overwritten.
    """
    group: list[Mapping[Meaning | str, float]] = []
    closing = {kind for row in rows for kind in row} & {*HELD_OUT, "score"}
    closing = closing or {Meaning.TRAIN_LOSS, Meaning.TRAIN_ACCURACY}
    for row in rows:
        if group and _begins_anew(group, row, closing):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _begins_anew(
    group: Sequence[Mapping[Meaning | str, float]],
    row: Mapping[Meaning | str, float],
    closing: set[Meaning | str] | set[Meaning],
) -> bool:
    has = {kind for old in group for kind in old if kind in closing}
    place = Meaning.EPOCH if Meaning.EPOCH in row else Meaning.STEP
    before = [old[place] for old in group if place in old]
    moved = place in row and bool(before) and row[place] > before[-1]
    steps = [old[Meaning.STEP] for old in group if Meaning.STEP in old]
    step_moved = Meaning.STEP in row and bool(steps) and row[Meaning.STEP] > steps[-1]
    return bool(has) and (moved or step_moved or bool(has & set(row)))


def _merged(group: Sequence[Mapping[Meaning | str, float]]) -> dict[Meaning | str, float]:
    """Return the last value of each column; of training values and waits, the mean."""
    merged: dict[Meaning | str, float] = {}
    for row in group:
        merged.update(row)
    for kind in (Meaning.TRAIN_LOSS, Meaning.TRAIN_ACCURACY, Meaning.DATA_WAIT_PERCENT):
        values = [row[kind] for row in group if kind in row]
        if len(values) > 1:
            merged[kind] = sum(values) / len(values)
    return merged


def _with_times(
    rows: list[LogRow], merged: Sequence[Mapping[Meaning | str, float]]
) -> list[LogRow]:
    """Add the seconds since the start, from any column that has them."""
    elapsed = [_elapsed(values) for values in merged]
    if all(value is None for value in elapsed):
        stamps = [values.get(Meaning.TIMESTAMP) for values in merged]
        times = [values.get(Meaning.TIME) for values in merged]
        lengths = [values.get(Meaning.EPOCH_S) for values in merged]
        if any(value is not None for value in stamps):
            first = next(value for value in stamps if value is not None)
            elapsed = [None if value is None else value - first for value in stamps]
        elif _is_rising(times):
            elapsed = times
        else:
            elapsed = _summed(lengths if any(v is not None for v in lengths) else times)
    return [
        row if seconds is None else replace(row, elapsed_s=seconds)
        for row, seconds in zip(rows, elapsed, strict=True)
    ]


def _elapsed(values: Mapping[Meaning | str, float]) -> float | None:
    if (minutes := values.get(Meaning.ELAPSED_MIN)) is not None:
        return 60 * minutes
    return values.get(Meaning.ELAPSED_S)


def _is_rising(values: Sequence[float | None]) -> bool:
    known = [value for value in values if value is not None]
    return len(known) > 1 and all(a < b for a, b in itertools.pairwise(known))


def _summed(lengths: Sequence[float | None]) -> list[float | None]:
    total, sums = 0.0, []
    for length in lengths:
        total += length or 0.0
        sums.append(None if length is None else total)
    return sums
