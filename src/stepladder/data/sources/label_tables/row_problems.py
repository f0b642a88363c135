"""Collect what is wrong with the rows of a table, for one message and one command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stepladder.data.sources.label_tables.boxes import cutting, find_boxes
from stepladder.data.sources.label_tables.chooser import Chosen
from stepladder.data.sources.label_tables.edits import removal_command, rows_command
from stepladder.data.sources.label_tables.paths import PathReader, is_found
from stepladder.data.sources.label_tables.reading import TableReading, is_empty
from stepladder.data.sources.label_tables.refusals import name_rows
from stepladder.errors import DataError

_MAX_ROWS_TRIED: Final = 10_000  # whose files are looked for


@dataclass(frozen=True)
class Conflict:
    """Rows of one picture that differ in their label, split or group.

    Attributes:
        path: the picture, as the table names it.
        rows: numbers of all its rows.
        differing: numbers of the first row and of the first one that differs from it.
    """

    path: str
    rows: Sequence[int]
    differing: tuple[int, int]


def row_problems(
    reading: TableReading,
    empty: Sequence[tuple[str, Sequence[int]]],
    conflicts: Sequence[Conflict],
    chosen: Chosen,
) -> DataError:
    """Return the error for empty cells and rows that contradict each other.

    Rows of missing pictures are named, too. Without another problem, they are no error: up to a
    limit, they are skipped.

    Args:
        reading: the table.
        empty: name of each column with empty cells, and their rows.
        conflicts: pictures whose rows differ.
        chosen: what its columns mean.
    """
    unit = reading.file.unit
    missing = _missing(reading, chosen.path, chosen.to_path)
    what = [f"column {name!r} is empty in {name_rows(rows, reading.file)}" for name, rows in empty]
    fixes = [f"Fill in these cells or remove the {unit}s."] if empty else []
    if conflicts:
        first, second = conflicts[0].differing
        more = f", and so do those of {len(conflicts) - 1} more" if len(conflicts) > 1 else ""
        what.append(
            f"{unit}s {first} and {second} have different labels, splits or groups for "
            f"{conflicts[0].path!r}{more}"
        )
        boxes = find_boxes(reading)
        cut = None if boxes is None else cutting(boxes, reading, chosen)
        if boxes is not None:
            what[-1] += f"; {boxes.describe()}"
        if cut is not None:
            fixes.append(f"To learn the class of each box, cut the boxes out: {cut}\nOtherwise:")
        fixes.append(f"Keep one {unit} for each picture.")
    if missing:
        what.append(f"no picture exists for {name_rows(missing, reading.file)}")
    bad = {row for _, rows in empty for row in rows}
    bad |= {row for one in conflicts for row in one.rows}
    every = removal_command(reading, bad | set(missing), "without", chosen.options)
    command = every or removal_command(reading, bad, "without", chosen.options)
    if not command and empty and not conflicts:
        command = _removal_of_empty(reading, [name for name, _ in empty], chosen.options)
    if command:
        is_one_kind = len(what) == 1 and bool(empty)
        which = "" if is_one_kind else f" all of these {unit}s" if every else " the others"
        which = (
            " those with empty cells" if not is_one_kind and not every and not conflicts else which
        )
        fixes.append(f"To remove{which}: {command}")
    return DataError(
        "; ".join(what),
        where=str(reading.path),
        why="NaN counts as empty." if empty else None,
        fix=" ".join(fixes),
    )


def _missing(reading: TableReading, path_at: int, to_path: PathReader) -> list[int]:
    """Return the rows whose pictures do not exist; an empty list if the table is long."""
    body = reading.file.body
    if len(body) > _MAX_ROWS_TRIED:
        return []
    named = [(number, cells[path_at]) for number, cells in body if cells[path_at].strip()]
    return [number for number, cell in named if not is_found(reading.root, to_path(cell))]


def _removal_of_empty(reading: TableReading, names: Sequence[str], options: str) -> str:
    """Return the command that reads a table without the rows that have empty cells in columns."""
    ats = [reading.file.header.index(name) for name in names]
    if all(any(is_empty(cells[at]) for at in ats) for _, cells in reading.file.body):
        return ""
    empty = " or ".join(f'r[{at}].strip().lower() in ("","nan","<na>")' for at in ats)
    return rows_command(reading, f"lambda r:None if {empty} else r", "without", options) or ""
