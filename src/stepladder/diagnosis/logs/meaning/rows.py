"""Convert the cells of a log to rows of a training, one row per evaluation."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from stepladder.diagnosis.logs.meaning.column_names import (
    ACCURACIES,
    HELD_OUT,
    MAX_DIGITS,
    Meaning,
    digits_of,
    first_of,
    has_split,
    is_error_rate,
    is_fraction_name,
    is_percent_name,
    plain_name,
    read_duration,
    read_number,
    read_place,
    split_of,
    unreadable_cells,
)
from stepladder.diagnosis.logs.meaning.finite import ends_of_finite, is_sparse
from stepladder.diagnosis.logs.meaning.loss_parts import with_summed_losses
from stepladder.diagnosis.logs.meaning.splits import SCORE, column_meanings, domains
from stepladder.records.audit import LogFormat, LogRow, RunLog

Cells = Mapping[str, str]
_IN_PERCENT = re.compile(r"(prec|acc)@1(?!\d)", re.IGNORECASE)
_TOP1 = re.compile(r"(top|prec|acc|accuracy)[ _@-]*1(?!\d)", re.IGNORECASE)
_PERCENT_FROM = 1.5  # accuracies above it are in percent
_MAX_UNIX_S = 1e11  # larger ones are milliseconds
_MIN_COUNTED = 3  # evaluations at one step
_MIN_CURVE = 4  # evaluations that show how a training went
_DURATIONS = frozenset({Meaning.TIME, Meaning.EPOCH_S, Meaning.ELAPSED_S, Meaning.TOTAL_S})
_OF_CURVES = frozenset(
    {Meaning.TRAIN_LOSS, Meaning.TRAIN_ACCURACY, Meaning.VAL_LOSS, Meaning.VAL_ACCURACY, SCORE}
)
_RESULTS = _OF_CURVES | {Meaning.TEST_LOSS, Meaning.TEST_ACCURACY}
_WAITS = frozenset(
    {
        Meaning.DATA_WAIT_PERCENT,
        Meaning.DATA_WAIT_FRAC,
        Meaning.DATA_TIME,
        Meaning.BATCH_TIME,
    }
)
_OF_TRAINING = frozenset({Meaning.TRAIN_LOSS, Meaning.TRAIN_ACCURACY, Meaning.LEARNING_RATE})
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
        metric: the column passed with `--metric`, or else the only one that the log can be judged
            by; None: the usual ones.
        preferred: the column that the trainer selected its best model by, if the log says so.
        is_evaluation: a log of evaluations only, by its name.
        resumed_at: epochs, or else steps, at which it was resumed, as logged.
        known: fields of the RunLog that the reader already knows.
    """

    name: str
    path: str
    format: LogFormat
    cells: Sequence[Cells]
    is_epoch_from_0: bool = False
    metric: str | None = None
    preferred: str | None = None
    is_evaluation: bool = False
    notes: tuple[str, ...] = ()
    resumed_at: tuple[float, ...] = ()
    known: Mapping[str, object] = field(default_factory=dict)


def to_run_log(table: Table) -> RunLog:
    """Read the cells of one training."""
    cells, summed = with_summed_losses(_with_error_rates(table.cells))
    table = replace(table, cells=cells, notes=(*table.notes, *summed))
    reading = _Reading.of(table)
    merged = [_merged(group) for group in _evaluations(reading.rows)]
    totals = reading.totals(merged)
    merged = [values for values in merged if _OF_CURVES & set(values)] or merged
    rows, counted = _counted(_with_times([reading.row(values) for values in merged], merged))
    if counted:
        totals.pop("epochs", None)
    times = [row.elapsed_s for row in rows if row.elapsed_s is not None]
    totals = ({"total_s": max(times)} if times else {}) | totals
    not_finite, last_finite = ends_of_finite(table.cells, reading.epoch_offset)
    log = RunLog(
        name=table.name,
        path=table.path,
        format=table.format,
        rows=tuple(rows),
        digits=reading.digits,
        score_name=reading.score_name,
        is_score_share=reading.is_score_share,
        is_score_fraction=reading.is_score_fraction,
        accuracy_column=reading.accuracy_column,
        is_val_test=reading.is_val_test,
        notes=(
            *_numbering(table, rows),
            *table.notes,
            *counted,
            *reading.notes,
            *_of_training(reading, len(merged)),
        ),
        num_unreadable=reading.num_unreadable,
        not_finite=not_finite,
        last_finite=last_finite,
        resumed_at=tuple(place + reading.epoch_offset for place in table.resumed_at),
        **totals,
    )
    return replace(log, **{key: value for key, value in table.known.items() if value is not None})  # type: ignore[arg-type]


def _with_error_rates(cells: Sequence[Cells]) -> Sequence[Cells]:
    """Name a column such as `test err` an error rate if all of its values have a percent sign."""
    names = {name for row in cells for name in row if split_of(name)[1] in ("err", "error")}
    names -= {n for n in names for row in cells if not row.get(n, "%").strip().endswith("%")}
    if not names:
        return cells
    return [{f"{n}_rate" if n in names else n: text for n, text in row.items()} for row in cells]


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """The numbers of a table by meaning, with accuracies as shares."""

    rows: list[dict[Meaning | str, float]]
    digits: int | None
    score_name: str | None
    is_score_share: bool
    is_score_fraction: bool
    accuracy_column: str | None
    epoch_offset: int
    is_val_test: bool
    notes: tuple[str, ...]
    num_unreadable: int = 0

    @classmethod
    def of(cls, table: Table) -> _Reading:
        columns = dict.fromkeys(name for row in table.cells for name in row)
        metric = _column(table.metric, columns) if table.metric else None
        meanings, tested = column_meanings(
            table.cells,
            metric=metric,
            preferred=table.preferred,
            is_evaluation=table.is_evaluation,
        )
        rows = _without_local_steps(_values(table.cells, meanings))
        _drop_waits_of_evaluations(rows)
        score = next((name for name, kind in meanings.items() if kind == SCORE), None)
        is_share, is_fraction = _is_share_name(score), score is not None and is_fraction_name(score)
        in_percent = {kind for kind in (*ACCURACIES, SCORE) if _is_percent(rows, kind)}
        in_percent -= {SCORE} if not is_share and not is_fraction else set()
        in_percent |= {SCORE} if score is not None and is_percent_name(score) else set()
        if any(
            kind in ACCURACIES and _is_small_percent(table.cells, name)
            for name, kind in meanings.items()
        ):
            in_percent |= set(ACCURACIES)
        for row in rows:
            for kind in in_percent & set(row):
                row[kind] /= 100
        impossible = _drop_impossible(rows)
        unreadable = unreadable_cells(table.cells, meanings)
        shown = SCORE if score is not None else Meaning.VAL_ACCURACY
        digits = _digits(table, meanings, shown, is_percent=shown in in_percent)
        scores = [row[SCORE] for row in rows if SCORE in row]
        is_in_range = all(0 <= value <= 1 for value in scores if math.isfinite(value))
        return cls(
            rows=rows,
            digits=digits,
            score_name=score,
            is_score_share=is_share and is_in_range,
            is_score_fraction=(is_share or is_fraction) and is_in_range,
            accuracy_column=next(
                (n for n, k in meanings.items() if k is Meaning.VAL_ACCURACY), None
            ),
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
            score=values.get(SCORE),
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
        placed = [row for row in merged if Meaning.EPOCH in row]
        trained = [row for row in placed if _OF_CURVES & set(row)] or placed
        epochs = [row[Meaning.EPOCH] + self.epoch_offset for row in trained]
        if any(_RESULTS & set(row) for row in merged):  # else they were only planned
            epochs += [row[Meaning.NUM_EPOCHS] for row in merged if Meaning.NUM_EPOCHS in row]
        finite = [epoch for epoch in epochs if math.isfinite(epoch)]
        if finite:
            found["epochs"] = max(finite)
            found |= self._late_start()
        return found

    def _late_start(self) -> dict[str, Any]:
        """Return the first epoch and the number of epochs of a log that begins after the first.

        A log that has every tenth epoch begins with the tenth.
        """
        epochs = {
            row[Meaning.EPOCH] + self.epoch_offset
            for row in self.rows
            if Meaning.EPOCH in row and _OF_CURVES & set(row)
        }
        places = sorted(epoch for epoch in epochs if math.isfinite(epoch))
        gap = min((b - a for a, b in itertools.pairwise(places)), default=math.inf)
        if not places or places[0] <= max(gap, 1) or not all(e.is_integer() for e in places):
            return {}
        return {"first_epoch": places[0], "num_logged": len(places)}


def _numbering(table: Table, rows: Sequence[LogRow]) -> tuple[str, ...]:
    """Return a note if epochs are numbered otherwise than in the log."""
    if not table.is_epoch_from_0 or all(row.epoch is None for row in rows):
        return ()
    return ("epochs are counted from 1 here: epoch 0 of the log is 1",)


def _of_training(reading: _Reading, num_evaluations: int) -> tuple[str, ...]:
    """Return how the training loss changed, if a log with few evaluations has many of them.

    The row of an evaluation has their mean since the one before.
    """
    losses = [row for row in reading.rows if Meaning.TRAIN_LOSS in row]
    if not losses or num_evaluations >= _MIN_CURVE or len(losses) <= 2 * num_evaluations:
        return ()
    first, last = losses[0], losses[-1]
    kind = Meaning.STEP if Meaning.STEP in first and Meaning.STEP in last else Meaning.EPOCH
    at = [""] * 2
    if kind in first and kind in last:
        offset = reading.epoch_offset if kind is Meaning.EPOCH else 0
        at = [f" ({kind.value} {row[kind] + offset:g})" for row in (first, last)]
    return (
        f"the training loss went from {first[Meaning.TRAIN_LOSS]:.5g}{at[0]} to "
        f"{last[Meaning.TRAIN_LOSS]:.5g}{at[1]}; a row has its mean since the evaluation before",
    )


def _counted(rows: list[LogRow]) -> tuple[list[LogRow], tuple[str, ...]]:
    """Return rows that are all of one epoch or step with a counted one, and a note about it."""
    places = {(row.epoch, row.step) for row in rows}
    if len(rows) < _MIN_COUNTED or len(places) > 1 or places == {(None, None)}:
        return rows, ()
    epoch, step = places.pop()
    place = f"step {step}" if epoch is None else f"epoch {epoch:g}"
    return [replace(row, epoch=None, step=idx + 1) for idx, row in enumerate(rows)], (
        f"all {len(rows)} evaluations have {place}, so they are counted, in the order of the log; "
        "pass the epoch or step to the logger when you log a value",
    )


def _column(metric: str, columns: Mapping[str, None]) -> str | None:
    """Find the column that the user means by a metric's name."""
    if metric in columns:
        return metric
    return next((name for name in columns if plain_name(name) == plain_name(metric)), None)


def _values(
    cells: Sequence[Cells], meanings: Mapping[str, Meaning | str | None]
) -> list[dict[Meaning | str, float]]:
    """Return the numbers of each row by meaning; an error rate becomes an accuracy."""
    texts = {name: [row[name] for row in cells if row.get(name)] for name in meanings}
    kinds = {name: _timed(kind, texts[name]) for name, kind in meanings.items()}
    ones = {
        name: 100.0 if any(map(_is_above_1, texts[name])) else 1.0
        for name, kind in kinds.items()
        if kind in ACCURACIES and is_error_rate(name)
    }
    sparse = {name for name in kinds if is_sparse(texts[name])}
    rows = []
    for row in cells:
        values: dict[Meaning | str, float] = {}
        for name, text in row.items():
            kind = kinds[name]
            value = None if kind is None else _value(kind, text)
            if value is not None and math.isnan(value) and name in sparse:
                continue
            if kind is not None and value is not None:
                values[kind] = ones[name] - value if name in ones else value
        if values:
            rows.append(values)
    return rows


def _is_above_1(text: str) -> bool:
    number = read_number(text)
    return number is not None and number > _PERCENT_FROM


def _timed(kind: Meaning | str | None, texts: Sequence[str]) -> Meaning | str | None:
    """Return what a column of times is: of epochs if they do not add up, as `00:17`, `00:18`."""
    if kind is not Meaning.TIME:
        return kind
    return Meaning.TIME if _is_rising([read_duration(text) for text in texts]) else Meaning.EPOCH_S


def _value(kind: Meaning | str, text: str) -> float | None:
    if kind in _DURATIONS:
        return read_duration(text)
    if kind is Meaning.TIMESTAMP:
        return _timestamp(text)
    return read_place(text) if kind in (Meaning.EPOCH, Meaning.STEP) else read_number(text)


def _timestamp(text: str) -> float | None:
    """Return a date and time, or a Unix time in seconds or milliseconds, in seconds."""
    if (number := read_number(text)) is not None:
        return number / 1e3 if number > _MAX_UNIX_S else number
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        return None


def _without_local_steps(
    rows: list[dict[Meaning | str, float]],
) -> list[dict[Meaning | str, float]]:
    """Remove steps that start again in each epoch: they are not steps of the training."""
    placed = [row for row in rows if Meaning.STEP in row and Meaning.EPOCH in row]
    if any(
        after[Meaning.STEP] < before[Meaning.STEP] and after[Meaning.EPOCH] > before[Meaning.EPOCH]
        for before, after in itertools.pairwise(placed)
    ):
        for row in rows:
            row.pop(Meaning.STEP, None)
    return rows


def _drop_waits_of_evaluations(rows: Sequence[dict[Meaning | str, float]]) -> None:
    """Remove times that rows without training values have, where rows of training have them, too.

    An evaluation reads other data, in other batches: its times are no waits of training.
    """
    of_training = {kind for row in rows if _OF_TRAINING & set(row) for kind in _WAITS & set(row)}
    for row in rows:
        if not _OF_TRAINING & set(row):
            for kind in of_training & set(row):
                del row[kind]


def _is_share_name(name: str | None) -> bool:
    return (
        name is not None
        and "balanced" not in name
        and any(word in name.lower() for word in ("acc", "top1", "top5"))
    )


def _is_percent(rows: Sequence[Mapping[Meaning | str, float]], kind: Meaning | str) -> bool:
    return any(_PERCENT_FROM < row[kind] <= 100 for row in rows if kind in row)


def _is_small_percent(cells: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Return True if an accuracy is in percent although it may stay below 1 %, with many classes.

    Acc@1 and Prec@1 are, as PyTorch's ImageNet example and torchvision's references write them; and
    a top-1 accuracy beside a top-5 accuracy above 1, as a share cannot be.
    """
    if _IN_PERCENT.search(name):
        return True
    place = name.rfind("1")
    if place < 0 or not _TOP1.search(name):
        return False
    beside = name[:place] + "5" + name[place + 1 :]
    values = (read_number(str(row[beside])) for row in cells if beside in row)
    return any(value is not None and 1 < value <= 100 for value in values)


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
    """Count the decimals of what is judged, as a share; None if it was never written.

    Of several columns in a row, the last one is judged: the first may be a running average.
    """
    texts = []
    for row in table.cells:
        known = (text for name, text in row.items() if meanings[name] == shown)
        numbers = [text for text in known if read_number(text) is not None]
        texts += numbers[-1:]
    digits = max(map(digits_of, texts), default=None)
    return None if digits is None else min(digits + (2 if is_percent else 0), MAX_DIGITS)


def _notes(
    table: Table,
    columns: Mapping[str, None],
    meanings: Mapping[str, Meaning | str | None],
    metric: str | None,
    tested: Sequence[str],
) -> tuple[str, ...]:
    notes = []
    if tested:
        named = ", ".join(tested)
        notes.append(f"the log has no validation results, so {named} is judged instead")
    of_domains = domains(list(columns))
    trained, judged = (
        next((name for name, kind in of_domains.items() if kind is wanted == meanings[name]), None)
        for wanted in (Meaning.TRAIN_ACCURACY, Meaning.VAL_ACCURACY)
    )
    if trained and judged:
        notes.append(
            f"the training accuracy is {trained} and that of validation is {judged}: the gap "
            "between them is also that between the two domains"
        )
    kinds = set(meanings.values())
    is_split = any(has_split(name) and kind in HELD_OUT for name, kind in meanings.items())
    unnamed = [n for n, k in meanings.items() if k is Meaning.VAL_ACCURACY and not has_split(n)]
    if unnamed and is_split and not {Meaning.TRAIN_LOSS, Meaning.TRAIN_ACCURACY} & kinds:
        notes.append(
            f"{unnamed[0]} does not say of which split it is; it is read as held-out, because the "
            "only loss in the log is held-out, too"
        )
    if table.metric and metric is None:
        notes.append(
            f"there is no column {table.metric}, which --metric names; the log has "
            f"{', '.join(columns)}"
        )
    judged = next((name for name, kind in meanings.items() if kind is Meaning.VAL_ACCURACY), None)
    if judged is not None and is_error_rate(judged):
        notes.append(f"val_accuracy is 100 % minus {judged}")
    known = set(meanings.values())
    if not known & {*HELD_OUT, SCORE}:
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
    closing = {kind for row in rows for kind in row} & {*HELD_OUT, SCORE}
    closing = closing or {Meaning.TRAIN_LOSS, Meaning.TRAIN_ACCURACY}
    group: list[Mapping[Meaning | str, float]] = []
    has: set[Meaning | str] = set()  # of the group
    place: dict[Meaning | str, float] = {}
    for row in rows:
        if has and (has & row.keys() or _moved(place, row)):
            yield group
            group, has, place = [], set(), {}
        group.append(row)
        has |= closing & row.keys()
        place |= {kind: row[kind] for kind in (Meaning.EPOCH, Meaning.STEP) if kind in row}
    if group:
        yield group


def _moved(place: Mapping[Meaning | str, float], row: Mapping[Meaning | str, float]) -> bool:
    """Return True if a row has a later epoch or step than the rows before it."""
    return any(
        kind in row and kind in place and row[kind] > place[kind]
        for kind in (Meaning.EPOCH, Meaning.STEP)
    )


def _merged(group: Sequence[Mapping[Meaning | str, float]]) -> dict[Meaning | str, float]:
    """Return the last value of each column; of training values and waits for data, the mean."""
    merged: dict[Meaning | str, float] = {}
    for row in group:
        merged.update(row)
    for kind in (Meaning.TRAIN_LOSS, Meaning.TRAIN_ACCURACY, *_WAITS):
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
    """Return True if times are counted from the start: each is later, and the last one is much."""
    known = [value for value in values if value is not None]
    is_later = len(known) > 1 and all(a < b for a, b in itertools.pairwise(known))
    return is_later and known[-1] >= known[0] * len(known) / 2


def _summed(lengths: Sequence[float | None]) -> list[float | None]:
    total, sums = 0.0, []
    for length in lengths:
        total += length or 0.0
        sums.append(None if length is None else total)
    return sums
