"""Find classes with numbers in the names of pictures, such as `cat.0.jpg` and `dog (1).jpg`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

NUMBERED: Final = r"([^/]+?)[._ -]*[0-9]+\.[^./]+$"
"""A label pattern: the class is what is before the number, as in `cat.0.jpg`."""
_SIGNS: Final = r"[ -.:-@\[-`{-~]*"  # ASCII but letters, digits and "/"
_BY_SIGNS: Final = rf"([^/]+?){_SIGNS}[0-9]+{_SIGNS}\.[^./]+$"
"""The same with any signs around the number, as in `cat-!-0.jpg` and `cat (1).jpg`."""
_MIN_CLASSES: Final = 2


def classes_in_names(paths: Sequence[str]) -> tuple[str, Counter[str]] | None:
    """Return the label pattern for the names of pictures, and the pictures of each class.

    None: not every name is a class with a number. Signs before the number are no part of a class,
    unless two classes differ only by them: `C++ 1.jpg` and `C 1.jpg`.
    """
    plain, bare = (_counted(pattern, paths) for pattern in (NUMBERED, _BY_SIGNS))
    if bare is None or (plain is not None and _is_less(bare, plain)):
        return None if plain is None else (NUMBERED, plain)
    return (NUMBERED, plain) if plain == bare else (_BY_SIGNS, bare)


def _counted(pattern: str, paths: Sequence[str]) -> Counter[str] | None:
    matches = [re.search(pattern, path) for path in paths]
    counts = Counter(match[1] for match in matches if match)
    is_repeated = all(count > 1 for count in counts.values())
    are_classes = len(counts) >= _MIN_CLASSES and is_repeated and None not in matches
    return counts if are_classes else None


def _is_less(bare: Counter[str], plain: Counter[str]) -> bool:
    """Return True if classes are one without their signs, or only half of a pair of brackets."""
    halves = any(one.count(a) != one.count(b) for one in bare for a, b in ("()", "[]", "{}"))
    return len(bare) < len(plain) or halves
