"""Tables: CSV files of any trainer, printed tables of fastai and skorch, exports of W&B."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from stepladder.diagnosis.logs.files.ray_log import is_ray_log, read_ray_rows
from stepladder.diagnosis.logs.files.run_tables import known_of, run_rows
from stepladder.diagnosis.logs.meaning.attempts import Attempt, split_attempts
from stepladder.diagnosis.logs.meaning.column_names import (
    Meaning,
    has_split,
    meaning,
    plain_name,
    read_number,
    read_place,
    score_rank,
)
from stepladder.diagnosis.logs.meaning.rows import Cells, Table
from stepladder.diagnosis.logs.meaning.splits import name_splits
from stepladder.diagnosis.logs.printed.screen import screen_lines
from stepladder.errors import DataError
from stepladder.records.audit import LogFormat

_DELIMITERS = (",", ";", "\t", "|")
_MAX_WORDS = 5  # in the name of a column; more are a sentence
_MAX_CELL = 1_000_000


_BLANKS = "blanks"  # the delimiter of a printed table
_RULE = re.compile(r"[\s|:+=_\-\u2500-\u257f]*-{3,}[\s|:+=_\-\u2500-\u257f]*")
_VALUE = re.compile(r"=\s*[\d.]|\s[\d.]+\s*$")  # in a cell that is no name
_MAX_HEADER, _MAX_NAME = 50_000, 100  # characters
_MAX_BEFORE = 500  # lines before the header of a printed table
_INDEX = ("", "unnamed_0", "index")  # column of a pandas index
_KEYS = ("metric", "key", "metric_key", "metric_name", "tag")  # columns of one row per value
_VALUES = ("value", "metric_value")
_WANDB = re.compile(r"^(.*\S) - (.+?)(__MIN|__MAX)?$")


def has_header(text: str) -> bool:
    """Return True if a text has a line of column names, of which at least two are known."""
    return _header_at(_text_lines(text)) is not None


def read_csv(text: str, *, name: str, path: str) -> list[Table]:
    """Read a table with column names; any usual delimiter and decimal separator.

    The columns of a printed table may be separated by blanks. A column `run`, or the columns of
    several runs of W&B, split it into trainings; without one, it is split where the epochs start
    again.

    Raises:
        DataError: if there are no rows, or they do not match the header.
    """
    header, rows, notes = _rows(text, path)
    cells: list[Cells] = []
    is_new: list[bool] = []
    pending = True
    for row in rows:
        if _is_header(row, header):
            header = _indexed(row)
            pending = True
            continue
        cells.append(dict(zip(header, row, strict=False)))
        is_new.append(pending)
        pending = False
    if not cells:
        raise DataError(
            "the log has column names but no rows with values",
            where=path,
            fix="Pass the log of a training that has finished at least one epoch.",
        )
    if is_ray_log(header) and len({row.get("trial_id") for row in cells}) == 1:
        rows_of_trial, fields = read_ray_rows(cells)
        table = Table(name=name, path=path, format=LogFormat.CSV, cells=rows_of_trial)
        return [replace(table, **fields | {"notes": (*notes, *fields.get("notes", ()))})]
    if [plain_name(column) for column in header] == ["wall_time", "step", "value"]:
        cells = [_with_tag(row, path) for row in cells]
    cells, header = _wide(cells, header)
    cells = name_splits(_with_epochs(cells))
    if runs := run_rows(cells, header):
        return [
            Table(
                name=run.name,
                path=path,
                format=LogFormat.CSV,
                cells=[run.cells],
                notes=(*notes, f"it has not finished: {run.state}") if run.state else notes,
                known=known_of(run),
            )
            for run in runs
        ]
    named = _by_run(cells, header) or _by_wandb_run(cells, header)
    parts = [(title, Attempt(cells=part)) for title, part in named] or [
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
            cells=part.cells,
            is_epoch_from_0=(is_from_0 := _is_epoch_from_0(part.cells, _format(header))),
            notes=notes + part.notes(is_epoch_from_0=is_from_0),
            resumed_at=part.resumed_at,
            known=_texts(part.cells),
        )
        for title, part in parts
    ]


def _text_lines(text: str) -> list[str]:
    """Return the lines that may belong to a table."""
    lines = [line for line in screen_lines(text.lstrip("\ufeff")) if line.strip()]
    return [line for line in lines if not line.startswith("#") and not _RULE.fullmatch(line)]


def _header_at(lines: Sequence[str]) -> int | None:
    """Return the place of the first line of column names, of which at least two are known."""
    for idx, line in enumerate(lines[:_MAX_BEFORE]):
        if len(line) > _MAX_HEADER:
            continue
        cells = _split([line], _delimiter(line))[0]
        if any(len(cell) > _MAX_NAME or len(cell.split()) > _MAX_WORDS for cell in cells):
            continue
        is_named = not any(
            read_number(cell) is not None or ": " in cell or _VALUE.search(cell) for cell in cells
        )
        if is_named and sum(map(_is_known, cells)) >= 2:
            return idx
    return None


def _is_known(name: str) -> bool:
    return meaning(name) is not None or (has_split(name) and score_rank(name) is not None)


def _delimiter(line: str) -> str:
    found = max(_DELIMITERS, key=line.count)
    return found if line.count(found) else _BLANKS


def _split(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    """Split lines into cells; of a table in Markdown, without the outer ones."""
    if delimiter == _BLANKS:
        return [re.split(r"\t|\s{2,}", line.strip()) for line in lines]
    rows = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=delimiter))
    rows = [[cell.strip() for cell in row] for row in rows]
    is_markdown = delimiter == "|" and all(line.strip().startswith("|") for line in lines)
    return [row[1:-1] for row in rows] if is_markdown else rows


def _is_header(row: Sequence[str], header: Sequence[str]) -> bool:
    """Return True if a row has column names; the names of a row may differ from the first ones."""
    if list(row) == list(header):
        return True
    names = [cell for cell in row if cell and read_number(cell) is None]
    return len(names) >= 2 and sum(cell in header for cell in names) * 2 > len(names)


def _indexed(row: Sequence[str]) -> list[str]:
    """Return a repeated header; within a printed DataFrame, its index has a number."""
    return ["" if read_number(cell) is not None else cell for cell in row]


def _with_epochs(cells: list[Cells]) -> list[Cells]:
    """Use the index of a DataFrame as the epoch, if the table has neither epochs nor steps."""
    names = dict.fromkeys(name for row in cells for name in row)
    index = next(iter(names), None)
    if (
        index is None
        or plain_name(index) not in _INDEX
        or {Meaning.EPOCH, Meaning.STEP} & {meaning(name) for name in names}
        or [read_number(row.get(index, "")) for row in cells] != list(range(len(cells)))
    ):
        return cells
    return [
        {("epoch" if key == index else key): text for key, text in row.items()} for row in cells
    ]


def _wide(cells: list[Cells], header: list[str]) -> tuple[list[Cells], list[str]]:
    """Return a table with one row per value as one with a column per metric.

    So are the histories that MLflow and TensorBoard.dev export: run, metric, step, value.
    """
    plain = {plain_name(name): name for name in reversed(header)}
    key = next((plain[name] for name in _KEYS if name in plain), None)
    value = next((plain[name] for name in _VALUES if name in plain), None)
    if key is None or value is None:
        return cells, header
    tags = list(dict.fromkeys(row.get(key, "") for row in cells))
    if not any(_is_known(tag) or score_rank(tag) is not None for tag in tags):
        return cells, header
    others = [name for name in header if name not in (key, value)]
    places = [
        name for name in others if meaning(name) in (Meaning.RUN, Meaning.EPOCH, Meaning.STEP)
    ]
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for row in cells:
        at = tuple(row.get(name, "") for name in places)
        wide = rows.setdefault(at, {})
        wide |= {name: row.get(name, "") for name in others}
        wide[row.get(key, "")] = row.get(value, "")
    return _in_order(list(rows.values()), places), [*others, *tags]


def _in_order(rows: list[Cells], places: Sequence[str]) -> list[Cells]:
    """Return rows by run, in the order of the log, and by step."""
    runs = {text: idx for idx, text in enumerate(dict.fromkeys(
        tuple(row[name] for name in places if meaning(name) is Meaning.RUN) for row in rows
    ))}  # fmt: skip

    def place(row: Cells) -> tuple[int, list[float]]:
        run = tuple(row[name] for name in places if meaning(name) is Meaning.RUN)
        steps = [name for name in places if meaning(name) is not Meaning.RUN]
        return runs[run], [read_place(row[name]) or 0.0 for name in steps]

    return sorted(rows, key=place)


def _with_tag(row: Cells, path: str) -> Cells:
    """Return a row of a file that TensorBoard exported, with the tag from the file's name."""
    tag = Path(path).stem.partition("tag-")[2] or Path(path).stem
    return {tag if plain_name(name) == "value" else name: text for name, text in row.items()}


def _by_wandb_run(cells: Sequence[Cells], header: Sequence[str]) -> list[tuple[str, list[Cells]]]:
    """Split an export of a panel by its columns `RUN - METRIC`; their extremes are left out."""
    if not any(name.endswith("__MIN") for name in header):
        return []
    columns = {name: found for name in header if (found := _WANDB.match(name))}
    others = [name for name in header if name not in columns]
    parts: dict[str, list[Cells]] = {}
    for run in dict.fromkeys(found[1] for found in columns.values()):
        own = {n: f[2] for n, f in columns.items() if f[1] == run and f[3] is None}
        rows: list[Cells] = [
            {name: row.get(name, "") for name in others}
            | {metric: row.get(name, "") for name, metric in own.items()}
            for row in cells
            if any(row.get(name) for name in own)
        ]
        parts[run] = rows
    return list(parts.items())


def _rows(text: str, path: str) -> tuple[list[str], list[list[str]], tuple[str, ...]]:
    """Return (names of the columns, rows, notes on what was ignored)."""
    lines = _text_lines(text)
    if not lines:
        raise DataError(
            "this log is an empty file",
            where=path,
            fix="Pass the log of a training that has finished at least one epoch.",
        )
    lines = lines[_header_at(lines) or 0 :]
    delimiter = _delimiter(lines[0])
    if delimiter == "|" and lines[0].lstrip().startswith("|"):  # Markdown, with a text around it
        lines = [line for line in lines if line.lstrip().startswith("|")]
    csv.field_size_limit(_MAX_CELL)
    try:
        read = _split(lines, delimiter)
    except csv.Error as error:
        raise DataError(
            f"the log is not a valid CSV file ({error})",
            where=path,
            fix="Write one row per epoch, separated by commas, with column names in the first row.",
        ) from None
    if delimiter == _BLANKS:
        read = _of_the_table(read)
    header = [cell.strip() for cell in read[0]]
    _refuse_without_names(header, path)
    body = [[cell.strip() for cell in row] for row in read[1:]]
    if body and all(len(row) == len(header) + 1 for row in body) and delimiter in ("\t", _BLANKS):
        header = ["", *header]  # of the index of a printed DataFrame
    if body and delimiter == "," and all(len(row) > len(header) for row in body):
        raise DataError(
            f"the rows of this CSV file have more cells than its {len(header)} column names, "
            "probably because numbers are written with a decimal comma (0,5)",
            where=path,
            fix="Write numbers with a decimal point (0.5), or separate the cells with semicolons.",
        )
    short = [row for row in body if len(row) < len(header) and row != header]
    notes: list[str] = []
    if short and body[-1] is short[-1] and not text.endswith("\n"):
        body.pop()
        notes.append("the last line is incomplete and is ignored")
        short.pop()
    if short:
        notes.append(
            f"{len(short)} of {len(body)} rows have fewer cells than there are columns; cells that "
            "are missing at the end of a row are left out"
        )
    return header, body, tuple(notes)


def _of_the_table(read: list[list[str]]) -> list[list[str]]:
    """Return the rows of a printed table, without other lines between them."""
    num = len(read[0])
    rows = [
        row
        for row in read[1:]
        if len(row) in (num, num + 1) and (read_number(row[0]) is not None or row == read[0])
    ]
    return [read[0], *rows]


def _refuse_without_names(header: list[str], path: str) -> None:
    names = [name[:_MAX_NAME] for name in header]
    if any(_is_known(name) or score_rank(name) is not None for name in names):
        return
    is_text = any(len(name.split()) > _MAX_WORDS for name in header)
    if is_text or (len(header) == 1 and read_number(header[0]) is None):
        shown = ", ".join(header)
        raise DataError(
            f"this file is not a training log of a known format: it begins with {shown[:60]!r}",
            where=path,
            fix="Pass the log of a training, such as a CSV file whose first line is "
            "epoch,loss,val_loss,val_accuracy",
        )
    if sum(read_number(name) is not None for name in header) * 2 > len(header):
        what = "the first line of the log contains numbers instead of column names"
    else:
        what = (
            f"none of the columns is known to be a loss or an accuracy: {', '.join(header)[:200]}"
        )
    raise DataError(
        what,
        where=path,
        fix="Write column names such as epoch,loss,val_loss,val_accuracy into the first line. To "
        "judge a column of another name: --metric COLUMN",
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


def _is_epoch_from_0(part: Sequence[Cells], wrote: LogFormat) -> bool:
    """Return True if the first epoch has number 0, as in CSVLogger and Lightning.

    A log of Lightning that begins later, after a resume, counts from 0 if its steps do: the last
    step of epoch e is (e + 1) n − 1, for n steps per epoch.
    """
    epochs = list(_epochs(part))
    if not epochs or min(epochs) == 0 or wrote is not LogFormat.LIGHTNING_CSV:
        return bool(epochs) and min(epochs) == 0
    ends: dict[float, float] = {}
    for row in part:
        epoch, step = read_number(row.get("epoch", "")), read_number(row.get("step", ""))
        if epoch is not None and step is not None:
            ends[epoch] = max(step, ends.get(epoch, 0))
    places = sorted(ends.items())
    if len(places) < 2:
        return False
    (first, start), (second, after) = places[:2]
    num = (after - start) / (second - first)
    return num > 0 and abs((start + 1) / num - (first + 1)) < abs((start + 1) / num - first)


def _epochs(part: Sequence[Cells]) -> Iterator[float]:
    for row in part:
        for name, text in row.items():
            if meaning(name) is Meaning.EPOCH and (epoch := read_place(text)) is not None:
                yield epoch


def _texts(part: Sequence[Cells]) -> dict[str, object]:
    """Return the values of text columns."""
    found: dict[str, object] = {}
    for row in part:
        for name, text in row.items():
            kind = meaning(name)
            if kind is Meaning.VAL_SET and text:
                found["val_set"] = text
    return found
