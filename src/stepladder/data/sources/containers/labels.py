"""From labels as a source has them, names or numbers, to class names.

A store's classes are sorted by name. Numbers without names are written with leading zeros, as
many as the largest needs: class k is then label k where the numbers are 0 to K - 1.
"""

from __future__ import annotations

from typing import Any

from stepladder.errors import DataError


def checked_label(value: Any, name: str, where: str) -> str | int:
    """Return a label as it stands in a row.

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


class Labels:
    """Collects labels, then names them.

    Args:
        class_names: what numbers stand for, where the source says.
    """

    def __init__(self, class_names: tuple[str, ...] | None) -> None:
        self._class_names = class_names
        self._seen: dict[str | int, tuple[str | int, str]] = {}

    def add(self, label: str | int, where: str) -> str | int:
        """Take in the label of a row, and give it back: one object for all that are equal.

        Raises:
            DataError: if it is a number without a name, where numbers have names.
        """
        found = self._seen.get(label)
        if found is not None:
            return found[0]
        names = self._class_names
        if names is not None and isinstance(label, int) and label >= len(names):
            raise DataError(
                f"label {label} has no name; the file names {len(names)} classes, 0 to "
                f"{len(names) - 1}",
                where=where,
                fix="Mend the row or take it out, or give a pattern that leaves its file out.",
            )
        self._seen[label] = (label, where)
        return label

    def names(self, source: str) -> dict[str | int, str]:
        """Return the class name of each label.

        Raises:
            DataError: if some are numbers and some are texts; names a row of each.
        """
        numbers = [label for label in self._seen if isinstance(label, int)]
        texts = [label for label in self._seen if isinstance(label, str)]
        if numbers and texts:
            raise DataError(
                f"labels are numbers in some rows and texts in others: {numbers[0]} in "
                f"{self._seen[numbers[0]][1]}, {texts[0]!r} in {self._seen[texts[0]][1]}",
                where=source,
                fix="Write them all in one way.",
            )
        names = self._class_names
        width = len(str(max(numbers, default=0)))
        return {
            label: label
            if isinstance(label, str)
            else (f"{label:0{width}d}" if names is None else names[label])
            for label in self._seen
        }
