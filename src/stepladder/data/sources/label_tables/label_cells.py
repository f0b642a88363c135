"""Find and refuse cells that are not one class each: measured numbers, or several labels."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from stepladder.config.choices import Split
from stepladder.data.sources.label_tables.edits import cells_command
from stepladder.data.sources.label_tables.labels import (
    ONE_LABEL,
    is_number,
    label_candidates,
    plain_name,
)
from stepladder.data.sources.label_tables.nested import refuse_objects
from stepladder.data.sources.label_tables.paths import PathReader
from stepladder.data.sources.label_tables.reading import TableColumns, TableReading, is_empty
from stepladder.data.sources.labels.captions import NO_CAPTIONS, find_captions
from stepladder.data.sources.splits.split_names import split_of_word
from stepladder.data.sources.walk import printable
from stepladder.errors import DataError

_LIST: Final = re.compile(r"\[.*[\"',].*\]|\{.*\}|\(.*,.*\)", re.DOTALL)
_BARS: Final = re.compile(r"\S\s*[|;]\s*\S")
_MARKS: Final = " []{}()\"'"  # around a label in a cell
_ID: Final = re.compile(r"0[0-9]|[-+]?[0-9]{7,}$")
_QUANTITY: Final = re.compile(
    r"(?:\b|_)(?:ages?|amount|angle|area|bmi|cost|counts?|depth|distance|height|length|price|size|"
    r"speed|temperature|volume|weight|width|years?)(?:\b|_)",
    re.IGNORECASE,
)
"""Names of columns of a quantity."""
_TAGS: Final = {"tags", "keywords", "attributes", "genres", "topics", "findings", "finding_labels"}
"""Names of columns of several labels, as plain_name writes them."""
_NUM_RANGES: Final = 4
_MIN_MEASURED: Final = 10
_MIN_FRACTIONS: Final = 20
_MIN_SIZES: Final = 3
_MAX_TAGS: Final = 100  # sentences have more different words
_MAX_LETTERS: Final = 60
_MAX_TRIED: Final = 4  # cells for an example


@dataclass(frozen=True)
class SeveralLabels:
    """Cells that seem to hold several labels each.

    Attributes:
        cells: these cells.
        num_cells: number of all cells.
        pattern: of what is between labels.
        tags: number of cells with each label.
        is_sure: whether a label of theirs is in another cell, too.
    """

    cells: list[str]
    num_cells: int
    pattern: str
    tags: Counter[str]
    is_sure: bool

    def describe(self, name: str) -> str:
        """Return the sentence about a column."""
        example = max(self.cells[:_MAX_TRIED], key=len)
        return (
            f"column {name!r} seems to hold several labels in {len(self.cells)} of "
            f"{self.num_cells} cells, such as {printable(example)[:_MAX_LETTERS]!r}"
        )


def find_several(labels: Sequence[str], column: str = "") -> SeveralLabels | None:
    """Return the labels that seem to be several: `a|b`, `['a', 'b']`, `a,b` or `a b`.

    Commas and blanks count only if each part is in another label, too, and either a part is a
    label, or there are more combinations than parts, of different sizes. In a column of tags, it is
    enough that most combinations share a part with another one.

    Args:
        labels: the cells.
        column: name of their column, or empty.
    """
    distinct = set(labels)
    kinds = {
        "[|;]": {label for label in distinct if _BARS.search(label)},
        "[,;|]": {label for label in distinct if _LIST.fullmatch(label)},
        ",": _of_recurring_parts(distinct, ",") or _of_tags(distinct, ",", column),
        "[ ]+": _of_recurring_parts(distinct, " ") or _of_tags(distinct, " ", column),
    }
    found = set().union(*kinds.values())
    if not found:
        return None
    pattern = max(kinds, key=lambda one: len(kinds[one]))
    parts = {label: _parts(label, pattern) for label in distinct}
    uses = Counter(part for some in parts.values() for part in some)
    tags = Counter(part for label in labels for part in parts[label])
    cells = [label for label in labels if label in found]
    is_sure = any(uses[part] > 1 for label in kinds[pattern] for part in parts[label])
    return SeveralLabels(cells, len(labels), pattern, tags, is_sure)


def _parts(label: str, pattern: str) -> set[str]:
    return {part.strip(_MARKS) for part in re.split(pattern, label)} - {""}


def _of_recurring_parts(distinct: set[str], separator: str) -> set[str]:
    parts = {label: {part.strip() for part in label.split(separator)} for label in distinct}
    uses = Counter(part for some in parts.values() for part in some)
    several = {
        label: some
        for label, some in parts.items()
        if len(some) > 1 and "" not in some and all(uses[part] > 1 for part in some)
    }
    is_label = any(part in distinct for some in several.values() for part in some)
    sizes = {len(some) for some in several.values()}
    num_parts = len(set().union(*several.values()))
    are_many = len(sizes) >= _MIN_SIZES and _MAX_TAGS >= num_parts < len(several)
    return set(several) if is_label or are_many else set()


def _of_tags(distinct: set[str], separator: str, column: str) -> set[str]:
    """Return the labels with several parts in a column of tags, if they are combinations."""
    if plain_name(column) not in _TAGS:
        return set()
    parts = {label: {part.strip() for part in label.split(separator)} for label in distinct}
    uses = Counter(part for some in parts.values() for part in some)
    several = {label for label, some in parts.items() if len(some) > 1}
    sharing = {label for label in several if any(uses[part] > 1 for part in parts[label])}
    sizes = {len(parts[label]) for label in several}
    return several if len(sizes) > 1 and 2 * len(sharing) > len(several) else set()


def measured_values(labels: Sequence[str]) -> list[float]:
    """Return the numbers of labels that are many different ones; an empty list if they are not.

    Fractions are no names of classes. Whole numbers may be: they are not, if most of them have one
    picture and some between them have none. Numbers with leading zeros, or long ones, are names.
    """
    distinct = set(labels)
    if len(distinct) < _MIN_MEASURED or not all(map(is_number, distinct)):
        return []
    if any(map(_ID.match, distinct)):
        return []
    values = list(map(float, labels))
    ordered = sorted(set(values))
    num_fractions = sum(not value.is_integer() for value in ordered)
    are_single = 2 * len(ordered) > len(values)
    if 2 * num_fractions >= len(ordered):
        is_measured = len(ordered) >= _MIN_FRACTIONS or are_single
    else:
        is_measured = are_single and ordered[-1] - ordered[0] >= len(ordered)
    return values if is_measured and len(ordered) >= _MIN_MEASURED else []


def refuse_measured(reading: TableReading, columns: TableColumns, reader: PathReader) -> None:
    """Refuse a column of labels that are many different numbers.

    Args:
        reading: the table.
        columns: those of paths and labels.
        reader: how paths name files.

    Raises:
        DataError: if they are; the fix makes classes of ranges.
    """
    at = columns.label
    values = [] if at is None else measured_values([cell.strip() for cell in reading.cells(at)])
    if at is None or not values:
        return
    how, ordered = _ranges(reading, at, values, reading.options(columns, reader)), sorted(values)
    raise DataError(
        f"column {reading.file.header[at]!r} has {len(set(values))} different numbers in "
        f"{len(values)} {reading.file.unit}s ({ordered[0]:g} to {ordered[-1]:g}), as a measured "
        "quantity has",
        where=str(reading.path),
        why="A classifier learns classes with several pictures each; it does not predict numbers. "
        f"If they are names of classes, write them as text, such as 'no {ordered[0]:g}'.",
        fix=how,
    )


def refuse_captions(reading: TableReading, columns: TableColumns, reader: PathReader) -> None:
    """Refuse a column of labels that are captions.

    Args:
        reading: the table.
        columns: those of paths and labels.
        reader: how paths name files.

    Raises:
        DataError: if they are; the fix names another column that may have the classes.
    """
    at = columns.label
    captions = None if at is None else find_captions([cell.strip() for cell in reading.cells(at)])
    if at is None or captions is None or not captions.is_sure:
        return
    others = label_candidates(reading.file, {columns.path, at} - {None})
    fix = "Add a column with the class of each picture, and name it with --label-column."
    if others:
        command = reading.command(replace(columns, label=others[0]), reader)
        fix = f"If {reading.file.header[others[0]]!r} is the class: {command}"
    raise DataError(
        f"column {reading.file.header[at]!r} looks like captions, not classes: "
        f"{captions.describe(reading.file.unit)}",
        where=str(reading.path),
        why=NO_CAPTIONS,
        fix=fix,
    )


def quantity_warnings(
    reading: TableReading, columns: TableColumns, reader: PathReader
) -> tuple[str, ...]:
    """Return a warning if labels are whole numbers of a quantity, such as ages.

    They are classes, as each has several pictures, but 20 is no nearer to 21 than to 80.
    """
    at = columns.label
    if at is None or not _QUANTITY.search(reading.file.header[at]):
        return ()
    cells = [cell.strip() for cell in reading.cells(at)]
    if len(set(cells)) < _MIN_MEASURED or not all(map(is_number, set(cells))):
        return ()
    options = f"{reading.options(columns, reader)} --overwrite".strip()  # a store is there by then
    how = _ranges(reading, at, list(map(float, cells)), options)
    return (
        f"{reading.path}: column {reading.file.header[at]!r} has {len(set(cells))} different "
        "numbers; each becomes a class, which is as different from the next number as from any "
        f"other. {how}",
    )


def _ranges(reading: TableReading, at: int, values: Sequence[float], options: str) -> str:
    """Return the sentence with the command that makes classes of ranges of numbers."""
    ordered = sorted(values)
    cuts = sorted({ordered[k * len(ordered) // _NUM_RANGES] for k in range(1, _NUM_RANGES)})
    numbers = [repr(cut).removesuffix(".0") for cut in cuts]
    names = [f"below {numbers[0]}"]
    names += [f"{low} to below {high}" for low, high in itertools.pairwise(numbers)]
    names += [f"{numbers[-1]} and above"]
    function = (
        f"lambda c,cuts=[{','.join(numbers)}],names={json.dumps(names)}:"
        'names[bisect.bisect(cuts,float(c))] if re.fullmatch("[-+.0-9eE]+",c) else c'
    )
    command = cells_command(reading, at, function, "ranges", options)
    if command:
        return (
            f"To learn {len(names)} ranges of it as classes, whose cuts you may change: {command}"
        )
    return (
        f"To learn ranges of it as classes, write them in place of the numbers, such as "
        f"{names[0]!r}."
    )


def refuse_several(reading: TableReading, columns: TableColumns, reader: PathReader) -> None:
    """Refuse a column that no option names as labels, if its cells hold several of them.

    Args:
        reading: the table.
        columns: those of paths and labels.
        reader: how paths name files.

    Raises:
        DataError: if they do; the fix reads one of the labels, or each combination as a class.
    """
    at = columns.label
    if at is not None:
        refuse_objects(reading, columns, reader, [at])
    name = "" if at is None else reading.file.header[at]
    cells = [] if at is None else [cell.strip() for cell in reading.cells(at)]
    several = find_several(cells, name)
    if at is None or several is None or not several.is_sure:
        return
    of_train, of_others = _by_split(reading, columns, at)
    fix = one_label(several, reading, columns, reading.options(columns, reader))
    fixes = [fix] if fix else []
    counts = Counter(of_train)
    if of_others <= counts.keys() and (of_others or max(counts.values(), default=0) > 1):
        combined = reading.command(columns, reader)
        fixes.append(f"To learn each combination as a class of its own: {combined}")
    raise DataError(
        several.describe(reading.file.header[at]),
        where=str(reading.path),
        why=ONE_LABEL,
        fix="\n".join(fixes) or "Write one label for each picture.",
    )


def one_label(
    several: SeveralLabels, reading: TableReading, columns: TableColumns, options: str
) -> str | None:
    """Return the sentence with the command that learns whether pictures have one of the labels.

    Args:
        several: the labels.
        reading: the table.
        columns: those of labels and splits.
        options: with which the table is read.

    Returns:
        None as `rows_command`.
    """
    assert columns.label is not None
    of_train, _ = _by_split(reading, columns, columns.label)
    tag = _most_even_tag(several, of_train)
    typed, others = (json.dumps(one, ensure_ascii=False) for one in (tag, f"not {tag}"))
    marks = json.dumps(_MARKS).replace("'", r"\x27")  # no quote within the quotes of a shell
    function = (
        f"lambda c:{typed} if {typed} in [p.strip({marks}) for p in "
        f're.split("{several.pattern}",c)] else {others}'
    )
    command = cells_command(reading, columns.label, function, "one-label", options)
    return f"To learn one of them, such as {tag!r} or not: {command}" if command else None


def _by_split(reading: TableReading, columns: TableColumns, at: int) -> tuple[list[str], set[str]]:
    """Return the labels of train, and the different ones of other splits."""
    of_train: list[str] = []
    of_others: set[str] = set()
    for _, cells in reading.file.body:
        word = "" if columns.split is None else cells[columns.split]
        if split_of_word(word) in {None, Split.TRAIN}:
            of_train.append(cells[at].strip())
        elif not is_empty(cells[at]):
            of_others.add(cells[at].strip())
    return of_train, of_others


def _most_even_tag(several: SeveralLabels, of_train: Sequence[str]) -> str:
    """Return the label that about half of the pictures of train have."""
    counts = Counter(tag for cell in of_train for tag in _parts(cell, several.pattern))
    return min(sorted(several.tags), key=lambda tag: abs(2 * counts[tag] - len(of_train)))
