"""Columns of findings, as radiologists' labelers write them: 1, 0, -1 (uncertain) and empty cells.

They are not read as classes: a picture has several of them, and neither -1 nor an empty cell is 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from typing import Final

from stepladder.data.sources.label_tables.edits import rows_command
from stepladder.data.sources.label_tables.labels import (
    ONE_LABEL,
    finding_of,
    is_finding,
    plain_name,
)
from stepladder.data.sources.label_tables.paths import PathReader
from stepladder.data.sources.label_tables.reading import TableColumns, TableReading
from stepladder.data.sources.listing import name_some
from stepladder.errors import DataError

_MIN_COLUMNS: Final = 3
_MAX_NAMED: Final = 6
_EMPTY: Final = 'r[{}].strip().lower() in ("","nan","<na>")'
_UNSURE: Final = 'r[{}].strip() in ("-1","-1.0")'


def finding_columns(reading: TableReading, taken: Set[int]) -> list[int]:
    """Return the columns of findings, if there are several and some cells are empty or -1.

    Args:
        reading: the table.
        taken: columns that mean something else.
    """
    body = reading.file.body
    found = []
    values: Counter[int | None] = Counter()
    for at, name in enumerate(reading.file.header):
        if at in taken or not name or not all(is_finding(cells[at]) for _, cells in body):
            continue
        counts = _counts(reading, at)
        if counts[1]:
            found.append(at)
            values.update(counts)
    is_unsure = bool(values[None]) or bool(values[-1] and values[0])
    return found if len(found) >= _MIN_COLUMNS and is_unsure else []


def several_findings(
    reading: TableReading, columns: Sequence[int], path_at: int, reader: PathReader
) -> DataError:
    """Return the error for a table with a column for each finding; the fix learns one of them."""
    file = reading.file
    names = [repr(file.header[at]) for at in columns]
    shown = name_some(names[:_MAX_NAMED])
    shown += f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    rows = [Counter(finding_of(cells[at]) for at in columns) for _, cells in file.body]
    counts = Counter(
        what
        for row in rows
        for what, is_so in (("several", row[1] > 1), ("empty", row[None]), ("unsure", row[-1]))
        if is_so
    )
    some = ((counts["several"], "have several of them"), (counts["empty"], "have empty cells"))
    parts = [f"{num} {what}" for num, what in (*some, (counts["unsure"], "have -1")) if num]
    best = max(columns, key=lambda at: _rank(reading, at))
    command = reading.command(TableColumns(path_at, best), reader)
    fix = f"To learn one of them, such as {file.header[best]!r}: {command}"
    if not counts["several"] and not counts["unsure"] and all(row[1] == 1 for row in rows):
        of_row = f'lambda r:[c if c.strip() or k not in {list(columns)} else "0" '
        of_row += "for k,c in enumerate(r)]"
        options = reading.options(TableColumns(path_at), reader)
        filled = rows_command(reading, of_row, "filled", options)
        fix = f"To read empty cells as 0: {filled}\n{fix}" if filled else fix
    return DataError(
        f"several columns may be the one of labels, each with 1 and 0 of one class: {shown}; "
        f"of {len(rows)} {file.unit}s, {', '.join(parts)}",
        where=str(reading.path),
        why=f"{ONE_LABEL} An empty cell or -1 is not read as 0.",
        fix=fix,
    )


def refuse_unsure(
    reading: TableReading, columns: TableColumns, reader: PathReader, taken: Set[int]
) -> None:
    """Refuse a column of findings with empty cells or -1; the commands decide what they are.

    Args:
        reading: the table.
        columns: those that are chosen.
        reader: how paths name files.
        taken: columns that mean something else.

    Raises:
        DataError: if the column of labels is such.
    """
    at = columns.label
    if at is None or at not in finding_columns(reading, taken):
        return
    counts = _counts(reading, at)
    parts = []
    if counts[None]:
        parts.append(f"empty in {counts[None]} of {len(reading.file.body)} {reading.file.unit}s")
    if counts[-1] and counts[0]:
        parts.append(f"-1 in {counts[-1]}")
    if not parts:
        return
    fixes = [
        f"{what[:1].upper()}{what[1:]}: {command}"
        for what, of_row, prefix in _choices(reading, at, counts)
        if (command := rows_command(reading, of_row, prefix, reading.options(columns, reader)))
    ]
    fix = "\n".join(fixes) or f"Write 0 or 1 into each cell, or remove the {reading.file.unit}s."
    raise DataError(
        f"column {reading.file.header[at]!r} is {' and '.join(parts)}",
        where=str(reading.path),
        why="Labelers of reports write -1 for uncertain, and leave a cell empty if a report does "
        "not mention the finding.",
        fix=fix,
    )


def unsure_warnings(reading: TableReading, columns: TableColumns) -> Iterator[str]:
    """Yield a warning if a column of labels is -1 in some rows, and 0 or 1 in all others."""
    at = columns.label
    if at is None:
        return
    counts = _counts(reading, at)
    if set(counts) == {-1, 0, 1}:
        yield (
            f"{reading.path}: column {reading.file.header[at]!r} is -1 in {counts[-1]} of "
            f"{len(reading.file.body)} {reading.file.unit}s, which is read as a class of its own; "
            f"if it means uncertain, remove these {reading.file.unit}s"
        )


def _choices(
    reading: TableReading, at: int, counts: Counter[int | None]
) -> Iterator[tuple[str, str, str]]:
    """Yield what to do about cells that are neither 0 nor 1, a function of a row, and a prefix."""
    empty, unsure = _EMPTY.format(at), _UNSURE.format(at)
    has_unsure = bool(counts[-1] and counts[0])
    bad = " or ".join(
        one for one, is_some in ((empty, counts[None]), (unsure, has_unsure)) if is_some
    )
    yield "to leave these rows out", f"lambda r:None if {bad} else r", "without"
    if counts[None]:
        zeros = [cell for cell in reading.cells(at) if finding_of(cell) == (0 if counts[0] else -1)]
        filled = f'[*r[:{at}],"{[*zeros, "0"][0].strip()}",*r[{at + 1}:]] if {empty} else r'
        if has_unsure:
            what = "to read empty cells as 0, and leave out -1"
            yield what, f"lambda r:None if {unsure} else {filled}", "filled"
        else:
            yield "to read empty cells as 0", f"lambda r:{filled}", "filled"


def _counts(reading: TableReading, at: int) -> Counter[int | None]:
    """Count the cells of a column by what they mean."""
    return Counter(finding_of(cells[at]) for _, cells in reading.file.body)


def _rank(reading: TableReading, at: int) -> tuple[bool, int]:
    """Return a sort key: the finding that is the best example is the greatest."""
    counts = _counts(reading, at)
    is_negated = plain_name(reading.file.header[at]).startswith("no_")
    return not is_negated, min(counts[1], counts[0] or counts[-1] or counts[None])
