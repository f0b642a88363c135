"""Find the columns of pixels of a table with a column for each, and what they are beside.

Names decide: `pixel0` to `pixel783` are pixels, and `label` is not one of them. Without names, the
cells at both ends do; if both could be classes, no choice is made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

from stepladder.data.sources.label_tables.cells import TableCells
from stepladder.data.sources.label_tables.labels import LABEL_NAMES, is_number, plain_name

MIN_PIXELS: Final = 64
"""Values of the smallest picture that is recognized."""
_NOT_PIXELS: Final = frozenset({"", "unnamed_0", "index", "id", "idx", "label", "y", *LABEL_NAMES})
_CHANNELS: Final = "rgb"
_MIN_ROWS: Final = 3


@dataclass(frozen=True)
class PixelColumns:
    """The columns of pixels.

    Attributes:
        columns: their indices, in the order of the pixels.
        note: in which order they are read, if it is not that of the file; else empty.
        ends: the first and the last column, if only their cells decide which one is the class.
        is_sure: whether it is known which columns are pixels, and in which order.
    """

    columns: tuple[int, ...]
    note: str = ""
    ends: tuple[int, int] | None = None
    is_sure: bool = True


def find_columns(
    file: TableCells, numeric: Sequence[int], named: Set[str], sizes: Set[int]
) -> PixelColumns | None:
    """Return the columns of pixels; None if there are fewer than 64.

    Args:
        file: the cells.
        numeric: its columns of numbers.
        named: names of columns that mean something else.
        sizes: numbers of values that a picture may have; empty: those of squares.
    """
    has_names = file.header_row > 0 and not is_first_picture([file.header[at] for at in numeric])
    if has_names:
        numeric = [at for at in numeric if file.header[at] not in named]
        found = _by_names(file.header, numeric)
        if found is not None and not (found.is_sure and _fits(len(found.columns) - 1, sizes)):
            return found
        names = {at: plain_name(file.header[at]) for at in numeric}
        numeric = list(found.columns) if found else [at for at in numeric if _is_free(names[at])]
    if len(numeric) < MIN_PIXELS:
        return None
    if _fits(len(numeric), sizes) or not _fits(len(numeric) - 1, sizes):
        return PixelColumns(tuple(numeric))
    rows = [cells for _, cells in file.body if len(cells) == len(file.header)]
    rows += [] if has_names or not file.header_row else [file.header]
    ends = (numeric[0], numeric[-1])
    has_others = not has_names and len(numeric) < len(file.header)
    at = _extra_end(ends, rows, is_count=has_others)
    if at is None:
        return PixelColumns(tuple(numeric), ends=ends, is_sure=False)
    return PixelColumns(tuple(one for one in numeric if one != at), ends=ends)


def is_first_picture(names: Sequence[str]) -> bool:
    """Return True if the names of columns are pixels, and not the numbers of the columns."""
    if not names or not all(map(is_number, names)):
        return False
    if not all(name.isdecimal() for name in names):
        return True
    numbers = sorted(map(int, names))
    return numbers != list(range(numbers[0], numbers[0] + len(numbers)))


def shape_of(num: int) -> str:
    """Return the shape of a square picture with this many values: grey, else RGB."""
    for channels in (1, 3):
        side = math.isqrt(num // channels)
        if side * side * channels == num:
            return f"{side},{side}" + (",3" if channels > 1 else "")
    return ""


def runs_of(columns: Sequence[int]) -> list[range]:
    """Return columns as ranges, each as long as possible."""
    runs: list[range] = []
    for at in columns:
        if runs and runs[-1].stop == at:
            runs[-1] = range(runs[-1].start, at + 1)
        else:
            runs.append(range(at, at + 1))
    return runs


def _is_free(name: str) -> bool:
    return name not in _NOT_PIXELS


def _fits(num: int, sizes: Set[int]) -> bool:
    return num in sizes if sizes else bool(shape_of(num))


def _by_names(header: Sequence[str], numeric: Sequence[int]) -> PixelColumns | None:
    """Return the columns whose names differ only by numbers: `pixel0` and `1x1`; None: too few."""
    alike: dict[str, list[int]] = {}
    for at in numeric:
        name = re.sub(r"\d+", "#", header[at].strip().lower())
        if "#" in name:
            alike.setdefault(name, []).append(at)
    families = {name: some for name, some in alike.items() if len(some) >= MIN_PIXELS}
    if not families:
        return None
    if len(families) == 1:
        (family,) = families.values()
        columns = _in_order(header, family)
        note = "" if columns == family else "in the order of the numbers in their names"
        return PixelColumns(tuple(columns), note)
    channels = _channels(families)
    if channels is None:
        every = sorted(at for family in families.values() for at in family)
        return PixelColumns(tuple(every), is_sure=False)
    ordered = [_in_order(header, family) for family in channels]
    columns = [at for pixel in zip(*ordered, strict=True) for at in pixel]
    is_moved = columns != sorted(columns)
    return PixelColumns(tuple(columns), "red, green and blue by their names" if is_moved else "")


def _channels(families: dict[str, list[int]]) -> list[list[int]] | None:
    """Return the columns of red, green and blue: `r0`, `g0`, `b0`; None if they are not these."""
    letters = zip(*families, strict=False)
    start = next((at for at, some in enumerate(letters) if len(set(some)) > 1), 0)
    of = {name[start : start + 1]: family for name, family in families.items()}
    is_even = len({len(family) for family in families.values()}) == 1
    return [of[one] for one in _CHANNELS] if set(of) == set(_CHANNELS) and is_even else None


def _in_order(header: Sequence[str], columns: list[int]) -> list[int]:
    """Return columns sorted by the numbers in their names, if text had sorted them: 1, 10, 2."""
    keys = {at: tuple(map(int, re.findall(r"\d+", header[at]))) for at in columns}
    by_rows = sorted(columns, key=lambda at: keys[at])
    by_columns = sorted(columns, key=lambda at: keys[at][::-1])
    is_one_each = len(set(keys.values())) == len(columns)
    return by_rows if is_one_each and columns != by_columns else columns


def _extra_end(
    ends: tuple[int, int], rows: Sequence[Sequence[str]], *, is_count: bool
) -> int | None:
    """Return which one of two columns is not a pixel: the class, or a count; None: not clear."""
    cells = {at: [row[at].strip() for row in rows] for at in ends}
    may = [at for at in ends if (_is_count if is_count else _may_be_classes)(cells[at])]
    if len(may) == len(ends) and not is_count:
        distinct = {at: {int(float(cell)) for cell in cells[at]} for at in ends}
        tight = [at for at in may if _is_tight(distinct[at])]
        other = [at for at in may if at not in tight]
        is_clear = len(tight) == 1 and len(distinct[other[0]]) > 2 * len(distinct[tight[0]])
        may = tight if is_clear else []
    return may[0] if len(may) == 1 else None


def _may_be_classes(cells: Sequence[str]) -> bool:
    """Return True if cells are whole numbers that repeat, and not all the same."""
    distinct = set(cells)
    is_whole = all(float(cell).is_integer() for cell in distinct)
    return len(cells) >= _MIN_ROWS and is_whole and 2 <= len(distinct) <= (len(cells) + 1) / 2


def _is_count(cells: Sequence[str]) -> bool:
    """Return True if cells are the numbers of the rows, the first of which may be the last cell."""
    numbers = sorted(float(cell) for cell in cells)
    return numbers == [numbers[0] + at for at in range(len(numbers))]


def _is_tight(numbers: Set[int]) -> bool:
    return min(numbers) in {0, 1} and max(numbers) - min(numbers) == len(numbers) - 1
