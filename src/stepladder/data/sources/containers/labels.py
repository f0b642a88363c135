"""Convert the labels of a source, names or numbers, to class names.

A store's classes are sorted by name. Numbers without names are padded with zeros to the width of
the largest, so that class k is label k if the numbers are 0 to K - 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepladder.errors import DataError


def checked_label(value: Any, name: str, where: str) -> str | int:
    """Return the label of a row, without surrounding whitespace.

    Raises:
        DataError: if it is null, empty or negative; names file, row and column.
    """
    if isinstance(value, str) and value.strip():
        return encodable(value.strip())
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    what = "null" if value is None else "empty" if isinstance(value, str) else f"{value!r:.40}"
    raise DataError(
        f"the label {name!r} of this row is {what}; a label must be a non-empty string or an "
        "integer from 0",
        where=where,
        why="Hugging Face writes -1 for the missing labels of a test set." if value == -1 else None,
        fix="Correct or remove the row, or set --source to a quoted pattern that leaves the file "
        "out.",
    )


def encodable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, with escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


class Labels:
    """Collects labels and returns their class names.

    Args:
        class_names: class name of each label number, if the source has them.
    """

    def __init__(self, class_names: tuple[str, ...] | None) -> None:
        self._class_names = class_names
        self._seen: dict[str | int, tuple[str | int, str]] = {}

    def add(self, label: str | int, where: str) -> str | int:
        """Add the label of a row and return it; equal labels share one object.

        Raises:
            DataError: if numbers have class names and this one has none.
        """
        found = self._seen.get(label)
        if found is not None:
            return found[0]
        names = self._class_names
        if names is not None and isinstance(label, int) and label >= len(names):
            raise DataError(
                f"this row has label {label}, but the file names only {len(names)} classes, 0 to "
                f"{len(names) - 1}",
                where=where,
                fix="Correct or remove the row, or set --source to a quoted pattern that leaves "
                "the file out.",
            )
        self._seen[label] = (label, where)
        return label

    def names(self, source: str) -> dict[str | int, str]:
        """Return the class name of each label.

        Raises:
            DataError: if some are numbers and some are strings; names a row of each.
        """
        numbers = [label for label in self._seen if isinstance(label, int)]
        texts = [label for label in self._seen if isinstance(label, str)]
        if numbers and texts:
            raise DataError(
                f"labels are numbers in some rows and strings in others: {numbers[0]} in "
                f"{self._seen[numbers[0]][1]}, {texts[0]!r} in {self._seen[texts[0]][1]}",
                where=source,
                why="It is unknown which numbers and strings mean the same class.",
                fix="Write the source files again with labels that are all numbers or all strings.",
            )
        names = self._class_names
        width = len(str(max(numbers, default=0)))
        return {
            label: label
            if isinstance(label, str)
            else (f"{label:0{width}d}" if names is None else names[label])
            for label in self._seen
        }


def padded_words(names: Mapping[str | int, str]) -> str:
    """Return a sentence on numbers that are stored with zeros in front; empty without any."""
    padded = {
        label: name
        for label, name in names.items()
        if isinstance(label, int) and name != str(label) and name == str(label).zfill(len(name))
    }
    if not padded:
        return ""
    first = min(padded)
    return (
        f"label {first} is stored as class {padded[first]!r}, because zeros are put in front of "
        "label numbers: so the classes are in the order of the numbers"
    )
