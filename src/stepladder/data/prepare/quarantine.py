"""Quarantined pictures: the list with reasons, and the limit on their number."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from stepladder.data.decoding.by_pillow import BANDS
from stepladder.data.prepare.bad_remedies import remedy
from stepladder.data.sources.source_file import NO_FILE
from stepladder.data.sources.walk import printable
from stepladder.errors import DataError
from stepladder.records import write_bytes

NAME = "quarantine.csv"
_NUM_SHOWN = 5
_MANY = 100  # too many to be a few damaged files: probably the wrong folder
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class Bad(NamedTuple):
    """A picture that cannot be used: its relative path and the reason."""

    path: str
    reason: str


def check_share(
    bad: Sequence[Bad],
    *,
    num_pictures: int,
    max_bad: float,
    source: Path,
    are_all_known: bool = True,
    can_skip: bool = True,
) -> None:
    """Check that no more pictures are bad than allowed.

    Args:
        are_all_known: whether all pictures were checked, so that the count is final. If not, a
            few bad pictures are no error yet, so that the final error can name all of them.
        can_skip: whether the others would make a store.

    Raises:
        DataError: if more are; names the first five.
    """
    if len(bad) <= max_bad * num_pictures or not (are_all_known or len(bad) >= _MANY):
        return
    share = 100 * len(bad) / num_pictures
    allowed = min(1.0, 1.1 * len(bad) / num_pictures + 0.001)
    what = "pictures in the source" if are_all_known else "files"
    skip = ""
    if not are_all_known:
        skip = "Or skip all such pictures, however many: --max-bad 1"
    elif 2 * len(bad) <= num_pictures and can_skip:
        skip = f"Or skip them, and allow a share of up to {allowed:.3f}: --max-bad {allowed:.3f}"
    raise DataError(
        f"{'' if are_all_known else 'at least '}{len(bad)} of {num_pictures} pictures "
        f"({share:.1f} %) cannot be used, more than the limit of {100 * max_bad:g} %",
        where=str(source),
        why=_name_bad(bad, is_table=source.is_file()),
        fix=remedy({reason for _, reason in bad}, source, what=what, skip=skip),
    )


def _name_bad(bad: Sequence[Bad], *, is_table: bool) -> str:
    """Return the first five pictures on one line, grouped by the reason.

    Those with many bands are not damaged: they are counted, and only the first is named.
    """
    counts = Counter(reason for _, reason in bad)
    of_bands = {reason for reason in counts if BANDS.fullmatch(reason)}
    by_reason: dict[str, list[str]] = {}
    others = [one for one in sorted(bad) if one.reason not in of_bands]
    for path, reason in others[:_NUM_SHOWN]:
        by_reason.setdefault(reason, []).append(repr(printable(path)))
    first = {one.reason: repr(printable(one.path)) for one in sorted(bad, reverse=True)}
    shown = "; ".join(
        [
            f"{_many_bands(reason, counts[reason])}, such as {first[reason]}"
            for reason in sorted(of_bands)
        ]
        + [
            _that_do_not_exist(paths, counts[reason])
            if is_table and reason == NO_FILE
            else f"{', '.join(paths)}: {reason}"
            for reason, paths in by_reason.items()
        ]
    )
    num_more = len(others) - _NUM_SHOWN
    return " ".join(shown.split()) + (f"; and {num_more} more" if num_more > 0 else "")


def _many_bands(reason: str, num: int) -> str:
    bands = reason.removeprefix("is a TIFF ")
    return f"1 picture is a TIFF {bands}" if num == 1 else f"{num} pictures are TIFFs {bands}"


def _that_do_not_exist(paths: Sequence[str], num: int) -> str:
    what = "1 picture of the table does" if num == 1 else f"{num} pictures of the table do"
    return f"{what} not exist: {', '.join(paths)}"


def write_quarantine(folder: Path, bad: Iterable[Bad]) -> None:
    """Write quarantine.csv (path, reason), sorted by path; only a header if none is bad."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("path", "reason"))
    for path, reason in sorted(bad):
        writer.writerow((guarded(printable(path)), guarded(reason)))
    write_bytes(folder / NAME, text.getvalue().encode())


def read_quarantine(folder: Path) -> list[Bad]:
    """Read quarantine.csv; return an empty list if it does not exist."""
    try:
        text = (folder / NAME).read_text(encoding="utf-8")
    except OSError:
        return []
    rows = csv.reader(io.StringIO(text, newline=""))
    return [Bad(_plain(row[0]), _plain(row[1])) for row in rows if len(row) == 2][1:]


def _plain(cell: str) -> str:
    return cell[1:] if cell.startswith(tuple("'" + start for start in _FORMULA_STARTS)) else cell


def guarded(cell: str) -> str:
    """Escape a cell that a spreadsheet would treat as a formula."""
    return "'" + cell if cell.startswith(_FORMULA_STARTS) else cell
