"""Labels, splits and groups as they stand in a row."""

from __future__ import annotations

from typing import Any

from stepladder.config.choices import Split
from stepladder.data.sources.listing import SPLIT_NAMES
from stepladder.errors import DataError


def checked_label(value: Any, name: str, where: str) -> str | int:
    """Give a label as it stands in a row.

    Raises:
        DataError: if it is null, empty or negative; names file, row and column.
    """
    if isinstance(value, str) and value.strip():
        return encodable(value.strip())
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    what = "null" if value is None else "empty" if isinstance(value, str) else f"{value!r:.40}"
    raise DataError(
        f"column {name!r} is {what}; a label is a number of 0 or more, or a text",
        where=where,
        why="Hugging Face writes -1 where a test set has no labels." if value == -1 else None,
        fix="Mend the row or take it out, or give a pattern that leaves its file out.",
    )


def encodable(text: str) -> str:
    """Write half characters, which JSON can hold and UTF-8 cannot, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def split_of_cell(value: Any, where: str) -> Split:
    """Give the split that a cell names.

    Raises:
        DataError: if it names none.
    """
    split = SPLIT_NAMES.get(str(value).strip().lower())
    if split is None:
        raise DataError(
            f"split {value!r:.40} is not train, val or test",
            where=where,
            fix="Write one of the three there, or name another column: --split-column NAME",
        )
    return split
