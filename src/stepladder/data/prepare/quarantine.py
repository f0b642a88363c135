"""Quarantined pictures: the list with reasons, and the limit on their number."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from stepladder.data.sources.walk import printable
from stepladder.errors import DataError
from stepladder.records import write_bytes

NAME = "quarantine.csv"
_NUM_SHOWN = 5
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
) -> None:
    """Check that no more pictures are bad than allowed.

    Args:
        are_all_known: whether all pictures were checked, so that the count is final.

    Raises:
        DataError: if more are; lists the first five.
    """
    if len(bad) <= max_bad * num_pictures:
        return
    found = sorted(bad)
    shown = "\n  ".join(f"{printable(path)!r}: {reason}" for path, reason in found[:_NUM_SHOWN])
    share = 100 * len(found) / num_pictures
    is_most = 2 * len(found) > num_pictures and are_all_known
    allowed = min(1.0, 1.1 * len(found) / num_pictures + 0.001)
    rest = "" if are_all_known else " (the rest was not checked yet)"
    raise DataError(
        f"{len(found)} of {num_pictures} pictures ({share:.1f} %) cannot be used, "
        f"more than the limit of {100 * max_bad:g} %",
        where=str(source),
        why=shown,
        fix="Fix or remove them."
        if is_most
        else f"Fix or remove them, or allow more{rest}: --max-bad {allowed:.3f}",
    )


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
