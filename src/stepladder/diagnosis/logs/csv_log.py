"""CSV files: Keras' CSVLogger, Lightning's metrics.csv, and tables written by hand."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from stepladder.diagnosis.logs.column_names import Meaning, meaning, read_number
from stepladder.diagnosis.logs.rows import Cells, Table, split_attempts
from stepladder.errors import DataError
from stepladder.records.audit import LogFormat

_DELIMITERS = (",", ";", "\t", "|")
_MAX_WORDS = 5  # in the name of a column; more are a sentence
_MAX_CELL = 1_000_000


def read_csv(text: str, *, name: str, path: str) -> list[Table]:
    """Read a CSV whose first line names the columns; any usual delimiter and decimal separator.

    A column `run` splits it into trainings; without one, it is split where the epochs start again.
    A repeated header line, from a run that was appended, starts a new training as well.

    Raises:
        DataError: if there are no rows, or they do not match the header.
    """
    header, rows, notes = _rows(text, path)
    cells: list[Cells] = []
    is_new: list[bool] = []
    pending = True
    for row in rows:
        if row == header:
            pending = True
            continue
        cells.append(dict(zip(header, row, strict=False)))
        is_new.append(pending)
        pending = False
    if not cells:
        raise DataError(
            "the file has a header but no rows",
            where=path,
            fix="Pass the log of a training with at least one evaluation.",
        )
    parts = _by_run(cells, header) or [
        (name if idx == 0 else f"{name}#{idx + 1}", part)
        for idx, part in enumerate(split_attempts(cells, is_new))
    ]
    if len(parts) > 1 and parts[0][0] == name:
        parts[0] = (f"{name}#1", parts[0][1])
    return [
        Table(
            name=title,
            path=path,
            format=_format(header),
            cells=part,
            is_epoch_from_0=_is_epoch_from_0(part),
            notes=notes,
            known=_texts(part),
        )
        for title, part in parts
    ]


def _rows(text: str, path: str) -> tuple[list[str], list[list[str]], tuple[str, ...]]:
    """Return (names of the columns, rows, notes on what was ignored)."""
    lines = text.lstrip("\ufeff").splitlines()
    lines = [line for line in lines if line.strip() and not line.startswith("#")]
    if not lines:
        raise DataError("the file is empty", where=path, fix="Pass the log of a training.")
    delimiter = max(_DELIMITERS, key=lines[0].count)
    csv.field_size_limit(_MAX_CELL)
    try:
        read = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=delimiter))
    except csv.Error as error:
        raise DataError(
            f"not a valid CSV file ({error})",
            where=path,
            fix="Write one row per epoch, separated by commas, with column names in the first row.",
        ) from None
    header = [cell.strip() for cell in read[0]]
    _refuse_without_names(header, path)
    body = [[cell.strip() for cell in row] for row in read[1:]]
    if body and delimiter == "," and all(len(row) > len(header) for row in body):
        raise DataError(
            f"its rows have more cells than the {len(header)} column names: decimal commas in a "
            "comma-separated file",
            where=path,
            fix="Use decimal points, or separate the cells with semicolons.",
        )
    short = [row for row in body if len(row) < len(header) and row != header]
    notes: list[str] = []
    if short and body[-1] is short[-1] and not text.endswith("\n"):
        body.pop()
        notes.append("the last line is incomplete and is ignored")
        short.pop()
    if short:
        notes.append(f"{len(short)} of {len(body)} rows have fewer cells than there are columns")
    return header, body, tuple(notes)


def _refuse_without_names(header: list[str], path: str) -> None:
    if any(meaning(name) is not None for name in header):
        return
    is_text = any(len(name.split()) > _MAX_WORDS for name in header)
    if is_text or (len(header) == 1 and read_number(header[0]) is None):
        shown = ", ".join(header)
        raise DataError(
            f"unknown log format: it begins with {shown[:60]!r}",
            where=path,
            fix="Pass the log of a training; a CSV has column names in the first line, such as "
            "epoch,loss,val_loss,val_accuracy.",
        )
    if all(read_number(name) is not None for name in header):
        what = "the first line contains numbers instead of column names"
    else:
        what = f"none of its columns is known: {', '.join(header)[:200]}"
    raise DataError(
        what,
        where=path,
        fix="Write column names in the first line, such as epoch,loss,val_loss,val_accuracy.",
    )


def _by_run(cells: list[Cells], header: list[str]) -> list[tuple[str, list[Cells]]]:
    """Split by the column that names the run; empty without one."""
    key = next((name for name in header if meaning(name) is Meaning.RUN), None)
    if key is None:
        return []
    parts: dict[str, list[Cells]] = {}
    for row in cells:
        parts.setdefault(row.get(key, "") or "unnamed", []).append(row)
    return list(parts.items())


def _format(header: list[str]) -> LogFormat:
    is_lightning = {"epoch", "step"} <= set(header) and "run" not in header
    return LogFormat.LIGHTNING_CSV if is_lightning else LogFormat.CSV


def _is_epoch_from_0(part: list[Cells]) -> bool:
    """Return True if the first epoch has number 0, as in CSVLogger and Lightning."""
    epochs = list(_epochs(part))
    return bool(epochs) and min(epochs) == 0


def _epochs(part: list[Cells]) -> Iterator[float]:
    for row in part:
        for name, text in row.items():
            if meaning(name) is Meaning.EPOCH and (epoch := read_number(text)) is not None:
                yield epoch


def _texts(part: list[Cells]) -> dict[str, object]:
    """Return the values of text columns."""
    found: dict[str, object] = {}
    for row in part:
        for name, text in row.items():
            kind = meaning(name)
            if kind is Meaning.VAL_SET and text:
                found["val_set"] = text
    return found
