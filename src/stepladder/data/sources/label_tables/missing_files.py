"""Explain why the paths of a table name no file, and return the command that reads it anyway."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from stepladder.data.sources.label_tables.addresses import (
    ADDRESS,
    addresses_refused,
    download,
    find_addresses,
)
from stepladder.data.sources.label_tables.by_name import Followed, Nearby, Spread
from stepladder.data.sources.label_tables.edits import cells_command, rows_command, sed_command
from stepladder.data.sources.label_tables.json_file import EXAMPLE_LINE
from stepladder.data.sources.label_tables.labels import (
    ONE_LABEL,
    label_candidates,
    plain_name,
    words_of,
)
from stepladder.data.sources.label_tables.nested import describe_nested
from stepladder.data.sources.label_tables.paths import (
    PATH_NAMES,
    SLOT,
    PathReader,
    are_file_names,
    is_found,
    search,
    some,
)
from stepladder.data.sources.label_tables.reading import (
    TableColumns,
    TableReading,
    is_empty,
)
from stepladder.data.sources.label_tables.refusals import no_column
from stepladder.data.sources.listing import name_some
from stepladder.data.sources.walk import printable
from stepladder.errors import DataError

_SCIENTIFIC: Final = re.compile(r"([1-9])(?:[.,]([0-9]+))?[eE]\+?([0-9]{1,3})")
_ROUNDED: Final = re.compile(r"[1-9][0-9]{14}0+(?:\.0)?")
_NUM_EXACT: Final = 15  # digits that a spreadsheet keeps
_MIN_EXPONENT: Final = 11  # of numbers that a spreadsheet shortens
_MAX_SHOWN: Final = 2
_MAX_SEARCHED: Final = 20  # columns
_WHOLE: Final = "any"  # the label of pictures with one of several others
_MAX_LETTERS: Final = 200  # of a path in a message


def no_file(
    reading: TableReading,
    columns: TableColumns,
    readers: Sequence[PathReader],
    *,
    is_one_hot: bool,
) -> DataError:
    """Return an error for paths that name no file, or names that are in several folders.

    Args:
        reading: the table.
        columns: those that are chosen.
        readers: the ways in which paths name files, if there are several or none is certain.
        is_one_hot: whether each class has its own column.
    """
    number, cell = _first_in_several(reading, columns.path, readers)
    where = f"{reading.path}: {reading.file.unit} {number}"
    reader = replace(reading.shape, is_stripped=cell != cell.strip(), has_backslashes="\\" in cell)
    wanted = reader(cell)
    if not readers and reading.config.path_format is not None:  # which does not help
        readers = search(reading.cells(columns.path), reading.root)
    is_address = ADDRESS.match(wanted) is not None
    problem = (
        f"{printable(wanted)[:_MAX_LETTERS]!r} is an address, not a path"
        if is_address
        else f"no picture {printable(wanted)[:_MAX_LETTERS]!r} in {reading.root}"
    )
    if readers:
        what, fix = _found_elsewhere(reading, columns, readers, cell, is_address=is_address)
        return DataError(f"{problem}: {what}", where=where, fix=fix)
    other = _other_column(reading, columns, is_one_hot=is_one_hot)
    if other is not None:
        what, fix = other
        return DataError(f"{problem}: {what}", where=where, fix=fix)
    for exists in _in_another_case(reading.root, wanted):
        return DataError(
            f"{problem}: {printable(exists)} exists, upper and lower case differ",
            where=where,
            fix="Write paths as files are named.",
        )
    nearby = Nearby(reading.root)
    named = _shortened(reading, [columns.path], nearby) or _named_nearby(reading, columns, nearby)
    if named is not None:
        return named
    if is_address:
        fix = download(reading, columns.path)
    else:
        fix = (
            "Paths are relative to the table's folder. If they lack a folder or an ending, add "
            "it: --path-format 'FOLDER/{}.jpg'"
        )
    if not is_address:
        problem += f". {_where_pictures_are(reading, nearby)}"
    return DataError(problem, where=where, fix=fix)


def find_named(reading: TableReading, nearby: Nearby) -> int | None:
    """Return the column whose cells are names of pictures in folders that are deep or many."""
    able = _likely_paths(reading)
    cells = {at: reading.cells(at) for at in able}
    in_one = [at for at in able if nearby.readers(cells[at])]
    return next(iter(in_one or [at for at in able if nearby.spread(cells[at])]), None)


def find_renamed(reading: TableReading, nearby: Nearby) -> tuple[int, PathReader] | None:
    """Return the column of names that an annotation tool changed, and how these are read."""
    able = _likely_paths(reading) if reading.config.path_format is None else []
    found = ((at, nearby.renamed(reading.cells(at))) for at in able)
    return next(((at, reader) for at, reader in found if reader is not None), None)


def no_path_column(reading: TableReading, nearby: Nearby) -> DataError:
    """Return the error for a table without a column that names pictures: which one is nearest."""
    if (shortened := _shortened(reading, range(len(reading.file.header)), nearby)) is not None:
        return shortened
    able = _likely_paths(reading)
    for at in able:
        followed = nearby.followed(reading.cells(at))
        if followed is not None:
            return _followed(reading, at, followed)
    if (address_at := find_addresses(reading)) is not None:
        return addresses_refused(reading, address_at)
    error = no_column(reading, "path_column", able=able[:1])
    what = error.what
    if able:
        example = printable(reading.cells(able[0])[0])[:_MAX_LETTERS]
        name = reading.file.header[able[0]]
        what += f". Nearest is {name!r}, such as {example!r}, but no picture here has this name"
    what += f". {_where_pictures_are(reading, nearby)}{describe_nested(reading)}"
    fix = EXAMPLE_LINE if reading.file.nested and not able else error.fix
    return DataError(what, where=error.where, why=error.why, fix=fix)


def _shortened(reading: TableReading, ats: Iterable[int], nearby: Nearby) -> DataError | None:
    """Return the error for a column of ids whose last digits a spreadsheet has dropped."""
    for at in ats:
        cells = reading.cells(at)
        found = [cell for cell in cells if _num_kept(cell) is not None]
        picture = next(
            (one for cell in found for one in nearby.pictures if _is_rounded(cell, one)), None
        )
        if 2 * len(found) <= len(cells) or (picture is None and reading.file.nested):
            continue
        if picture is None and not (
            at == reading.index(reading.config.path_column)
            or "id" in words_of(reading.file.header[at])
        ):
            continue
        name, cell = reading.file.header[at], printable(found[0].strip())
        digits = f"{_num_kept(found[0])} digits" if "e" in found[0].lower() else "15 digits"
        exists = f", which may be {printable(picture)}" if picture else ""
        return DataError(
            f"column {name!r} has numbers that a spreadsheet rounded to {digits} in {len(found)} "
            f"of {len(cells)} cells, such as {cell!r}{exists}",
            where=_where(reading, at, found[0].strip()),
            why="The last digits are lost, so these cells name no picture any more.",
            fix="Export the ids again from their source, as text; in a spreadsheet, import this "
            "column as text before you save the table.",
        )
    return None


def _num_kept(cell: str) -> int | None:
    """Return the number of digits that are left of a rounded number; None if it is another."""
    text = cell.strip()
    match = _SCIENTIFIC.fullmatch(text)
    if match is not None:
        kept = len(match[1]) + len(match[2] or "")
        return kept if kept <= int(match[3]) >= _MIN_EXPONENT else None
    return _NUM_EXACT if _ROUNDED.fullmatch(text) else None


def _is_rounded(cell: str, picture: str) -> bool:
    """Return whether the name of a picture has the number of a cell before it was rounded."""
    text, kept = cell.strip(), _num_kept(cell)
    match = _SCIENTIFIC.fullmatch(text)
    digits = match[1] + (match[2] or "") if match else text[:_NUM_EXACT]
    length = int(match[3]) + 1 if match else len(text.partition(".")[0])
    for number in re.findall("[0-9]+", picture.rpartition("/")[2]):
        if len(number) == length and kept is not None:
            start = int(number[:kept])
            if int(digits) in {start, start + 1}:
                return True
    return False


def _where_pictures_are(reading: TableReading, nearby: Nearby) -> str:
    if not nearby.pictures:
        return f"There are no pictures in {printable(str(reading.root))} or its folders"
    return f"Pictures here are named such as {printable(nearby.pictures[0])!r}"


def _likely_paths(reading: TableReading) -> list[int]:
    """Return the columns that may name pictures, the likeliest first."""
    header = reading.file.header
    able = [at for at in range(len(header)) if reading.may_be_paths(at)]

    def rank(at: int) -> tuple[bool, bool, bool, int]:
        cells = some(reading.cells(at))
        name = plain_name(header[at])
        is_id = "id" in words_of(header[at])
        return not are_file_names(cells), name not in PATH_NAMES, not is_id, -len(set(cells))

    return sorted(able, key=rank)[:_MAX_SEARCHED]


def _named_nearby(reading: TableReading, columns: TableColumns, nearby: Nearby) -> DataError | None:
    """Return the error for cells that name pictures deep in folders, or with more around a name."""
    cells = reading.cells(columns.path)
    if reading.config.path_format is None and (readers := nearby.readers(cells)):
        number, cell = _first_in_several(reading, columns.path, readers)
        what, fix = _found_elsewhere(reading, columns, readers, cell, is_address=False)
        return DataError(
            f"no picture {printable(cell)[:_MAX_LETTERS]!r} in {reading.root}: {what}",
            where=f"{reading.path}: {reading.file.unit} {number}",
            fix=fix,
        )
    if (spread := nearby.spread(cells)) is not None:
        return _spread(reading, columns, spread)
    if (followed := nearby.followed(cells)) is not None:
        return _followed(reading, columns.path, followed)
    return None


def _spread(reading: TableReading, columns: TableColumns, spread: Spread) -> DataError:
    how = "are the start of its name" if spread.are_slices else "differ from picture to picture"
    options = reading.options(columns, PathReader())
    command = cells_command(reading, columns.path, spread.function, "paths", options)
    return DataError(
        f"no picture {printable(spread.cell)!r} in {reading.root}: {printable(spread.path)} "
        f"exists; the folders {how}",
        where=_where(reading, columns.path, spread.cell),
        fix=f"To write these paths into the table: {command}"
        if command
        else "Write these paths into the table.",
    )


def _followed(reading: TableReading, at: int, followed: Followed) -> DataError:
    """Return the error for cells such as `ID_ab12_epidural`, if the picture is ID_ab12."""
    end = next(one for one in followed.ends if followed.cell.endswith(one))
    what = (
        f"no picture is named {printable(followed.cell)!r}: {printable(followed.path)} exists, "
        f"without {printable(end)!r}"
    )
    why, ends = None, sorted(followed.ends)
    fix = "Write the names of pictures into this column."
    if followed.are_labels:
        what += f", which seems to be a label: {name_some([repr(one) for one in ends])}"
        why = ONE_LABEL
        chosen, label_at = _label_to_learn(reading, at, ends)
        of_row = (
            f"lambda r:[*r[:{at}],r[{at}].strip()[:-{len(chosen)}],*r[{at + 1}:]] "
            f"if r[{at}].strip().endswith({json.dumps(chosen, ensure_ascii=False)}) else None"
        )
        options = reading.options(TableColumns(at, label_at), PathReader())
        command = rows_command(reading, of_row, "one-label", options)
        if command:
            fix = f"To learn one of them, such as {chosen!r}: {command}"
    elif len(ends) == 1:
        function = f"lambda c:c.removesuffix({json.dumps(end, ensure_ascii=False)})"
        options = reading.options(TableColumns(at), PathReader())
        command = cells_command(reading, at, function, "names", options)
        fix = f"To remove it: {command}" if command else fix
    return DataError(what, where=_where(reading, at, followed.cell), why=why, fix=fix)


def _label_to_learn(reading: TableReading, at: int, ends: Sequence[str]) -> tuple[str, int | None]:
    """Return what follows the names of pictures in the rows to keep, and the column of labels.

    It is `any`, if there is such a label, else the one whose cells are the least unequal.
    """
    found = label_candidates(reading.file, {at})
    label_at = reading.index(reading.config.label_column)
    label_at = found[0] if label_at is None and found else label_at
    whole = [end for end in ends if end[1:].lower() == _WHOLE]
    if whole or label_at is None:
        return [*whole, *ends][0], label_at
    counts: dict[str, Counter[str]] = {end: Counter() for end in ends}
    for _, cells in reading.file.body:
        for end in ends:
            if cells[at].strip().endswith(end):
                counts[end][cells[label_at].strip()] += 1
    return min(ends, key=lambda end: max(counts[end].values(), default=0)), label_at


def _where(reading: TableReading, at: int, cell: str) -> str:
    """Return the place of the first row with a cell."""
    numbers = (number for number, cells in reading.file.body if cells[at].strip() == cell)
    return f"{reading.path}: {reading.file.unit} {next(numbers)}"


def what_lacks(reader: PathReader) -> str:
    """Return what the paths of a table lack, as a clause."""
    start, _, ending = reader.path_format.partition(SLOT)
    folder = start.rpartition("/")[1]
    name = "" if reader.num_digits else start.rpartition("/")[2]
    parts = (("folder", folder), ("start", name), ("ending", ending))
    lacks = [what for what, part in parts if part]
    missing = f"the {' and the '.join(lacks)} {'are' if len(lacks) > 1 else 'is'} missing"
    if reader.num_digits == 1:
        return f"{missing}, without '.0' after the numbers" if lacks else "without '.0'"
    if not reader.num_digits:
        return missing
    return f"{missing}, and so are zeros: names have {reader.num_digits} digits"


def _first_in_several(
    reading: TableReading, path_at: int, readers: Sequence[PathReader]
) -> tuple[int, str]:
    """Return the first row and cell; if readers differ, those that two of them find."""
    body = reading.file.body
    rows = [(number, cells[path_at]) for number, cells in body if not is_empty(cells[path_at])]
    if len(readers) > 1:
        for number, cell in rows:
            if sum(is_found(reading.root, one(cell)) for one in readers) > 1:
                return number, cell
    return rows[0]


def _found_elsewhere(
    reading: TableReading,
    columns: TableColumns,
    readers: Sequence[PathReader],
    cell: str,
    *,
    is_address: bool,
) -> tuple[str, str]:
    """Return what exists in place of the file of a cell, and the command that reads it."""
    found = readers[0]
    here = sorted(readers, key=lambda one: not is_found(reading.root, one(cell)))
    exist = " and ".join(printable(one(cell)) for one in here[:_MAX_SHOWN])
    if len(readers) > 1:
        command = reading.command(columns, found)
        return f"{exist} are both pictures", f"To read the first: {command}"
    if not found.cut:
        command = reading.command(columns, found)
        return f"{exist} exists, {what_lacks(found)}", f"Type: {command}"
    if found.cut == "/":
        folder = found.path_format.partition(SLOT)[0].rstrip("/") or "."
        ending = found.path_format.partition(SLOT)[2]
        found = replace(found, cut="", path_format=f"{folder}{SLOT}{ending}")
        command = reading.command(columns, found)
        return f"{exist} exists, the path begins with a slash", f"Type: {command}"
    what, fix = _other_start(reading, columns, found, exist)
    return f"{exist} exists" if is_address else what, fix


def _other_start(
    reading: TableReading, columns: TableColumns, reader: PathReader, exists: str
) -> tuple[str, str]:
    """Return what is wrong with paths whose start is not here, and the command against it."""
    file, cut = reading.file, reader.cut
    is_other = cut.startswith("/") or ":" in cut
    what = f"{cut!r} {'is a folder of another machine' if is_other else 'is no folder here'}"
    pattern = re.sub(r"([.*^$\[\]|])", r"\\\1", cut)
    if file.unit != "row":  # JSON may write \\ and \/
        pattern = pattern.replace("/", r"[\\/]\{1,2\}")
    elif reader.has_backslashes:
        pattern = pattern.replace("/", r"[\\/]")
    is_before = any(
        cut in cell.replace("\\", "/") for _, cells in file.body for cell in cells[: columns.path]
    )
    script = f"s|{pattern}||{'g' if is_before or file.unit == 'item' else ''}"
    options = reading.options(columns, replace(reader, cut=""))
    command = sed_command(reading, script, "here", options)
    return f"{exists} exists, {what}", f"Remove it: {command}"


def _other_column(
    reading: TableReading, columns: TableColumns, *, is_one_hot: bool
) -> tuple[str, str] | None:
    """Return which column names pictures instead, and the command that reads it."""
    for other in range(len(reading.file.header)):
        if (
            other not in {columns.path, columns.split}
            and reading.may_be_paths(other)
            and (better := reading.readers(other))
            and not better[0].cut
        ):
            is_taken = columns.label == other or (columns.label is None and not is_one_hot)
            label = columns.path if is_taken else columns.label
            command = reading.command(TableColumns(other, label, columns.split), better[0])
            exists = printable(better[0](reading.cells(other)[0]))
            return f"column {other + 1} names pictures, such as {exists}", f"Use it: {command}"
    return None


def _in_another_case(root: Path, path: str) -> Iterator[str]:
    wanted = path.rpartition("/")[2].casefold()
    beside = root / os.path.dirname(path)  # noqa: PTH120
    if os.path.isdir(beside):  # noqa: PTH112 (Path raises on a long name)
        for name in sorted(os.listdir(beside)):  # noqa: PTH208 (names only)
            if name.casefold() == wanted:
                yield os.path.relpath(beside / name, root)
